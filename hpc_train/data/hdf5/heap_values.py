"""HeapValues: rows of different lengths in a file's global heaps, read past libhdf5, which would believe any length."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from hpc_train.data.hdf5.data_file import DataFile
from hpc_train.data.hdf5.global_heap import HEADER, MAX_HEAP_BYTES, index_of

MAX_HELD_BYTES = 128 << 20
"""Of heaps that were read: rows that follow each other lie in the same one, some hundred where they are short."""


@dataclass(frozen=True)
class Heap:
    """A heap's bytes, and where in them each object lies, int64 by number; sizes: of each, 0 for those it has not."""

    data: memoryview
    starts: np.ndarray
    sizes: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + self.starts.nbytes + self.sizes.nbytes


class HeapCache:
    """The heaps used last, of all files of a column. Threads may share it."""

    def __init__(self) -> None:
        self._heaps: OrderedDict[tuple[str, int], Heap] = OrderedDict()
        self._held_bytes = 0
        self._lock = threading.Lock()

    def get(self, key: tuple[str, int]) -> Heap | None:
        """The heap of a file at an address."""
        with self._lock:
            if key in self._heaps:
                self._heaps.move_to_end(key)
            return self._heaps.get(key)

    def put(self, key: tuple[str, int], heap: Heap) -> None:
        """Keeps a heap; those that were not used for longest make room."""
        with self._lock:
            if key not in self._heaps:
                self._heaps[key] = heap
                self._held_bytes += heap.nbytes
            while self._held_bytes > MAX_HELD_BYTES and len(self._heaps) > 1:
                self._held_bytes -= self._heaps.popitem(last=False)[1].nbytes


class HeapValues:
    """The heaps of one file. Threads may share it.

    Args:
        base: The byte of the file from which addresses count.
        file_bytes: The file's size.
    """

    def __init__(self, file: DataFile, base: int, file_bytes: int, cache: HeapCache) -> None:
        self._file, self._base, self._file_bytes, self._cache = file, base, file_bytes, cache

    def read(self, references: np.ndarray, itemsize: int) -> list[memoryview]:
        """The bytes of each row that `references` (REFERENCE `[k]`) lead to, `length * itemsize` of them.

        Raises:
            OSError: The file cannot be read. ValueError: A heap is damaged, or has no such row; args[1] is which.
        """
        sizes = references["length"].astype(np.int64) * itemsize
        rows = [memoryview(b"")] * len(references)
        some = np.flatnonzero(sizes)
        addresses, first, of_row = np.unique(references["address"][some], return_index=True, return_inverse=True)
        order = np.argsort(of_row, kind="stable")
        bounds = np.searchsorted(of_row[order], np.arange(len(addresses) + 1))
        for k, address in enumerate(addresses.tolist()):
            mine = some[order[bounds[k] : bounds[k + 1]]]
            try:
                heap = self._heap(address)
            except ValueError as error:
                raise ValueError(str(error), int(some[first[k]])) from None
            numbers, wanted = references["number"][mine], sizes[mine]
            known = np.minimum(numbers, len(heap.sizes) - 1)
            wrong = (numbers >= len(heap.sizes)) | (heap.sizes[known] < wanted)
            if wrong.any():
                row = int(mine[int(np.argmax(wrong))])
                raise ValueError(f"it declares {sizes[row] // itemsize:,} values, which its heap has not", row)
            starts = heap.starts[known]
            for row, start, end in zip(mine.tolist(), starts.tolist(), (starts + wanted).tolist(), strict=True):
                rows[row] = heap.data[start:end]
        return rows

    def _heap(self, address: int) -> Heap:
        key = (self._file.path, address)
        found = self._cache.get(key)
        if found is not None:
            return found
        at = address + self._base
        if at > self._file_bytes - HEADER.size:
            raise ValueError("it lies beyond the end of the file")
        header = np.zeros(HEADER.size, np.uint8)
        self._file.read_into(at, header)
        size = HEADER.unpack(header.data)[1]
        if not HEADER.size <= size <= min(MAX_HEAP_BYTES, self._file_bytes - at):
            raise ValueError(f"its heap at byte {at:,} is damaged")
        whole = np.empty(size, np.uint8)
        self._file.read_into(at, whole)
        data = whole.tobytes()
        heap = Heap(memoryview(data), *index_of(data, at))
        self._cache.put(key, heap)
        return heap
