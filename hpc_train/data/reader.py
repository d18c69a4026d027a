"""Reader: rows of a ShardSet, by number, as numpy arrays, each dataset by the fastest way that its layout allows."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import numpy as np

from hpc_train.data.buffers import BufferPool, aligned_bytes
from hpc_train.data.chunks import ChunkCache, ChunkIndex, Key
from hpc_train.data.files import MAPPED_ROW_BYTES, DataFile
from hpc_train.data.layout import Chunked, Contiguous, Opaque, give_hdf5_its_plugins
from hpc_train.data.shards import ShardSet, open_file

MAX_OPEN_FILES = 128
SCAN_BYTES = 1 << 20
SLOW_SECS_PER_ROW = 50e-6
"""A row that takes longer to copy from a memory map came from a disk or a network, not from memory."""


class Reader:
    """Reads rows of all columns of `shards`. A context manager: leaving it closes the files. Threads may share it.

    Contiguous datasets are read at their offsets in the file, runs of rows with `preadv`, single ones from a memory
    map. Chunks are read and decoded by `threads` threads into a cache. What only HDF5 can read is read through it.
    """

    def __init__(
        self, shards: ShardSet, threads: int = 1, cached_rows: int = 0, cached_runs: int = 1, scattered: bool = False
    ) -> None:
        """Opens nothing yet.

        Args:
            cached_rows: Rows of chunked datasets to keep decoded, in `cached_runs` runs of contiguous rows.
            scattered: Rows will be asked for at random, from more data than memory holds.
        """
        self._shards = shards
        few = len(shards.paths) <= MAX_OPEN_FILES
        self._files = [DataFile(path, few, scattered) for path in shards.paths]
        self._pool = BufferPool()
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="hpc_train-read")
        self._hdf5 = threading.Lock()
        self._indexes: dict[tuple[int, int], ChunkIndex] = {}
        self._scratch = threading.local()
        self._caches: dict[int, ChunkCache] = {}
        self._slow = False
        for number, column in enumerate(shards.columns):
            if slots := cache_slots(shards, number, cached_rows, cached_runs):
                self._caches[number] = ChunkCache(
                    max(slots, threads + 1),
                    self._band_rows(number),
                    column.row_bytes,
                    lambda key, out, number=number: self._decode(number, key, out),  # type: ignore[misc]
                    self._executor,
                )

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown(cancel_futures=True)
        for file in self._files:
            file.close()

    def read(self, rows: np.ndarray) -> list[np.ndarray]:
        """The rows numbered `rows` (int64 `[B]`, ascending), one array `[B, ...]` a column.

        Arrays have the stored dtype in this machine's byte order, and are aligned to 64 bytes. Their memory is used
        again when they and all views of them are gone.

        Raises:
            OSError: A file cannot be read; it tells path and errno, or what is damaged.
        """
        arrays = []
        for number, column in enumerate(self._shards.columns):
            array = self._pool.take((len(rows), *column.shape), column.dtype)
            table = array.view(np.uint8).reshape(len(rows), column.row_bytes) if array.size else array
            chunked = []
            for shard, first, end in self._by_shard(rows):
                layout = self._shards.layouts[shard][number]
                local = rows[first:end] - self._shards.starts[shard]
                if isinstance(layout, Contiguous):
                    self._read_contiguous(shard, layout, local, table[first:end])
                elif isinstance(layout, Chunked):
                    chunked.append((shard, layout.chunk[0], local, first))
                else:
                    self._read_through_hdf5(shard, column.name, local, array[first:end])
            if chunked:
                self._read_chunked(number, chunked, table)
            for shard, first, end in self._by_shard(rows):
                layout = self._shards.layouts[shard][number]
                if not np.dtype(layout.dtype).isnative and not isinstance(layout, Opaque):
                    array[first:end].byteswap(inplace=True)
            arrays.append(array)
        return arrays

    def begin(self, first: int, end: int) -> list[Future[None]]:
        """Begins to read rows `first`…`end - 1`, one file after the other, into the cache or the kernel's.

        Returns:
            What to wait for; they raise what reading raises.
        """
        futures: list[Future[None]] = []
        for number in range(len(self._shards.columns)):
            for shard, low, high in self._runs(first, end):
                layout = self._shards.layouts[shard][number]
                if isinstance(layout, Contiguous):
                    futures.append(self._executor.submit(self._scan, shard, number, layout, low, high))
                elif isinstance(layout, Chunked):
                    keys = [(shard, band) for band in range(low // layout.chunk[0], -(-high // layout.chunk[0]))]
                    futures += self._caches[number].expect(keys)
        return futures

    def expect(self, rows: np.ndarray) -> None:
        """Tells that `rows` will be read next: chunks are decoded meanwhile, and slow files begin to be fetched."""
        for number, column in enumerate(self._shards.columns):
            keys: dict[Key, None] = {}
            for shard, first, end in self._by_shard(rows):
                layout = self._shards.layouts[shard][number]
                local = rows[first:end] - self._shards.starts[shard]
                if isinstance(layout, Chunked):
                    keys.update(((shard, band), None) for band in np.unique(local // layout.chunk[0]).tolist())
                elif isinstance(layout, Contiguous) and self._slow and column.row_bytes < MAPPED_ROW_BYTES:
                    self._files[shard].expect(layout.offset, column.row_bytes, local)
            if keys:
                self._caches[number].expect(list(keys))

    def drop(self, runs: Iterable[tuple[int, int]], keep: Iterable[tuple[int, int]]) -> None:
        """The chunks of these runs of rows make room first, except those that `keep` needs too."""
        for number, cache in self._caches.items():
            kept = set(self._keys(number, keep))
            cache.drop([key for key in self._keys(number, runs) if key not in kept])

    @property
    def has_chunks(self) -> bool:
        """Whether any column is read through the cache."""
        return bool(self._caches)

    def _keys(self, number: int, runs: Iterable[tuple[int, int]]) -> Iterator[Key]:
        for first, end in runs:
            for shard, low, high in self._runs(first, end):
                layout = self._shards.layouts[shard][number]
                if isinstance(layout, Chunked):
                    yield from ((shard, band) for band in range(low // layout.chunk[0], -(-high // layout.chunk[0])))

    def _runs(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(shard, first row in it, end) of the parts of a run of rows."""
        starts = self._shards.starts
        shard = int(np.searchsorted(starts, first, side="right")) - 1
        while first < end:
            stop = min(end, int(starts[shard]) + self._shards.shard_rows[shard])
            yield shard, first - int(starts[shard]), stop - int(starts[shard])
            shard, first = shard + 1, stop

    def _by_shard(self, rows: np.ndarray) -> list[tuple[int, int, int]]:
        """(shard, first, end): rows[first:end] are of that shard."""
        shards = np.searchsorted(self._shards.starts, rows, side="right") - 1
        bounds = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(rows)]
        return [(int(shards[a]), a, b) for a, b in itertools.pairwise(bounds) if b > a]

    def _read_contiguous(self, shard: int, layout: Contiguous, local: np.ndarray, out: np.ndarray) -> None:
        file, row_bytes = self._files[shard], out.shape[1]
        first, count = int(local[0]), len(local)
        if int(local[-1]) - first + 1 == count and (count < 3 or bool((np.diff(local) == 1).all())):
            file.read_into(layout.offset + first * row_bytes, out)
            return
        start = time.perf_counter()
        file.rows_into(layout.offset, row_bytes, local, out)
        self._slow = time.perf_counter() - start > SLOW_SECS_PER_ROW * count

    def _read_chunked(self, number: int, parts: list[tuple[int, int, np.ndarray, int]], out: np.ndarray) -> None:
        cache = self._caches[number]
        band_rows = self._band_rows(number)
        shard = np.concatenate([np.full(len(local), shard) for shard, _, local, _ in parts])
        band = np.concatenate([local // chunk for _, chunk, local, _ in parts])
        inside = np.concatenate([local % chunk for _, chunk, local, _ in parts])
        target = np.concatenate([np.arange(first, first + len(local)) for _, _, local, first in parts])
        changes = np.flatnonzero((np.diff(shard) != 0) | (np.diff(band) != 0)) + 1
        bounds = [0, *changes.tolist(), len(shard)]
        together = int(target[-1] - target[0]) + 1 == len(target)
        most = max(1, cache.capacity // 2)
        for k in range(0, len(bounds) - 1, most):
            stop = min(k + most, len(bounds) - 1)
            low, high = bounds[k], bounds[stop]
            with cache.holding([(int(shard[i]), int(band[i])) for i in bounds[k:stop]]) as slots:
                slot = np.repeat(slots, np.diff(bounds[k : stop + 1]))
                places = slot * band_rows + inside[low:high]
                if together:
                    first = int(target[low])
                    np.take(cache.rows, places, axis=0, out=out[first : first + high - low], mode="clip")
                else:
                    out[target[low:high]] = cache.rows[places]

    def _read_through_hdf5(self, shard: int, name: str, local: np.ndarray, out: np.ndarray) -> None:
        path = self._shards.paths[shard]
        distinct, places = np.unique(local, return_inverse=True)
        run = int(distinct[-1] - distinct[0]) + 1 == len(distinct)
        selection = slice(int(distinct[0]), int(distinct[-1]) + 1) if run else distinct
        give_hdf5_its_plugins()
        try:
            with self._hdf5, open_file(path) as file:
                out[:] = file[name][selection][places]
        except (OSError, KeyError, ValueError) as error:
            raise OSError(f"{path}: cannot be read: {error}") from error

    def _scan(self, shard: int, number: int, layout: Contiguous, first: int, end: int) -> None:
        if not hasattr(self._scratch, "memory"):
            self._scratch.memory = aligned_bytes(SCAN_BYTES)
        row_bytes = self._shards.columns[number].row_bytes
        position, stop = layout.offset + first * row_bytes, layout.offset + end * row_bytes
        while position < stop:
            count = min(SCAN_BYTES, stop - position)
            self._files[shard].read_into(position, self._scratch.memory[:count])
            position += count

    def _decode(self, number: int, key: Key, out: np.ndarray) -> None:
        shard, band = key
        layout = self._shards.layouts[shard][number]
        assert isinstance(layout, Chunked)
        with self._hdf5:
            index = self._indexes.get((shard, number))
            if index is None:
                path, name = self._shards.paths[shard], self._shards.columns[number].name
                try:
                    with open_file(path) as file:
                        index = self._indexes[shard, number] = ChunkIndex(file[name], layout)
                except (OSError, KeyError, ValueError) as error:
                    raise OSError(f"{path}: cannot be read: {error}") from error
        index.read(self._files[shard], band, out[: layout.chunk[0]])

    def _band_rows(self, number: int) -> int:
        layouts = (layouts[number] for layouts in self._shards.layouts)
        return max(layout.chunk[0] for layout in layouts if isinstance(layout, Chunked))


def cache_slots(shards: ShardSet, number: int, rows: int, runs: int) -> int:
    """Bands of column `number` that `runs` runs of `rows` rows in all may lie in; 0 where none is chunked."""
    bands = [
        (layout.chunk[0], -(-count // layout.chunk[0]))
        for layout, count in zip((layouts[number] for layouts in shards.layouts), shards.shard_rows, strict=True)
        if isinstance(layout, Chunked)
    ]
    if not bands:
        return 0
    return min(sum(count for _, count in bands), rows // min(size for size, _ in bands) + 2 * runs)


def cache_bytes(shards: ShardSet, rows: int, runs: int) -> int:
    """Memory that a Reader with such a cache takes for it."""
    total = 0
    for number, column in enumerate(shards.columns):
        sizes = [layouts[number] for layouts in shards.layouts]
        band_rows = max((layout.chunk[0] for layout in sizes if isinstance(layout, Chunked)), default=0)
        total += cache_slots(shards, number, rows, runs) * band_rows * column.row_bytes
    return total
