"""What NVML tells of why a rank's GPU computes slowly: its clock, and what holds it down. Local.

Source: NVIDIA, NVML API reference, nvmlClocksEventReasons.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

GPU_CLOCK, GPU_HELD = "gpu_clock", "gpu_held"
"""Of the rank's GPU: the clock of its processors as a share of the highest, and NVML's bits of what holds it down."""
HELD_BY = {0x4: "its power limit", 0x8: "the board (heat or power)", 0x60: "heat", 0x80: "the power supply"}
SM = 1
LEAST_SECS = 1.0
"""NVML is asked so often at most."""
LOW_CLOCK = 0.8


class GpuClock:
    """Of the first GPU that this process may use; nothing is told where there is none, or no pynvml (nvidia-ml-py).

    Args:
        library: In the place of pynvml. clock: in the place of time.monotonic.
    """

    def __init__(self, library: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._asked_at, self._told = clock, -math.inf, dict[str, float]()
        self._library, self._device = library, None
        with suppress(Exception):  # of other versions, too
            if library is None and Path("/proc/driver/nvidia/version").exists():
                import pynvml as found  # type: ignore[import-not-found,import-untyped,unused-ignore]

                self._library = found
            if self._library is not None:
                self._library.nvmlInit()
                self._device = self._first(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip())

    def _first(self, name: str) -> Any:
        if name.isdecimal():
            return self._library.nvmlDeviceGetHandleByIndex(int(name))
        return self._library.nvmlDeviceGetHandleByUUID(name) if name.startswith("GPU-") else None

    def taken(self) -> dict[str, float]:
        """By the names above, what was so within the last second."""
        if self._device is None or self._clock() - self._asked_at < LEAST_SECS:
            return self._told
        self._asked_at, self._told = self._clock(), {}
        library, device = self._library, self._device
        with suppress(Exception):
            highest = float(library.nvmlDeviceGetMaxClockInfo(device, SM))
            self._told[GPU_CLOCK] = float(library.nvmlDeviceGetClockInfo(device, SM)) / highest
        with suppress(Exception):
            self._told[GPU_HELD] = float(library.nvmlDeviceGetCurrentClocksThrottleReasons(device))
        return self._told


def in_words(clock: float | None = None, held: float | None = None) -> str:
    """What these say of a slow rank; empty where nothing. Pure."""
    bits = int(held) if held is not None and 0 <= held < 2**53 else 0
    reasons = [reason for mask, reason in HELD_BY.items() if bits & mask]
    found = [f"its GPU is held down by {' and '.join(reasons)}"] if reasons else []
    if clock is not None and clock < LOW_CLOCK:
        found.append(f"its GPU's clock is at {clock:.0%} of the highest")
    return "; ".join(found)
