"""Numbers to exchange, whose sums are known exactly, and whether there is room for them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from hpc_train.data.loading.memory import available_bytes
from hpc_train.telemetry.units import size

PERIOD = 13
"""Sums of small whole numbers are exact in float32 up to 2^24: with 1,500 ranks at least."""
SHARED_FOLDER = "/dev/shm"
COPIES = 8
"""Of a size, that a rank holds of it at a time: two arrays, tensors and results, MPI's and Horovod's buffers."""
SPARE_BYTES = 256 << 20


def pattern(count: int, factor: int = 1) -> np.ndarray:
    """float32 [count]: 1 to 13 again and again, times `factor`."""
    whole = np.resize(np.arange(1, PERIOD + 1, dtype=np.float32), count)
    whole *= factor
    return whole


def wrong(found: np.ndarray, factor: float) -> int:
    """How many numbers of `found` (float32 [count]) are not those of `pattern(count, factor)`."""
    found = found.reshape(-1)
    period, count = np.arange(1, PERIOD + 1, dtype=np.float32) * np.float32(factor), found.size
    rows = found[: count - count % PERIOD].reshape(-1, PERIOD)
    return int((rows != period).sum()) + int((found[count - count % PERIOD :] != period[: count % PERIOD]).sum())


def missing_room(nbytes: int, ranks_here: int) -> str | None:
    """Why `ranks_here` ranks of this node cannot measure with `nbytes`, as a sentence; None: they can."""
    needed, there = COPIES * nbytes * ranks_here + SPARE_BYTES, available_bytes()
    if needed <= there:
        return None
    return f"needs {size(needed)} of memory on a node ({COPIES} times the size for each rank), which has {size(there)}"


def missing_shared_room(nbytes: int, windows: int) -> str | None:
    """Why there cannot be so many windows of `nbytes` in the memory that ranks of a node share."""
    if not Path(SHARED_FOLDER).is_dir():
        return None
    about = os.statvfs(SHARED_FOLDER)
    needed, there = windows * nbytes + SPARE_BYTES // 16, about.f_bavail * about.f_frsize
    if needed <= there:
        return None
    return f"needs {size(needed)} in {SHARED_FOLDER}, which has {size(there)} free (docker run --shm-size)"
