"""Heaps of an HDF5 file, walked past libhdf5: III.E of the HDF5 File Format Specification."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

Read = Callable[[int, int], bytes]
"""So many bytes from an address, fewer at the end of the file."""

SIGNATURE = b"GCOL\x01"
MAX_OFFSET = 1 << 62
HEADER, _OBJECT = struct.Struct("<5s3xQ"), struct.Struct("<H6xQ")
MAX_OBJECTS, MAX_HEAP_BYTES = 1 << 16, 64 << 20
"""Of one heap: its objects have numbers of 16 bits, and HDF5 makes it no larger than its largest string."""


def read_at(descriptor: int, at: int, length: int) -> bytes:
    """Bytes of an open file, for `Read`; none where no file can have any."""
    return os.pread(descriptor, min(length, MAX_HEAP_BYTES), at) if at < MAX_OFFSET else b""


def objects_of(read: Read, at: int, file_bytes: int) -> Iterator[tuple[int, int, int]]:
    """The objects of the heap at address `at`: number, address and bytes of each.

    libhdf5 1.14 goes round an object of no size for ever (H5HG__cache_heap_deserialize).

    Raises:
        ValueError: At the end, where it is no heap, or larger than the file or than any that HDF5 writes.
    """
    signature, size = HEADER.unpack(read(at, HEADER.size).ljust(HEADER.size, b"\0"))
    if signature != SIGNATURE or at + size > file_bytes or size > MAX_HEAP_BYTES:
        raise _damaged(at)
    yield from _walked(lambda place: _OBJECT.unpack(read(place, _OBJECT.size)), at, size)


def index_of(heap: bytes, at: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each object of a heap, read whole from address `at`, lies in it, and its bytes: int64, by number.

    Raises:
        ValueError: As objects_of.
    """
    if heap[: len(SIGNATURE)] != SIGNATURE:
        raise _damaged(at)
    try:
        walked = list(_walked(partial(_OBJECT.unpack_from, heap), 0, len(heap)))
    except ValueError:
        raise _damaged(at) from None
    found = np.array(walked, np.int64).reshape(-1, 3)
    index = np.zeros((2, int(found[:, 0].max(initial=0)) + 1), np.int64)
    index[0, found[:, 0]], index[1, found[:, 0]] = found[:, 1], np.minimum(found[:, 2], len(heap) - found[:, 1])
    return index[0], index[1]


def _damaged(at: int) -> ValueError:
    return ValueError(f"the heap of strings at byte {at:,} is damaged")


def _walked(unpack: Callable[[int], tuple[Any, ...]], at: int, size: int) -> Iterator[tuple[int, int, int]]:
    """The objects of a heap of `size` bytes; `unpack` gives number and length of the one at a place."""
    place, end = at + HEADER.size, at + size
    if size >= HEADER.size:
        for _ in range(MAX_OBJECTS):
            if end - place < _OBJECT.size:
                break
            number, length = unpack(place)
            if not number and length < _OBJECT.size:  # the free space, whose length counts its header
                break
            if number:
                yield number, place + _OBJECT.size, length
            place += _OBJECT.size + -(-length // 8) * 8 if number else length
        if 0 <= end - place < _OBJECT.size:
            return
    raise _damaged(at)
