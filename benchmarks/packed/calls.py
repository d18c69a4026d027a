"""Calls of the file system, counted by strace: those that name something in given folders."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from support.launch import Started
from support.usage import UsageError, tell

from packed.environments import Environment

LIMIT_SECS = 300.0
STRACE = ("strace", "-f", "-qq", "-y", "--seccomp-bpf", "-e", "trace=%file,getdents64", "-o")
_CALL = re.compile(r'\d+ +\w+\((?:(?:AT_FDCWD|\d+)(?:<([^>]*)>)?(?:, )?)?(?:"((?:[^"\\]|\\.)*)")?')
_AT_ONCE = (
    'pids=; for n in $(seq "$1"); do "$2" -c "$3" & pids="$pids $!"; done; for p in $pids; do wait $p || exit; done'
)


def check_strace() -> None:
    """UsageError where calls cannot be counted."""
    try:
        tried = subprocess.run([*STRACE, os.devnull, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UsageError("no strace on PATH, which counts calls: apt-get install strace") from None
    if tried.returncode != 0:
        raise UsageError(f"strace cannot count calls here: {tried.stderr.strip() or f'code {tried.returncode}'}")


def count(lines: Iterable[str], folders: Sequence[Path]) -> int:
    """How many calls, in lines of strace, name something in one of the folders. Pure."""
    names = tuple(map(str, folders))
    return sum(any(path == name or path.startswith(f"{name}/") for name in names) for path in _paths(lines))


def _paths(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        if (found := _CALL.match(line)) is not None:  # what is resumed was counted when it began
            yield os.path.normpath(Path(found[1] or "", found[2] or ""))


def of_ranks(
    environment: Environment, program: str, ranks: int, folders: Sequence[Path], parent: Path
) -> dict[str, float]:
    """Calls of a rank, the mean of them: all, and those in the folders."""
    script = 'out=$1 program=$2; shift 2; exec "$@" "$out.$$" python -c "$program"'
    out = parent / "calls"
    _run(environment, [*_mpirun(ranks), "sh", "-c", script, "-", str(out), program, *STRACE], parent)
    return _counted([*parent.glob("calls.*")], folders, ranks)


def at_once(
    environment: Environment, program: str, starts: int, folders: Sequence[Path], parent: Path
) -> dict[str, float]:
    """The same of one of so many programs that start at once."""
    out = parent / "calls.all"
    _run(environment, [*STRACE, str(out), "sh", "-c", _AT_ONCE, "-", str(starts), environment.python, program], parent)
    return _counted([out], folders, starts)


def start_secs(environment: Environment, program: str, ranks: int, parent: Path) -> float:
    """Seconds from mpirun until its ranks have imported what they need, and have ended."""
    begun = time.perf_counter()
    _run(environment, [*_mpirun(ranks), "python", "-c", program], parent)
    secs = time.perf_counter() - begun
    tell(f"{ranks} ranks take {secs:.2f} s")
    return secs


def _mpirun(ranks: int) -> list[str]:
    return ["env", "mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)]


def _run(environment: Environment, command: Sequence[str], parent: Path) -> None:
    with Started(command[0], command, parent, environment.for_ranks(), parent / "ranks.log") as started:
        started.wait(LIMIT_SECS)


def _counted(files: Sequence[Path], folders: Sequence[Path], starts: int) -> dict[str, float]:
    all_calls, shared = 0, 0
    for file in files:
        lines = file.read_text(errors="replace").splitlines()
        all_calls += sum(1 for _ in _paths(lines))
        shared += count(lines, folders)
        file.unlink()
    tell(f"{all_calls / starts:.0f} calls each, {shared / starts:.1f} of them on the shared folder")
    return {"all": all_calls / starts, "shared": shared / starts}
