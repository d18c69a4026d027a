"""ChunkedColumn: reads a column that is stored in chunks, which it decodes into memory that is allocated once.

A band is what a dataset's chunks hold of a run of rows: one chunk, or several side by side where chunks are narrower
than rows, or several after each other where they are small. Bands are read and decoded as a whole.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass

import h5py
import numpy as np

from hpc_train.data.hdf5.buffer_pool import aligned_bytes
from hpc_train.data.hdf5.codecs import Decoder
from hpc_train.data.hdf5.data_file import DataFile
from hpc_train.data.hdf5.input_file import InputFile
from hpc_train.data.hdf5.layout import Chunked
from hpc_train.data.ragged import runs_of

SPARE_BYTES = 1 << 16
"""By which, and by its own size again, a chunk may be longer than what it decodes to."""

Key = tuple[int, int]
"""(shard, band)."""


class ChunkIndex:
    """Where the chunks of a dataset lie in its file. Reads the file's index once, with HDF5."""

    def __init__(self, dataset: h5py.Dataset, layout: Chunked) -> None:
        self._name, self._shape, self._chunk, self._dtype = dataset.name, dataset.shape, layout.chunk, layout.dtype
        stored = np.dtype(layout.dtype)
        self._fill = np.zeros((), stored) if stored.kind == "V" else np.asarray(dataset.fillvalue, stored)
        self._decoder = Decoder(layout.filters, stored.itemsize)
        self._grid = tuple(-(-n // c) for n, c in zip(dataset.shape, layout.chunk, strict=True))
        self._stored: np.ndarray = np.full((*self._grid, 3), -1, np.int64)

        def note(chunk: h5py.h5d.StoreInfo) -> None:
            place = tuple(n // c for n, c in zip(chunk.chunk_offset, layout.chunk, strict=True))
            self._stored[place] = (chunk.byte_offset, chunk.size, chunk.filter_mask)

        dataset.id.chunk_iter(note)

    def read_rows(self, file: DataFile, first: int, out: np.ndarray) -> None:
        """Reads and decodes the chunks that begin with row `first` into `out`: uint8 `[k chunks' rows, row bytes]`.

        Raises:
            OSError: One cannot be read, or is damaged.
        """
        rows = self._chunk[0]
        number = first // rows
        for start in range(0, len(out), rows):
            if number < self._grid[0]:
                self.read(file, number, out[start : start + rows])
            number += 1

    def read(self, file: DataFile, number: int, out: np.ndarray) -> None:
        """Reads and decodes the chunks side by side in row `number` of chunks: uint8 `[rows of a chunk, row bytes]`.

        Raises:
            OSError: It cannot be read, or is damaged.
        """
        whole = out.view(self._dtype).reshape(len(out), *self._shape[1:])
        as_wide_as_rows = self._chunk[1:] == self._shape[1:]
        for place in np.ndindex(*self._grid[1:]):
            if as_wide_as_rows:
                self._read_chunk(file, (number, *place), out.reshape(-1))
                continue
            chunk = np.empty(self._chunk, self._dtype)
            self._read_chunk(file, (number, *place), chunk.reshape(-1).view(np.uint8))
            corner = [i * c for i, c in zip(place, self._chunk[1:], strict=True)]
            sizes = [min(c, n - start) for start, c, n in zip(corner, self._chunk[1:], self._shape[1:], strict=True)]
            target = (slice(None), *(slice(start, start + size) for start, size in zip(corner, sizes, strict=True)))
            inside = (slice(None), *map(slice, sizes))
            whole[target] = chunk[inside]

    def _read_chunk(self, file: DataFile, place: tuple[int, ...], out: np.ndarray) -> None:
        offset, size, mask = self._stored[place].tolist()
        if offset < 0:
            out.view(self._dtype)[:] = self._fill
            return
        if size > 2 * out.size + SPARE_BYTES:
            name = self._name.lstrip("/")
            raise OSError(f"{file.path}: dataset {name!r}: damaged: {size} bytes for a chunk of {out.size}")
        raw = np.empty(size, np.uint8)
        file.read_into(offset, raw)
        try:
            self._decoder.decode(raw.data, mask, out)
        except ValueError as error:
            first = place[0] * self._chunk[0]
            rows = f"rows {first} to {min(first + self._chunk[0], self._shape[0]) - 1}"
            raise OSError(f"{file.path}: dataset {self._name.lstrip('/')!r}, {rows}: damaged: {error}") from None


@dataclass
class _Slot:
    number: int
    ready: Future[None]
    users: int = 0


class ChunkCache:
    """Bands in `slots` places of one array; the least recently used makes room. Threads may share it.

    Args:
        band_rows: Rows of the largest band.
        decode: Fills uint8 `[band_rows, row_bytes]` with a band.
        executor: Runs `decode`.

    Attributes:
        capacity: Bands that there is room for. rows: of all slots, uint8 `[capacity * band_rows, row_bytes]`.
    """

    def __init__(
        self, slots: int, band_rows: int, row_bytes: int, decode: Callable[[Key, np.ndarray], None], executor: Executor
    ) -> None:
        self._arena = aligned_bytes(slots * band_rows * row_bytes).reshape(slots, band_rows, row_bytes)
        self.capacity, self.rows = slots, self._arena.reshape(-1, row_bytes)
        self._decode, self._executor = decode, executor
        self._slots: OrderedDict[Key, _Slot] = OrderedDict()
        self._free = list(range(slots))
        self._changed = threading.Condition()

    def expect(self, keys: Sequence[Key]) -> list[Future[None]]:
        """Begins to decode the bands that are not there, as far as there is room, and does not wait for them."""
        with self._changed:
            futures, wanted = [], set(keys)
            for key in keys:
                slot = self._slots.get(key) or self._begin(key, wanted)
                if slot is None:
                    break
                futures.append(slot.ready)
            return futures

    def drop(self, keys: Sequence[Key]) -> None:
        """These bands are to make room first."""
        with self._changed:
            for key in keys:
                if key in self._slots:
                    self._slots.move_to_end(key, last=False)

    @contextmanager
    def holding(self, keys: Sequence[Key]) -> Iterator[list[int]]:
        """Waits for the bands `keys` (each once, at most `capacity`), and keeps them for the duration of the block.

        Yields:
            Their slots' numbers.

        Raises:
            OSError: What decoding raised.
        """
        slots = self._take(keys)
        try:
            for key, slot in zip(keys, slots, strict=True):
                try:
                    slot.ready.result()
                except BaseException:
                    self._forget(key, slot)
                    raise
            yield [slot.number for slot in slots]
        finally:
            with self._changed:
                for slot in slots:
                    slot.users -= 1
                self._changed.notify_all()

    def _take(self, keys: Sequence[Key]) -> list[_Slot]:
        """All slots at once, so that two threads never wait for what the other one holds."""
        with self._changed:
            wanted = set(keys)
            while not self._has_room(wanted):
                self._changed.wait()
            slots = []
            for key in keys:
                slot = self._slots.get(key) or self._begin(key, wanted)
                assert slot is not None
                self._slots.move_to_end(key)
                slots.append(slot)
            for slot in slots:
                slot.users += 1
            return slots

    def _has_room(self, wanted: Collection[Key]) -> bool:
        missing = sum(key not in self._slots for key in wanted) - len(self._free)
        return missing <= 0 or missing <= sum(self._can_go(key, wanted) for key in self._slots)

    def _can_go(self, key: Key, wanted: Collection[Key]) -> bool:
        slot = self._slots[key]
        return slot.users == 0 and slot.ready.done() and key not in wanted

    def _begin(self, key: Key, wanted: Collection[Key]) -> _Slot | None:
        if self._free:
            number = self._free.pop()
        else:
            old = next((k for k in self._slots if self._can_go(k, wanted)), None)
            if old is None:
                return None
            number = self._slots.pop(old).number
        future = self._executor.submit(self._decode, key, self._arena[number])
        future.add_done_callback(self._wake)
        slot = self._slots[key] = _Slot(number, future)
        return slot

    def _wake(self, future: Future[None]) -> None:
        with self._changed:
            self._changed.notify_all()

    def _forget(self, key: Key, slot: _Slot) -> None:
        with self._changed:
            if self._slots.get(key) is slot:
                del self._slots[key]
                self._free.append(slot.number)


@dataclass(frozen=True)
class ChunkedPart:
    """A file with a chunked dataset of so many rows."""

    file: DataFile
    rows: int
    layout: Chunked


class ChunkedColumn:
    """Rows of `row_bytes` bytes in chunked datasets `name` of files, by part and number. Threads may share it.

    Args:
        parts: By number; `slots`: bands that are kept decoded.
        executor: Reads and decodes.
        hdf5: Held while the HDF5 library is used.
    """

    def __init__(
        self,
        name: str,
        parts: dict[int, ChunkedPart],
        row_bytes: int,
        slots: int,
        executor: Executor,
        hdf5: threading.Lock,
    ) -> None:
        self._name, self._parts, self._hdf5 = name, parts, hdf5
        self._band_rows = np.zeros(max(parts) + 1, np.int64)
        self._band_rows[list(parts)] = [part.layout.band_rows(row_bytes) for part in parts.values()]
        self._most_rows = int(self._band_rows.max())
        self._first_key = np.zeros(max(parts) + 1, np.int64)
        bands = [-(-part.rows // part.layout.band_rows(row_bytes)) for part in parts.values()]
        self._first_key[list(parts)] = np.cumsum(bands) - bands
        self._indexes: dict[int, ChunkIndex] = {}
        self._cache = ChunkCache(slots, self._most_rows, row_bytes, self._decode, executor)

    def gather(self, part: np.ndarray, local: np.ndarray, out: np.ndarray) -> None:
        """Fills `out`, uint8 `[k, row_bytes]`, with rows `local` of `part`, int64 `[k]` both.

        Raises:
            OSError: A file cannot be read, or is damaged.
        """
        band, inside = np.divmod(local, self._band_rows[part])
        numbers, first, of_row = np.unique(self._first_key[part] + band, return_index=True, return_inverse=True)
        keys = list(zip(part[first].tolist(), band[first].tolist(), strict=True))
        most = max(1, self._cache.capacity // 2)
        for k in range(0, len(numbers), most):
            with self._cache.holding(keys[k : k + most]) as slots:
                if len(numbers) <= most:
                    places = np.array(slots)[of_row] * self._most_rows + inside
                    np.take(self._cache.rows, places, axis=0, out=out, mode="clip")
                    return
                mine = np.flatnonzero((of_row >= k) & (of_row < k + most))
                places = np.array(slots)[of_row[mine] - k] * self._most_rows + inside[mine]
                out[mine] = self._cache.rows[places]

    def runs(self, part: np.ndarray, first: np.ndarray, lengths: np.ndarray, out: np.ndarray) -> None:
        """Fills `out`, end to end, with runs of `lengths` rows from `first` on, int64 `[k]` each. As `gather`."""
        size = self._band_rows[part]
        low, high = first // size, np.where(lengths > 0, (first + lengths - 1) // size, first // size - 1)
        pieces = high - low + 1  # bands that each run lies in
        of_run, band = np.repeat(np.arange(len(part)), pieces), runs_of(low, pieces)
        part, size = part[of_run], size[of_run]
        begin = np.maximum(first[of_run], band * size)
        end = np.minimum((first + lengths)[of_run], (band + 1) * size)
        place = np.cumsum(end - begin) - (end - begin)
        numbers, one, of_piece = np.unique(self._first_key[part] + band, return_index=True, return_inverse=True)
        keys = list(zip(part[one].tolist(), band[one].tolist(), strict=True))
        most = max(1, self._cache.capacity // 2)
        for k in range(0, len(numbers), most):
            with self._cache.holding(keys[k : k + most]) as slots:
                mine = np.flatnonzero((of_piece >= k) & (of_piece < k + most))
                starts = np.array(slots)[of_piece[mine] - k] * self._most_rows + begin[mine] - band[mine] * size[mine]
                counts = end[mine] - begin[mine]
                for start, target, count in zip(starts.tolist(), place[mine].tolist(), counts.tolist(), strict=True):
                    out[target : target + count] = self._cache.rows[start : start + count]

    def expect(self, part: np.ndarray, local: np.ndarray) -> None:
        """Announces that these rows will be read next: their chunks are decoded meanwhile."""
        band = local // self._band_rows[part]
        _, first = np.unique(self._first_key[part] + band, return_index=True)
        first.sort()
        self._cache.expect(list(zip(part[first].tolist(), band[first].tolist(), strict=True)))

    def begin(self, keys: Iterable[Key]) -> list[Future[None]]:
        """Begins to decode these bands, as far as there is room; returns what to wait for."""
        return self._cache.expect(list(dict.fromkeys(keys)))

    def drop(self, keys: Sequence[Key]) -> None:
        """These bands make room first."""
        self._cache.drop(keys)

    def keys(self, part: int, first: int, end: int) -> list[Key]:
        """The bands of rows `first`…`end - 1` of a part."""
        size = int(self._band_rows[part])
        return [(part, band) for band in range(first // size, -(-end // size))]

    def _decode(self, key: Key, out: np.ndarray) -> None:
        number, band = key
        part = self._parts[number]
        index = self._indexes.get(number)
        if index is None:
            index = self._indexes[number] = part.file.retried(lambda: self._index(part))
        size = int(self._band_rows[number])
        index.read_rows(part.file, band * size, out[:size])

    def _index(self, part: ChunkedPart) -> ChunkIndex:
        with self._hdf5, InputFile(part.file.path) as file:
            return ChunkIndex(file.dataset(self._name), part.layout)
