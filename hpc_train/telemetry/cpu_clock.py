"""What a rank's cores tell of why it computes slowly. Local."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hpc_train.files import read_bytes

CPUS, STAT = Path("/sys/devices/system/cpu"), Path("/proc/stat")
MAX_BYTES, MAX_STAT_BYTES = 64, 1 << 20
CLOCK, THROTTLED, TAKEN = "clock", "throttled", "core_taken"
"""Of the rank's core: its clock as a share of the highest, and how often it was throttled (heat, power). Of its cores'
time: the share that other processes had, or other guests of the machine."""
LOW_CLOCK, MUCH_TAKEN = 0.8, 0.15
LEAST_SECS = 1.0
"""Over so long at least what others had is measured."""


class CpuClock:
    """What has changed since it was last asked.

    Args:
        cores: Of this rank: with ranks that are not bound, a part of those that it may run on.
        cpus, stat: In the place of /sys/devices/system/cpu and /proc/stat. clock: in the place of time.monotonic.
    """

    def __init__(
        self, cores: int, cpus: Path = CPUS, stat: Path = STAT, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cores, self._cpus, self._stat, self._clock = cores, cpus, stat, clock
        self._throttled = self._throttles(self._cpu())
        self._seen = clock(), self._others_secs()
        self._taken: float | None = None

    def taken(self) -> dict[str, float]:
        """By the names above, as far as the machine tells."""
        cpu, found = self._cpu(), {}
        clock, highest = (self._number(f"cpu{cpu}/cpufreq/{name}_freq") for name in ("scaling_cur", "cpuinfo_max"))
        if clock is not None and highest:
            found[CLOCK] = clock / highest
        throttled = self._throttles(cpu)
        if throttled is not None:
            before = self._throttled or (cpu, throttled[1])
            found[THROTTLED] = float(max(0, throttled[1] - before[1])) if before[0] == cpu else 0.0
        self._throttled = throttled
        taken = self._core_taken()
        return found if taken is None else {**found, TAKEN: taken}

    @staticmethod
    def _cpu() -> int:
        """The core that this thread runs on, or the first that it may run on."""
        with suppress(OSError, ValueError, IndexError):
            return int(read_bytes("/proc/self/stat", 4096).rpartition(b")")[2].split()[36])
        return min(os.sched_getaffinity(0))

    def _throttles(self, cpu: int) -> tuple[int, int] | None:
        count = self._number(f"cpu{cpu}/thermal_throttle/core_throttle_count")
        return None if count is None else (cpu, count)

    def _core_taken(self) -> float | None:
        """What others had of this rank's cores, lately; None: not known."""
        (before_at, before), now = self._seen, self._clock()
        if now - before_at >= LEAST_SECS:
            others = self._others_secs()
            self._seen, self._taken = (now, others), None
            if before is not None and others is not None and before[0] == others[0]:
                own = min(self._cores, len(others[0]))  # OMP_NUM_THREADS may be more than there are
                spare = len(others[0]) - own  # which others may have
                self._taken = min(1.0, max(0.0, (others[1] - before[1]) / (now - before_at) - spare) / own)
        return self._taken

    def _others_secs(self) -> tuple[set[int], float] | None:
        """The cores that this thread may run on, and for how long others than this process have run there."""
        cores, ticks = os.sched_getaffinity(0), 0
        with suppress(OSError, ValueError, IndexError):
            lines = read_bytes(self._stat, MAX_STAT_BYTES, follow=True).split(b"\n")
            numbers = {line.split()[0]: list(map(int, line.split()[1:9])) for line in lines if line[:3] == b"cpu"}
            for core in cores:
                user, nice, system, _, _, irq, softirq, steal = numbers[b"cpu%d" % core]
                ticks += user + nice + system + irq + softirq + steal
            return cores, ticks / os.sysconf("SC_CLK_TCK") - sum(os.times()[:2])
        return None

    def _number(self, name: str) -> int | None:
        with suppress(OSError, ValueError):
            return int(read_bytes(self._cpus / name, MAX_BYTES, follow=True))
        return None


def in_words(clock: float | None = None, throttled: float | None = None, taken: float | None = None) -> str:
    """What these say of a slow rank; empty where nothing. Pure."""
    found = []
    if throttled:
        found.append(f"its core was throttled {throttled:.0f} times since the last record (heat or power)")
    if clock is not None and clock < LOW_CLOCK:
        found.append(f"its core's clock is at {clock:.0%} of the highest")
    if taken is not None and taken > MUCH_TAKEN:
        found.append(f"other processes have {taken:.0%} of the time of its cores")
    return "; ".join(found)
