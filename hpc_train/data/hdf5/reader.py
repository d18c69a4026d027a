"""Reader: rows of a ShardSet, by number, as numpy arrays, each dataset by the fastest way that its layout allows."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from hpc_train.data.hdf5 import contiguous
from hpc_train.data.hdf5.buffer_pool import BufferPool
from hpc_train.data.hdf5.columns import Column
from hpc_train.data.hdf5.data_file import DataFile
from hpc_train.data.hdf5.plain_column import PlainColumn
from hpc_train.data.hdf5.ragged_column import RaggedColumn
from hpc_train.data.hdf5.shards import ShardSet
from hpc_train.data.hdf5.stored import Stored, all_stored
from hpc_train.data.ragged import Ragged, cut_at_zero, first_invalid
from hpc_train.errors import UserError

MAX_OPEN_FILES = 128
Rows = np.ndarray | Ragged
"""Of a column."""


class NotTextError(OSError, UserError):
    """A text in a shard is not UTF-8."""


class Reader:
    """Reads rows of all columns of `shards`. A context manager: leaving it closes the files. Threads may share it.

    Contiguous datasets are copied from memory maps, or read with `preadv` (see ContiguousColumn). Chunks are read and
    decoded by `threads` threads into a cache. What only HDF5 can read is read through it.

    Attributes:
        files: Of the shards. executor: Reads and decodes. hdf5: Held while the HDF5 library is used.
    """

    def __init__(
        self, shards: ShardSet, threads: int = 1, cached_rows: int = 0, cached_runs: int = 1, scattered: bool = False
    ) -> None:
        """Opens nothing yet.

        Args:
            cached_rows: Rows of chunked datasets to keep decoded, in `cached_runs` runs of contiguous rows.
            scattered: Rows will be asked for at random, from more data than memory holds.
        """
        few = len(shards.paths) <= MAX_OPEN_FILES
        self.files = [DataFile(path, few) for path in shards.paths]
        self._pool = BufferPool()
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix="hpc_train-read")
        self._idle = threading.Condition()
        self._users, self._closed = 0, False
        self.shards, self.scattered, self.hdf5 = shards, scattered, threading.Lock()
        self._plain: list[tuple[int, PlainColumn]] = []
        self._ragged: list[tuple[int, RaggedColumn]] = []
        self._stored_columns: list[PlainColumn] = []
        stored = all_stored(shards)
        held = _held(stored)
        for number, each in enumerate(stored):
            slots = [max(one.cache_slots(cached_rows, cached_runs), threads + 1) for one in each]
            made = [PlainColumn(self, one, k, id(one) in held) for one, k in zip(each, slots, strict=True)]
            self._stored_columns += made
            if shards.columns[number].kind == "numbers":
                self._plain.append((number, made[0]))
            else:
                self._ragged.append((number, RaggedColumn(self, number, each, made)))
        self._columns: list[PlainColumn | RaggedColumn] = [*(c for _, c in self._plain), *(c for _, c in self._ragged)]
        self._texts = [number for number, column in enumerate(shards.columns) if column.is_text]
        self._is_mixed = bool(self._texts or self._ragged)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *raised: object) -> None:
        with self._idle:
            self._closed = True
            while self._users:
                self._idle.wait()
        self.executor.shutdown(cancel_futures=True)
        for column in self._columns:
            column.close()
        self._columns, self._plain, self._ragged, self._stored_columns = [], [], [], []  # which refer to this reader
        for file in self.files:
            file.close()

    def use_copy(self, shard: int, descriptor: int) -> None:
        """Reads a shard from an open file of the same content from now on; a reader that is closed takes no note."""
        with self._idle:
            if self._closed:
                return
            self._users += 1
        try:
            self.files[shard].use_copy(descriptor)
            for column in self._stored_columns:
                column.map_anew(self.files[shard])
        finally:
            with self._idle:
                self._users -= 1
                self._idle.notify_all()

    def read(self, rows: np.ndarray) -> list[Rows]:
        """The rows numbered `rows` (int64 `[B]`, in any order), one array `[B, ...]` or Ragged a column.

        Arrays have the stored dtype in this machine's byte order, and are aligned to 64 bytes. Their memory is used
        again when they and all views of them are gone.

        Raises:
            OSError: A file cannot be read; it has path and errno, or names what is damaged, or a text that is no UTF-8.
            RuntimeError: The reader is closed. Closing waits for reads under way: they use memory maps.
        """
        with self._idle:
            if self._closed:
                raise RuntimeError("the reader is closed")
            self._users += 1
        try:
            return self._read(rows)
        finally:
            with self._idle:
                self._users -= 1
                self._idle.notify_all()

    def _read(self, rows: np.ndarray) -> list[Rows]:
        count, columns = len(rows), self.shards.columns
        arrays = [self._pool.take((count, *columns[number].shape), columns[number].dtype) for number, _ in self._plain]
        first = int(rows[0]) if count else 0
        in_order = count and int(rows[-1]) - first + 1 == count and (count < 3 or bool((np.diff(rows) == 1).all()))
        if in_order:
            for shard, low, high in self._runs(first, first + count):
                start = int(self.shards.starts[shard]) + low - first
                for (_, column), array in zip(self._plain, arrays, strict=True):
                    column.run(shard, low, array[start : start + high - low])
            if not self._is_mixed:
                return list(arrays)
        part = self.shards.starts.searchsorted(rows, side="right") - 1
        local = rows - self.shards.starts[part]
        if not in_order:
            for (_, column), array in zip(self._plain, arrays, strict=True):
                column.gather(part, local, array)
            if not self._is_mixed:
                return list(arrays)
        found: dict[int, Rows] = {number: array for (number, _), array in zip(self._plain, arrays, strict=True)}
        found |= {number: column.read(part, local) for number, column in self._ragged}
        for number in self._texts:
            self._check_text(columns[number], found[number], part, local)
        return [found[number] for number in range(len(columns))]

    def _check_text(self, column: Column, rows: Rows, part: np.ndarray, local: np.ndarray) -> None:
        if isinstance(rows, Ragged):
            values, lengths = rows.values, rows.lengths
        else:
            cut_at_zero(rows)
            values, lengths = rows.reshape(-1), np.full(rows.shape, rows.itemsize)
        wrong = first_invalid(values, lengths)
        if wrong is not None:
            row = wrong // max(1, math.prod(lengths.shape[1:]))
            path = self.shards.paths[int(part[row])]
            raise NotTextError(
                f"{path}: dataset {column.name!r}, row {local[row]}: is not text in UTF-8; write the shard anew, from "
                "text decoded as what it is"
            )

    def begin(self, runs: Iterable[tuple[int, int]]) -> list[Future[None]]:
        """Begins to read runs of rows, (first, end), one after the other, into the cache or the kernel's.

        Returns:
            What to wait for; they raise what reading raises.
        """
        parts = [part for run in runs for part in self._runs(*run)]
        return [future for column in self._columns for future in column.begin(parts)]

    def expect(self, rows: np.ndarray) -> None:
        """Announces that `rows` will be read next: chunks are decoded meanwhile, and slow files begin to be fetched."""
        waiting = [column for column in self._columns if column.wants_to_know]
        if waiting:
            part = self.shards.starts.searchsorted(rows, side="right") - 1
            local = rows - self.shards.starts[part]
            for column in waiting:
                column.expect(part, local)

    def drop(self, runs: Iterable[tuple[int, int]], keep: Iterable[tuple[int, int]]) -> None:
        """The chunks of these runs of rows make room first, except those that `keep` needs too."""
        own, kept = ([run for ends in some for run in self._runs(*ends)] for some in (runs, keep))
        for column in self._columns:
            column.drop(own, kept)

    def _runs(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(shard, first row in it, end) of the parts of a run of rows."""
        starts = self.shards.starts
        shard = int(starts.searchsorted(first, side="right")) - 1
        while first < end:
            start = int(starts[shard])
            stop = min(end, start + self.shards.shard_rows[shard])
            yield shard, first - start, stop - start
            shard, first = shard + 1, stop


def _held(stored: list[list[Stored]]) -> set[int]:
    """The smallest datasets, by `id`, as many as may be kept in memory together."""
    each = [one for some in stored for one in some]
    sizes = sorted((sum(one.rows) * one.column.row_bytes, number) for number, one in enumerate(each))
    held, total = set(), 0
    for size, number in sizes:
        total += size
        if total <= contiguous.MAX_HELD_BYTES:
            held.add(id(each[number]))
    return held
