"""What dead drivers have left on this machine: processes, and folders of mpiruns."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from hpc_train.folders import remove_tree
from hpc_train.processes import kill, with_variable
from hpc_train.tuning.execution.trial_run import DRIVER_VARIABLE

ENDING_SECS = 60.0
"""How long they may take to save."""
ASK_AGAIN_SECS, POLL_SECS = 2.0, 0.1


def session_folder(driver: str, name: str) -> Path:
    """In which an mpirun that `driver` starts keeps what it needs while it runs."""
    return Path(tempfile.gettempdir(), f"ompi-{driver}-{name}")


def end_orphans(drivers: Sequence[str]) -> int:
    """Has what dead `drivers` have left on this machine save and leave, and ends what does not; how many processes."""
    left = _of(drivers)
    if not left:
        return 0
    pids = {process.pid for process in left}
    roots = []
    for process in left:
        with suppress(psutil.Error):
            if process.ppid() not in pids:  # which looks after the others
                roots.append(process)
    deadline, asked = time.monotonic() + ENDING_SECS, 0.0
    while (still := _of(drivers)) and time.monotonic() < deadline:
        if time.monotonic() - asked > ASK_AGAIN_SECS:
            asked = time.monotonic()
            for process in roots:
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGUSR1)
        time.sleep(POLL_SECS)
    kill(still)
    return len(left)


def remove_sessions(driver: str) -> None:
    """Removes the folders that the mpiruns of a dead driver have left on this machine."""
    pattern = session_folder(driver, "*")
    for folder in pattern.parent.glob(pattern.name):
        remove_tree(folder)


def _of(drivers: Sequence[str]) -> list[psutil.Process]:
    return [process for found in with_variable(DRIVER_VARIABLE, drivers).values() for process in found]
