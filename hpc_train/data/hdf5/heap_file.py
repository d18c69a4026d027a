"""HeapFile: a file whose attributes HDF5 reads once what they declare, and the heaps of their texts, are bounded."""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path
from typing import Any

import h5py

from hpc_train.data.hdf5.object_header import check_attributes
from hpc_train.files import open_regular

_HDF5, _SIGNATURE = b"\x89HDF\r\n\x1a\n", b"GCOL\x01"
_HEADER, _OBJECT = struct.Struct("<5s3xQ"), struct.Struct("<H6xQ")
MAX_OBJECTS, MAX_HEAP_BYTES = 1 << 16, 64 << 20
"""Of one heap: its objects have numbers of 16 bits, and HDF5 makes it no larger than its largest string."""


class HeapFile(io.RawIOBase):
    """`path`, a regular file, for h5py.File(…, "r"), which is to be closed before this is. Reading it takes no lock.

    libhdf5 1.14 goes round an object of no size in a global heap for ever (H5HG__cache_heap_deserialize): so a heap is
    walked here when HDF5 asks for it, and refused unless it is one. See III.E of the HDF5 File Format Specification.

    Args:
        follow: Whether `path` may be a symbolic link.
    """

    def __init__(self, path: str | Path, follow: bool = True) -> None:
        self._descriptor = open_regular(path, follow=follow)
        self._size, self._at = os.fstat(self._descriptor).st_size, 0
        self._is_plain = False

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()

    def attributes(self, found: h5py.Group | h5py.Dataset, *names: str) -> dict[str, Any]:
        """Those of the attributes `names`, numbers or texts, that `found`, of this file, has.

        Raises:
            OSError: The file cannot be read. ValueError: one is something else, or longer than any heap.
        """
        if not self._is_plain:
            if self._read(0, len(_HDF5)) != _HDF5 or found.file.id.get_create_plist().get_sizes() != (8, 8):
                raise ValueError("it is HDF5 of another kind")
            self._is_plain = True
        address, longest = h5py.h5o.get_info(found.id).addr, min(self._size, MAX_HEAP_BYTES)
        there = check_attributes(self._read, address, {name.encode(): name for name in names}, longest)
        return {name: found.attrs[name] for name in there}

    def _read(self, at: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, at)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, out: memoryview) -> int:  # type: ignore[override]
        """Fills `out`.

        Raises:
            OSError: The file cannot be read, or ends before. ValueError: HDF5 reads a heap that is none.
        """
        done = 0
        while done < len(out):
            read = os.preadv(self._descriptor, [out[done:]], self._at + done)
            if not read:
                raise OSError("it ends too early")
            done += read
        if bytes(out[: len(_SIGNATURE)]) == _SIGNATURE:
            self._check_heap(self._at)
        self._at += done
        return done

    def _check_heap(self, at: int) -> None:
        header = self._read(at, _HEADER.size)
        _, size = _HEADER.unpack(header.ljust(_HEADER.size, b"\0"))
        place, end = at + _HEADER.size, at + size
        for _ in range(MAX_OBJECTS):
            if end - place < _OBJECT.size or end > self._size or size > MAX_HEAP_BYTES:
                break
            number, length = _OBJECT.unpack(self._read(place, _OBJECT.size))
            if not number and length < _OBJECT.size:  # the free space, whose length counts its header
                break
            place += _OBJECT.size + -(-length // 8) * 8 if number else length
        if not 0 <= end - place < _OBJECT.size:
            raise ValueError(f"the heap of strings at byte {at:,} is damaged")
