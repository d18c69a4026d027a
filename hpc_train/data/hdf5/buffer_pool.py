"""Arrays for batches that are used again and again: memory that was never touched costs ten times as much to fill."""

from __future__ import annotations

import math
import weakref
from collections import defaultdict

import numpy as np

ALIGNMENT = 64
"""What TensorFlow takes as its own memory without a copy, and processors copy fastest."""


class BufferPool:
    """Hands out arrays, and takes each one's memory back when nothing refers to the array or to a view of it.

    TensorFlow refers to an array for as long as a tensor shares its memory.
    """

    def __init__(self) -> None:
        self._free: defaultdict[int, list[np.ndarray]] = defaultdict(list)

    def take(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """An uninitialised array, C-contiguous and aligned to 64 bytes."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        free = self._free[size]
        try:
            memory = free.pop()
        except IndexError:
            memory = aligned_bytes(size)
        lease = _Lease(memory, shape, dtype)
        weakref.finalize(lease, free.append, memory).atexit = False
        return np.asarray(lease)


class _Lease:
    """What an array from the pool and all its views have as their base: it lives as long as any of them."""

    def __init__(self, memory: np.ndarray, shape: tuple[int, ...], dtype: str) -> None:
        self.__array_interface__ = {
            "shape": shape,
            "typestr": np.dtype(dtype).str,
            "data": (memory.ctypes.data, False),
            "version": 3,
        }


def aligned_bytes(size: int) -> np.ndarray:
    """Uninitialised memory, uint8 `[size]`, aligned to 64 bytes."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]
