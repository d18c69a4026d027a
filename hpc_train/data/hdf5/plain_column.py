"""PlainColumn: a dataset whose rows have one length, in several files, read as it lies in each of them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np

from hpc_train.data.hdf5.chunked import ChunkedColumn, ChunkedPart, Key
from hpc_train.data.hdf5.contiguous import ContiguousColumn
from hpc_train.data.hdf5.data_file import DataFile
from hpc_train.data.hdf5.input_file import InputFile, Stamp, require_unchanged
from hpc_train.data.hdf5.layout import Chunked, Contiguous, Opaque, give_hdf5_its_plugins
from hpc_train.data.hdf5.mapped_table import Part
from hpc_train.data.hdf5.stored import Stored
from hpc_train.data.ragged import runs_of

if TYPE_CHECKING:
    from hpc_train.data.hdf5.reader import Reader

KINDS = (Contiguous, Chunked, Opaque)
PLAIN, CHUNKED = 0, 1


class PlainColumn:
    """Rows of one length, by part and number: each part is read as its layout allows.

    Args:
        slots: Bands of chunks that are kept decoded.
        held: It is small enough to be kept in memory.
    """

    def __init__(self, reader: Reader, stored: Stored, slots: int, held: bool) -> None:
        self._reader, self._files = reader, [reader.files[shard] for shard in stored.shards]
        self._column = column = stored.column
        layouts = stored.layouts
        kinds = [KINDS.index(type(layout)) for layout in layouts]
        self._kinds: np.ndarray = np.array(kinds)
        self._only_kind = kinds[0] if len(set(kinds)) == 1 else None
        swapped = [not np.dtype(layout.dtype).isnative and not isinstance(layout, Opaque) for layout in layouts]
        self._swapped: np.ndarray = np.array(swapped)
        self._any_swapped = any(swapped)
        self._outside: dict[int, dict[str, Stamp]] = {}
        each = list(enumerate(zip(self._files, stored.rows, layouts, strict=True)))
        plain = {i: Part(f, layout.offset, rows) for i, (f, rows, layout) in each if isinstance(layout, Contiguous)}
        chunked = {i: ChunkedPart(f, rows, layout) for i, (f, rows, layout) in each if isinstance(layout, Chunked)}
        self._plain_number: np.ndarray = np.cumsum(self._kinds == PLAIN) - 1
        size, decoding = column.row_bytes, (slots, reader.executor, reader.hdf5)
        self._plain = ContiguousColumn(list(plain.values()), size, held, reader.scattered) if plain else None
        self._chunked = ChunkedColumn(column.name, chunked, size, *decoding) if chunked else None

    def close(self) -> None:
        """Ends the use of memory maps."""
        if self._plain:
            self._plain.close()

    def map_anew(self, file: DataFile) -> None:
        """Takes note that `file` reads from a copy now."""
        if self._plain:
            self._plain.map_anew(file)

    def run(self, shard: int, first: int, out: np.ndarray) -> None:
        """Fills `out` with the rows from `first` on of one part."""
        if self._plain and self._kinds[shard] == PLAIN:
            self._plain.run(int(self._plain_number[shard]), first, self._as_bytes(out))
            if self._swapped[shard]:
                out.byteswap(inplace=True)
            return
        self.gather(np.full(len(out), shard), np.arange(first, first + len(out)), out)

    def gather(self, part: np.ndarray, local: np.ndarray, out: np.ndarray) -> None:
        """Fills `out` with rows `local` of parts `part`, int64 `[k]` both."""
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

    def gather_runs(self, part: np.ndarray, first: np.ndarray, lengths: np.ndarray, out: np.ndarray) -> None:
        """Fills `out`, end to end, with runs of `lengths` rows from `first` on, int64 `[k]` each."""
        if len(part) > 1:  # those that follow each other are one
            begins = np.append(True, (part[1:] != part[:-1]) | (first[:-1] + lengths[:-1] != first[1:]))
            starts = np.flatnonzero(begins)
            part, first, lengths = part[starts], first[starts], np.add.reduceat(lengths, starts)
        if self._only_kind == PLAIN and self._plain and not self._any_swapped:
            self._plain.runs(part, first, lengths, self._as_bytes(out))
        elif self._only_kind == CHUNKED and self._chunked and not self._any_swapped:
            self._chunked.runs(part, first, lengths, self._as_bytes(out))
        elif len(out):
            self.gather(np.repeat(part, lengths), runs_of(first, lengths), out)

    def begin(self, runs: list[tuple[int, int, int]]) -> list[Future[None]]:
        """Begins to read runs of rows, (part, first, end); returns what to wait for."""
        futures = self._chunked.begin(self._keys(runs)) if self._chunked else []
        own = [(int(self._plain_number[s]), first, end) for s, first, end in runs if self._kinds[s] == PLAIN]
        if self._plain and not self._plain.is_held and own:
            futures.append(self._reader.executor.submit(self._plain.fetch, own))
        return futures

    @property
    def is_chunked(self) -> bool:
        """Whether chunks of it are kept decoded."""
        return self._chunked is not None

    @property
    def wants_to_know(self) -> bool:
        """Whether `expect` is of any use."""
        return self._chunked is not None or (self._plain is not None and self._plain.is_slow)

    def expect(self, part: np.ndarray, local: np.ndarray) -> None:
        """Announces that these rows will be read next."""
        if self._plain:
            mine = self._kinds[part] == PLAIN
            self._plain.expect(self._plain_number[part[mine]], local[mine])
        if self._chunked:
            mine = self._kinds[part] == CHUNKED
            self._chunked.expect(part[mine], local[mine])

    def drop(self, runs: list[tuple[int, int, int]], keep: list[tuple[int, int, int]]) -> None:
        """What is decoded of `runs` makes room first, but for what `keep` needs too."""
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
        data_file = self._files[shard]

        def read() -> np.ndarray:
            consent, checked = self._reader.shards.consent, shard in self._outside
            with self._reader.hdf5, InputFile(data_file.path, consent, checked) as file:
                dataset = file.dataset(self._column.name)
                assert dataset is not None, "it was one when the shards were found"
                rows: np.ndarray = dataset[selection][places]
                require_unchanged(self._outside.setdefault(shard, file.outside))
                return rows

        return data_file.retried(read)
