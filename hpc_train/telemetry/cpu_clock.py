"""What a core's clock tells of a rank that computes slowly. Local."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from hpc_train.files import read_bytes

CPUS = Path("/sys/devices/system/cpu")
MAX_BYTES = 64
CLOCK, THROTTLED = "clock", "throttled"
"""Of the rank's core: its clock as a share of the highest, and how often it was throttled (heat, power)."""


class CpuClock:
    """What has changed since it was last asked.

    Args:
        cpus: In the place of /sys/devices/system/cpu.
    """

    def __init__(self, cpus: Path = CPUS) -> None:
        self._cpus = cpus
        self._throttled = self._throttles(self._cpu())

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
        return found

    @staticmethod
    def _cpu() -> int:
        """The core that this thread runs on, or the first that it may run on."""
        with suppress(OSError, ValueError, IndexError):
            return int(read_bytes("/proc/self/stat", 4096).rpartition(b")")[2].split()[36])
        return min(os.sched_getaffinity(0))

    def _throttles(self, cpu: int) -> tuple[int, int] | None:
        count = self._number(f"cpu{cpu}/thermal_throttle/core_throttle_count")
        return None if count is None else (cpu, count)

    def _number(self, name: str) -> int | None:
        with suppress(OSError, ValueError):
            return int(read_bytes(self._cpus / name, MAX_BYTES, follow=True))
        return None


def in_words(clock: float | None, throttled: float | None) -> str:
    """What these say of a slow rank; empty where nothing. Pure."""
    found = []
    if throttled:
        found.append(f"its core was throttled {throttled:.0f} times since the last record (heat or power)")
    if clock is not None and clock < 0.8:
        found.append(f"its core's clock is at {clock:.0%} of the highest")
    return "; ".join(found)
