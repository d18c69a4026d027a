"""Drops files from the page cache, and looks whether they are gone."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable

import numpy as np

from support.usage import MissingError

METHOD = "posix_fadvise(POSIX_FADV_DONTNEED) on each file after fsync, then mincore to see that the pages are gone"
MAX_RESIDENT = 0.01
_libc = ctypes.CDLL(None, use_errno=True)


class CacheStaysError(MissingError):
    """The page cache cannot be dropped here."""


def drop(paths: Iterable[str]) -> None:
    """Drops `paths` from the page cache.

    Raises:
        CacheStaysError: More than 1 % of a file is still in memory.
    """
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            share = _resident(descriptor)
        finally:
            os.close(descriptor)
        if share > MAX_RESIDENT:
            raise CacheStaysError(f"{share:.0%} of a file stayed in memory after posix_fadvise")


def _resident(descriptor: int) -> float:
    size = os.fstat(descriptor).st_size
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
        failed = _libc.mincore(
            ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data)
        )
        del view
    if failed:
        raise CacheStaysError(f"mincore failed: {os.strerror(ctypes.get_errno())}")
    return float((pages & 1).mean())
