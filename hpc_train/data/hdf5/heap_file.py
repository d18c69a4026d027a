"""HeapFile: a file whose attributes HDF5 reads once what they declare, and the heaps of their texts, are bounded."""

from __future__ import annotations

import io
import os
from collections import deque
from pathlib import Path
from typing import Any

import h5py

from hpc_train.data.hdf5.global_heap import MAX_HEAP_BYTES, SIGNATURE, objects_of, read_at
from hpc_train.data.hdf5.object_header import check_attributes
from hpc_train.data.hdf5.virtual import check_link
from hpc_train.files import open_regular

_HDF5 = b"\x89HDF\r\n\x1a\n"


class HeapFile(io.RawIOBase):
    """`path`, a regular file, for h5py.File(…, "r"), which is to be closed before this is. Reading it takes no lock.

    A heap is walked when HDF5 asks for it, and refused unless it is one (global_heap.objects_of).

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

    def own(self, group: h5py.Group, name: str) -> Any:
        """What `group`, of this file, has as `name` itself, and not in any other; None where it is a link, or nothing.

        Raises:
            OSError: The file cannot be read. ValueError: HDF5 may not open it.
        """
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            return None
        check_link(group, name, self._read, self._size)
        return group[name]

    def _read(self, at: int, size: int) -> bytes:
        return read_at(self._descriptor, at, size)

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
        if bytes(out[: len(SIGNATURE)]) == SIGNATURE:
            deque(objects_of(self._read, self._at, self._size), 0)
        self._at += done
        return done
