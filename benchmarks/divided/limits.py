"""Limits of a process's memory that the kernel keeps: what this machine has, and Python programs under one.

python -m divided.limits KIND BYTES ARGUMENTS…: limits itself, and becomes Python with these arguments.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.control_group import control_group, set_limit
from support.control_group import prefix as in_group

CGROUP, PRIVATE = "a memory cgroup", "private memory (RLIMIT_DATA)"
"""PRIVATE: what a process may have of writable memory of its own, touched or not; maps of files, and addresses that are
merely reserved, do not count, unlike with `ulimit -v`. So it is stricter than a cgroup, and needs no rights."""
KINDS = (CGROUP, PRIVATE)
PROBE_BYTES, PROBE_SECS = 256 << 20, 20
TAKE = "import sys; taken = bytearray(int(sys.argv[1])); taken[::4096] = bytes([1]) * len(taken[::4096])"


def prefix(kind: str, nbytes: int) -> list[str]:
    """Arguments of Python before those of a program that is to have so much memory. Pure."""
    return ["-m", "divided.limits", kind, str(nbytes)]


def missing(kind: str, environment: dict[str, str]) -> str | None:
    """Why there is no such limit on this machine, as one sentence; None: programs are ended by it, and at it alone."""
    for share, within in ((0.5, True), (2.0, False)):
        words = [*prefix(kind, PROBE_BYTES), "-c", TAKE, str(int(share * PROBE_BYTES))]
        command = ["timeout", str(PROBE_SECS), sys.executable, *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if (done.returncode == 0) != within:
            said = "; ".join(line for line in done.stderr.splitlines() if not line.startswith((" ", "Traceback")))
            return f"it cannot be had here ({said})" if within else "it is accepted, and not kept"
    return None


def main(kind: str, nbytes: int, arguments: Sequence[str]) -> None:
    """Does not return."""
    command = [sys.executable, *arguments]
    if kind == CGROUP and shutil.which("systemd-run") and Path("/run/systemd/system").is_dir():
        limits = ["-p", f"MemoryMax={nbytes}", "-p", "MemorySwapMax=0"]
        scope = ["--scope", "--quiet", "--collect", "--no-ask-password", *limits, "--"]
        command = ["systemd-run", *(["--user"] if os.getuid() else []), *scope, *command]
    elif kind == CGROUP:
        sys.exit(run_in_group(nbytes, command))
    else:
        resource.setrlimit(resource.RLIMIT_DATA, (nbytes, nbytes))
    os.execvp(command[0], command)


def run_in_group(nbytes: int, command: Sequence[str]) -> int:
    """Runs `command` in a new memory cgroup within this process's own, which is removed afterwards; its exit code.

    Raises:
        OSError: This process may not make one.
    """
    with control_group("memory") as group:
        set_limit(group, ("memory.limit_in_bytes", str(nbytes)), ("memory.max", str(nbytes)))
        signal.signal(signal.SIGTERM, lambda *_: None)  # that is for the command; what it leaves is removed here
        code = subprocess.call([*in_group(group), *command])
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
