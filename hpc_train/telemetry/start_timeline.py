"""How long a process takes from its start, or its launcher's, to the end of its first training step, by phase."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

Phase = Literal[
    "launch", "Python", "imports", "MPI", "data", "TensorFlow", "model", "exchange", "job-dir", "trace", "first step"
]
"""In their order; more may be done in a phase than its name says, since each lasts until another one begins.

launch: the launcher, until it has started this process. Python: the interpreter, and what a program of the user's own
does before it trains. imports: this package's. MPI: its start, and what all ranks tell each other then. data: the job
file, checkpoints and shards are looked for and opened. TensorFlow: its import, and Keras's. model: it is built, tried
out and restored. exchange: Horovod starts, or what a strategy has in its place. job-dir: what the chief writes before
it trains. trace: the graphs of the loss and of the step are made. first step: its input, and the step.
"""

PHASES: tuple[str, ...] = get_args(Phase)
LAUNCHED_VARIABLE = "HPC_TRAIN_LAUNCHED"
"""When the launcher of the ranks has begun, in seconds since 1970; set by what launches them."""


class StartTimeline:
    """The phases of a start, one after the other without gaps. Local; for one thread.

    Args:
        began: When the process did, in seconds since 1970. launched: When its launcher did; None: it has none.
    """

    def __init__(self, began: float, launched: float | None = None) -> None:
        self._secs: dict[str, float] = {}
        self._phase: Phase = "Python"
        self._since = began
        if launched is not None and launched < began:
            self._secs["launch"] = began - launched
        self._over = False

    def begin(self, phase: Phase) -> None:
        """A phase begins, which may go on with an earlier one of the name. After the end, the next job's start does."""
        now = time.time()
        if self._over:
            self._secs, self._over = {}, False
        else:
            self._close(now)
        self._phase, self._since = phase, now

    @contextmanager
    def within(self, phase: Phase) -> Iterator[None]:
        """A context in which `phase` lasts, in the midst of another one. Of no effect after the end."""
        if self._over:
            yield
            return
        around = self._phase
        self.begin(phase)
        try:
            yield
        finally:
            self.begin(around)

    def end(self) -> dict[str, float] | None:
        """The start is over: the seconds of each phase, in the order of PHASES; None where it was over before."""
        if self._over:
            return None
        self._close(time.time())
        self._over = True
        return {phase: self._secs[phase] for phase in PHASES if phase in self._secs}

    def _close(self, now: float) -> None:
        self._secs[self._phase] = self._secs.get(self._phase, 0.0) + max(0.0, now - self._since)


def process_began() -> float:
    """When this process has begun, in seconds since 1970, to a hundredth."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - max(0.0, age)


def _launched() -> float | None:
    """What the launcher has said; what this process starts is not to hear it."""
    try:
        return float(os.environ.pop(LAUNCHED_VARIABLE, ""))
    except ValueError:
        return None


start_timeline = StartTimeline(process_began(), _launched())
"""This process's."""
