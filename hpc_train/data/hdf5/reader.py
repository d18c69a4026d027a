"""Reader: rows of a ShardSet, by number, as numpy arrays, each dataset by the fastest way that its layout allows."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from hpc_train.data.hdf5 import contiguous
from hpc_train.data.hdf5.buffer_pool import BufferPool
from hpc_train.data.hdf5.chunked import ChunkedColumn, ChunkedPart, Key
from hpc_train.data.hdf5.contiguous import ContiguousColumn
from hpc_train.data.hdf5.data_file import DataFile
from hpc_train.data.hdf5.input_file import InputFile, Stamp, require_unchanged
from hpc_train.data.hdf5.layout import Chunked, Contiguous, Opaque, give_hdf5_its_plugins
from hpc_train.data.hdf5.mapped_table import Part
from hpc_train.data.hdf5.shards import ShardSet

MAX_OPEN_FILES = 128
KINDS = (Contiguous, Chunked, Opaque)
PLAIN, CHUNKED = 0, 1


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
        held = _held_columns(shards)
        self._columns = []
        for number in range(len(shards.columns)):
            slots = max(cache_slots(shards, number, cached_rows, cached_runs), threads + 1)
            self._columns.append(_Column(self, number, slots, number in held))

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *raised: object) -> None:
        with self._idle:
            self._closed = True
            while self._users:
                self._idle.wait()
        self.executor.shutdown(cancel_futures=True)
        while self._columns:  # which refer to this reader
            self._columns.pop().close()
        for file in self.files:
            file.close()

    def read(self, rows: np.ndarray) -> list[np.ndarray]:
        """The rows numbered `rows` (int64 `[B]`, in any order), one array `[B, ...]` a column.

        Arrays have the stored dtype in this machine's byte order, and are aligned to 64 bytes. Their memory is used
        again when they and all views of them are gone.

        Raises:
            OSError: A file cannot be read; it has path and errno, or names what is damaged.
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

    def _read(self, rows: np.ndarray) -> list[np.ndarray]:
        count = len(rows)
        arrays = [self._pool.take((count, *column.shape), column.dtype) for column in self.shards.columns]
        first = int(rows[0]) if count else 0
        if count and int(rows[-1]) - first + 1 == count and (count < 3 or bool((np.diff(rows) == 1).all())):
            for shard, low, high in self._runs(first, first + count):
                start = int(self.shards.starts[shard]) + low - first
                for column, array in zip(self._columns, arrays, strict=True):
                    column.run(shard, low, array[start : start + high - low])
            return arrays
        part = self.shards.starts.searchsorted(rows, side="right") - 1
        local = rows - self.shards.starts[part]
        for column, array in zip(self._columns, arrays, strict=True):
            column.gather(part, local, array)
        return arrays

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


class _Column:
    """One column: each shard's part of it is read as its layout allows."""

    def __init__(self, reader: Reader, number: int, slots: int, held: bool) -> None:
        self._reader, shards = reader, reader.shards
        self._column = column = shards.columns[number]
        layouts = [layouts[number] for layouts in shards.layouts]
        kinds = [KINDS.index(type(layout)) for layout in layouts]
        self._kinds: np.ndarray = np.array(kinds)
        self._only_kind = kinds[0] if len(set(kinds)) == 1 else None
        swapped = [not np.dtype(layout.dtype).isnative and not isinstance(layout, Opaque) for layout in layouts]
        self._swapped: np.ndarray = np.array(swapped)
        self._any_swapped = any(swapped)
        self._outside: dict[int, dict[str, Stamp]] = {}
        each = list(enumerate(zip(reader.files, shards.shard_rows, layouts, strict=True)))
        plain = {i: Part(f, layout.offset, rows) for i, (f, rows, layout) in each if isinstance(layout, Contiguous)}
        chunked = {i: ChunkedPart(f, rows, layout) for i, (f, rows, layout) in each if isinstance(layout, Chunked)}
        self._plain_number: np.ndarray = np.cumsum(self._kinds == PLAIN) - 1
        size, decoding = column.row_bytes, (slots, reader.executor, reader.hdf5)
        self._plain = ContiguousColumn(list(plain.values()), size, held, reader.scattered) if plain else None
        self._chunked = ChunkedColumn(column.name, chunked, size, *decoding) if chunked else None

    def close(self) -> None:
        if self._plain:
            self._plain.close()

    def run(self, shard: int, first: int, out: np.ndarray) -> None:
        if self._plain and self._kinds[shard] == PLAIN:
            self._plain.run(int(self._plain_number[shard]), first, self._as_bytes(out))
            if self._swapped[shard]:
                out.byteswap(inplace=True)
            return
        self.gather(np.full(len(out), shard), np.arange(first, first + len(out)), out)

    def gather(self, part: np.ndarray, local: np.ndarray, out: np.ndarray) -> None:
        kinds = [self._only_kind] if self._only_kind is not None else np.unique(self._kinds[part]).tolist()
        if len(kinds) == 1:
            self._gather(kinds[0], part, local, out)
        else:
            for kind in kinds:
                mine = np.flatnonzero(self._kinds[part] == kind)
                rows = np.empty((len(mine), *out.shape[1:]), out.dtype)
                self._gather(kind, part[mine], local[mine], rows)
                out[mine] = rows
        if self._any_swapped:
            swapped = np.flatnonzero(self._swapped[part])
            out[swapped] = out[swapped].byteswap()

    def _gather(self, kind: int, part: np.ndarray, local: np.ndarray, out: np.ndarray) -> None:
        if kind == PLAIN and self._plain:
            self._plain.gather(self._plain_number[part], local, self._as_bytes(out))
        elif kind == CHUNKED and self._chunked:
            self._chunked.gather(part, local, self._as_bytes(out))
        else:
            for number in np.unique(part).tolist():
                mine = np.flatnonzero(part == number)
                out[mine] = self._read_through_hdf5(number, local[mine])

    def begin(self, runs: list[tuple[int, int, int]]) -> list[Future[None]]:
        futures = self._chunked.begin(self._keys(runs)) if self._chunked else []
        own = [(int(self._plain_number[s]), first, end) for s, first, end in runs if self._kinds[s] == PLAIN]
        if self._plain and not self._plain.is_held and own:
            futures.append(self._reader.executor.submit(self._plain.fetch, own))
        return futures

    @property
    def wants_to_know(self) -> bool:
        return self._chunked is not None or (self._plain is not None and self._plain.is_slow)

    def expect(self, part: np.ndarray, local: np.ndarray) -> None:
        if self._plain:
            mine = self._kinds[part] == PLAIN
            self._plain.expect(self._plain_number[part[mine]], local[mine])
        if self._chunked:
            mine = self._kinds[part] == CHUNKED
            self._chunked.expect(part[mine], local[mine])

    def drop(self, runs: list[tuple[int, int, int]], keep: list[tuple[int, int, int]]) -> None:
        if self._chunked:
            kept = set(self._keys(keep))
            self._chunked.drop([key for key in self._keys(runs) if key not in kept])

    def _keys(self, runs: list[tuple[int, int, int]]) -> Iterator[Key]:
        for shard, first, end in runs:
            if self._chunked and self._kinds[shard] == CHUNKED:
                yield from self._chunked.keys(shard, first, end)

    def _as_bytes(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(-1).view(np.uint8).reshape(len(array), self._column.row_bytes)

    def _read_through_hdf5(self, shard: int, local: np.ndarray) -> np.ndarray:
        distinct, places = np.unique(local, return_inverse=True)
        run = int(distinct[-1] - distinct[0]) + 1 == len(distinct)
        selection = slice(int(distinct[0]), int(distinct[-1]) + 1) if run else distinct
        give_hdf5_its_plugins()
        data_file = self._reader.files[shard]

        def read() -> np.ndarray:
            consent, checked = self._reader.shards.consent, shard in self._outside
            with self._reader.hdf5, InputFile(data_file.path, consent, checked) as file:
                dataset = file.dataset(self._column.name)
                assert dataset is not None, "it was one when the shards were found"
                rows: np.ndarray = dataset[selection][places]
                require_unchanged(self._outside.setdefault(shard, file.outside))
                return rows

        return data_file.retried(read)


def _held_columns(shards: ShardSet) -> set[int]:
    """The smallest contiguous columns, as many as may be kept in memory together."""
    sizes = sorted((shards.rows * column.row_bytes, number) for number, column in enumerate(shards.columns))
    held, total = set(), 0
    for size, number in sizes:
        total += size
        if total <= contiguous.MAX_HELD_BYTES:
            held.add(number)
    return held


def cache_slots(shards: ShardSet, number: int, rows: int, runs: int) -> int:
    """Bands of column `number` that `runs` runs of `rows` rows in all may lie in; 0 where none is chunked."""
    bands = _bands(shards, number)
    if not bands:
        return 0
    return min(sum(count for _, count in bands), rows // min(bands)[0] + 2 * runs)


def cache_bytes(shards: ShardSet, rows: int, runs: int) -> int:
    """Memory that a Reader with such a cache takes for it."""
    total = 0
    for number, column in enumerate(shards.columns):
        band_rows, _ = max(_bands(shards, number), default=(0, 0))
        total += cache_slots(shards, number, rows, runs) * band_rows * column.row_bytes
    return total


def _bands(shards: ShardSet, number: int) -> list[tuple[int, int]]:
    """Of each shard in which column `number` is chunked: rows of a band, and how many bands there are."""
    each = zip((layouts[number] for layouts in shards.layouts), shards.shard_rows, strict=True)
    chunked = [(layout, rows) for layout, rows in each if isinstance(layout, Chunked)]
    row_bytes = shards.columns[number].row_bytes
    return [(size := layout.band_rows(row_bytes), -(-rows // size)) for layout, rows in chunked]
