"""HeapValues: rows of different lengths in a file's global heaps, read past libhdf5, which would believe any length."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np

from hpc_train.data.hdf5.data_file import DataFile
from hpc_train.data.hdf5.global_heap import HEADER, MAX_HEAP_BYTES, objects_of
from hpc_train.data.hdf5.layout import REFERENCE

MAX_HELD_BYTES = 32 << 20
"""Of heaps that were read: rows that follow each other lie in the same one, of 4 KiB where rows are short."""


class HeapValues:
    """The heaps of one file. Threads may share it.

    Args:
        base: The byte of the file from which addresses count.
        file_bytes: The file's size.
    """

    def __init__(self, file: DataFile, base: int, file_bytes: int) -> None:
        self._file, self._base, self._file_bytes = file, base, file_bytes
        self._heaps: OrderedDict[int, tuple[memoryview, dict[int, tuple[int, int]]]] = OrderedDict()
        self._held_bytes = 0
        self._lock = threading.Lock()

    def read(self, references: np.ndarray, itemsize: int) -> list[memoryview]:
        """The bytes of each row that `references` (REFERENCE `[k]`) lead to, `length * itemsize` of them.

        Raises:
            OSError: The file cannot be read. ValueError: A heap is damaged, or has no such row; args[1] is which.
        """
        assert references.dtype == REFERENCE
        rows: list[memoryview] = []
        columns = (references[name].tolist() for name in ("length", "address", "number"))
        address, data, objects = -1, memoryview(b""), dict[int, tuple[int, int]]()
        for length, at, number in zip(*columns, strict=True):
            if not length:
                rows.append(data[:0])
                continue
            try:
                if at != address:
                    (data, objects), address = self._heap(at), at
                start, size = objects.get(number, (0, 0))
                if length * itemsize > size:
                    raise ValueError(f"it declares {length:,} values, which its heap has not")
            except ValueError as error:
                raise ValueError(str(error), len(rows)) from None
            rows.append(data[start : start + length * itemsize])
        return rows

    def _heap(self, address: int) -> tuple[memoryview, dict[int, tuple[int, int]]]:
        """What a heap holds, and where in it each object lies."""
        with self._lock:
            if address in self._heaps:
                self._heaps.move_to_end(address)
                return self._heaps[address]
        at = address + self._base
        header = np.zeros(HEADER.size, np.uint8)
        if at > self._file_bytes - HEADER.size:
            raise ValueError("it lies beyond the end of the file")
        self._file.read_into(at, header)
        size = HEADER.unpack(header.data)[1]
        if size > min(MAX_HEAP_BYTES, self._file_bytes - at):
            raise ValueError(f"its heap at byte {at:,} is damaged")
        whole = np.empty(size, np.uint8)
        self._file.read_into(at, whole)
        data = memoryview(whole.tobytes())
        found = objects_of(lambda place, count: bytes(data[place - at : place - at + count]), at, self._file_bytes)
        objects = {number: (place - at, min(length, at + size - place)) for number, place, length in found}
        with self._lock:
            if address not in self._heaps:
                self._heaps[address] = data, objects
                self._held_bytes += size
            while self._held_bytes > MAX_HELD_BYTES and len(self._heaps) > 1:
                self._held_bytes -= len(self._heaps.popitem(last=False)[1][0])
        return data, objects
