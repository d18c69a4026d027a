"""What the processes of a test that hangs are doing.

Each process of Python in a test prints the stacks of its threads when it gets SIGQUIT, wherever it is, in MPI too
(site/sitecustomize.py).
"""

from __future__ import annotations

import re
import signal
from contextlib import suppress
from pathlib import Path

import psutil

PRINTED_SECS = 5.0
"""What the stacks are given to be printed."""


def print_stacks(pid: int) -> None:
    """Has a process and all that it has started print their stacks to their standard error; others go on unharmed."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess, OSError):
                if _catches(each.pid, signal.SIGQUIT):
                    each.send_signal(signal.SIGQUIT)


def _catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal, which would end it otherwise."""
    caught = re.search(r"^SigCgt:\s*(\w+)$", Path("/proc", str(pid), "status").read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)
