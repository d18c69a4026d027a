"""HeapFile: a file in which HDF5 reads strings of any length, once the heaps that hold them are known to end."""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path

from hpc_train.files import open_regular

_SIGNATURE = b"GCOL\x01"
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

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()

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
        header = os.pread(self._descriptor, _HEADER.size, at)
        _, size = _HEADER.unpack(header.ljust(_HEADER.size, b"\0"))
        place, end = at + _HEADER.size, at + size
        for _ in range(MAX_OBJECTS):
            if end - place < _OBJECT.size or end > self._size or size > MAX_HEAP_BYTES:
                break
            number, length = _OBJECT.unpack(os.pread(self._descriptor, _OBJECT.size, place))
            if not number and length < _OBJECT.size:  # the free space, whose length counts its header
                break
            place += _OBJECT.size + -(-length // 8) * 8 if number else length
        if not 0 <= end - place < _OBJECT.size:
            raise ValueError(f"the heap of strings at byte {at:,} is damaged")
