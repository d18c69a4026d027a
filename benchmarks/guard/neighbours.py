"""How many cores other processes take while something is measured: beside them, short measurements mean little."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

STAT = Path("/proc/stat")
IDLE = (3, 4)
"""Columns of /proc/stat: idle, and waiting for a disk (proc_stat(5)); the last two are part of others."""
COUNTED = 8


class Clocks(NamedTuple):
    """Seconds: by the clock, of all cores that were busy, and of those that this process and its children were.

    Children count, and theirs, once they have ended and were waited for.
    """

    secs: float
    busy: float
    own: float

    @classmethod
    def now(cls) -> Clocks:
        """As they stand."""
        return cls(time.perf_counter(), busy_secs(STAT.read_text()), sum(os.times()[:4]))

    def taken_by_others(self, later: Clocks) -> float:
        """Cores that other processes, or other virtual machines of this host, took from here to `later`."""
        secs = later.secs - self.secs
        return max(0.0, ((later.busy - self.busy) - (later.own - self.own)) / secs) if secs > 0 else 0.0


def busy_secs(stat: str) -> float:
    """Of all cores together since the machine was started, from the text of /proc/stat."""
    times = [int(word) for word in stat.partition("\n")[0].split()[1 : 1 + COUNTED]]
    return sum(ticks for column, ticks in enumerate(times) if column not in IDLE) / os.sysconf("SC_CLK_TCK")


def too_much(taken: float) -> bool:
    """Whether so many cores are more than those that this process may not use anyway, and a quarter of one."""
    return taken > (os.cpu_count() or 1) - len(os.sched_getaffinity(0)) + 0.25
