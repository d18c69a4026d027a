"""Runs commands of hpc-train on what may be hostile, each in a process of its own with little memory, and watches them.

As a program: reads lists of arguments as JSON, one a line, and reports what became of each.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import LIMIT_SECS, REPOSITORY

if TYPE_CHECKING:
    import pytest

ADDRESS_BYTES = 4 << 30
MAX_MIB, MAX_SECS, HANG_SECS = 1000, 5, 120
"""Of memory and of processor time; and how long a command may sleep before it is taken to hang."""
SHOWN = 4 << 20
OTHER_UID = 4711


@dataclass(frozen=True)
class Done:
    """A command that has ended. `secs` of processor time; `hung`: it was killed."""

    args: list[str]
    code: int
    out: str
    err: str
    secs: float
    mib: float
    hung: bool

    @property
    def wrong(self) -> str | None:
        """What no command may do, whatever it was given; None where it did nothing of it."""
        if self.hung:
            return "it hangs"
        if self.code < 0:
            return f"it was killed by {signal.Signals(-self.code).name}"
        if "Traceback" in self.err or "Error:" in self.err.replace("hpc-train: error:", ""):
            return self.err[-2000:]
        if self.mib > MAX_MIB or self.secs > MAX_SECS:
            return f"{self.mib:.0f} MiB, {self.secs:.1f} s"
        return None


def run_commands(commands: Sequence[Sequence[object]], cwd: Path, env: Mapping[str, str] | None = None) -> list[Done]:
    """Runs each with `cwd` as its folder; what became of them."""
    lines = "".join(json.dumps([str(word) for word in command]) + "\n" for command in commands)
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile.commands"],
        input=lines,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "80", **(env or {})},
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=LIMIT_SECS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [Done(**json.loads(line)) for line in done.stdout.splitlines()]


def faults_of(done: Iterable[Done]) -> str:
    """What commands did that none may do, one a line."""
    return "\n".join(f"{' '.join(one.args)}: {one.wrong}" for one in done if one.wrong is not None)


def contents_of(folder: Path) -> dict[str, object]:
    """All that lies below `folder`, to be compared."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        held = path.read_bytes() if path.is_file() and not path.is_symlink() and status.st_size < 1 << 20 else None
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_size, status.st_mtime_ns, held)
    return found


def link_of_another(path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `path` a link of another user; where that cannot be done, no link at all is trusted."""
    path.symlink_to(target)
    try:
        os.chown(path, OTHER_UID, -1, follow_symlinks=False)
    except OSError:
        monkeypatch.setattr("hpc_train.folders._is_trusted", lambda uid: False)


def _run(args: list[str]) -> Done:
    """Runs one in a fork."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            os._exit(_command(args))
        end, hung = time.monotonic() + HANG_SECS, False
        while True:
            pid, status, usage = os.wait4(child, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > end and not hung:
                hung = True
                os.kill(child, signal.SIGKILL)
            time.sleep(0.005)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read(SHOWN).decode(errors="surrogateescape"))
        code = os.waitstatus_to_exitcode(status)
        return Done(args, code, texts[0], texts[1], usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, hung)


def _command(args: list[str]) -> int:
    from hpc_train.__main__ import main

    sys.argv = ["hpc-train", *args]
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if isinstance(code, str):
        print(code, file=sys.stderr, flush=True)
        return 1
    return code if isinstance(code, int) else 0


def main() -> None:
    """Reports on the commands that standard input names."""
    import hpc_train.checkpoint.manager
    import hpc_train.cli.app
    import hpc_train.jobs.job
    import hpc_train.jobs.prepare
    import hpc_train.jobs.tables  # noqa: F401
    from hpc_train.report.rendering import gallery

    with gallery() as draw:  # matplotlib, too
        draw([])
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    for line in sys.stdin:
        print(json.dumps(asdict(_run(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
