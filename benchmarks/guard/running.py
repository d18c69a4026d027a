"""Runs the parts, each in a process of its own, one after the other; one that fails does not stop the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.failures import in_short
from support.launch import environment
from support.usage import UsageError

from guard.measured import Measured, Ran, read_measured
from guard.neighbours import Clocks
from guard.parts import PARTS

LIMIT_SECS = 240.0
"""For one part; each takes less than a minute or so."""
LEAVE_SECS = 30.0
LOG_LINES = 15
"""Told of a part that failed."""


def run_all(parts: Sequence[str], run: Callable[[str], Measured], tell: Callable[[str], None]) -> dict[str, Ran]:
    """By part what `run` measured; where it raises, why it could not run."""
    found = {}
    for part in parts:
        tell(part)
        begun = Clocks.now()
        try:
            measured = run(part)
        except (RuntimeError, UsageError) as error:
            measured = Measured(left_out={part: in_short(error)})
        ended = Clocks.now()
        found[part] = Ran(measured, ended.secs - begun.secs, begun.taken_by_others(ended))
    return found


def run_apart(part: str, parent: Path | None, limit_secs: float = LIMIT_SECS) -> Measured:
    """Runs a part in a process of its own, in a folder of `parent` that is removed again.

    Raises:
        UsageError: It cannot run here.
        RuntimeError: It did not end as it should, or took longer than it may.
    """
    PARTS[part].check()
    with tempfile.TemporaryDirectory(dir=parent, prefix="quick-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        out, log = folder / "told.json", folder / "part.log"
        with _started(["-m", "guard.program", part, str(folder), str(out)], folder, log) as process:
            try:
                code = process.wait(limit_secs)
            except subprocess.TimeoutExpired:
                raise RuntimeError(_with_end(f"still running after {limit_secs:.0f} s", log)) from None
        if code != 0:
            raise RuntimeError(_with_end(f"its process has ended with code {code}", log))
        return read_measured(out)


def _with_end(what: str, log: Path) -> str:
    return "\n".join([what, *log.read_text(errors="replace").splitlines()[-LOG_LINES:]])


@contextmanager
def _started(arguments: Sequence[str], folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Python in a session of its own; whoever leaves early ends it, and it ends its ranks."""
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(LEAVE_SECS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
