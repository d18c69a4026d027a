"""RaggedColumn: rows of different lengths, numbers or texts, wherever they lie."""

from __future__ import annotations

import math
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np

from hpc_train.data.hdf5.columns import ENDS, LENGTH, VALUES
from hpc_train.data.hdf5.heap_values import HeapCache, HeapValues
from hpc_train.data.hdf5.layout import REFERENCE, ByEnds, InHeaps
from hpc_train.data.hdf5.plain_column import PlainColumn
from hpc_train.data.hdf5.stored import Stored
from hpc_train.data.memory import fits
from hpc_train.data.ragged import Ragged, runs_of

if TYPE_CHECKING:
    from hpc_train.data.hdf5.reader import Reader

Run = tuple[int, int, int]


class RaggedColumn:
    """Column `number` of a Reader's shards, by shard and number of the row. Threads may share it.

    Args:
        stored: Its datasets, and `columns`, what reads each of them.
    """

    def __init__(self, reader: Reader, number: int, stored: list[Stored], columns: list[PlainColumn]) -> None:
        shards = reader.shards
        self._reader, self._column = reader, shards.columns[number]
        self._layouts = [layouts[number] for layouts in shards.layouts]
        self._name = self._column.name.removesuffix(LENGTH)
        by_name = {s.column.name: c for s, c in zip(stored, columns, strict=True)}
        self._all = columns
        self._ends, self._values = by_name.get(self._name + ENDS), by_name.get(self._name + VALUES)
        self._references = by_name.get(self._name)
        self._is_split: np.ndarray = np.array([isinstance(layout, ByEnds) for layout in self._layouts])
        self._number: np.ndarray = np.where(self._is_split, np.cumsum(self._is_split), np.cumsum(~self._is_split)) - 1
        self._counts: np.ndarray = np.array([x.count if isinstance(x, ByEnds) else 0 for x in self._layouts])
        cache = HeapCache()
        self._heaps = {
            i: HeapValues(reader.files[i], layout.base, shards.file_bytes[i], cache)
            for i, layout in enumerate(self._layouts)
            if isinstance(layout, InHeaps)
        }
        self._outer = self._column.shape if self._column.is_text else ()
        self._width = math.prod(self._outer)
        self._inner = () if self._column.is_text else self._column.shape
        self._dtype = np.dtype(self._column.dtype)

    def close(self) -> None:
        """Ends the use of memory maps."""
        for column in self._all:
            column.close()

    def read(self, part: np.ndarray, local: np.ndarray) -> Ragged | np.ndarray:
        """Rows `local` of shards `part`, int64 `[k]` both; int64 `[k]`, where the column has the lengths of another.

        Raises:
            OSError: A file cannot be read, or is damaged.
        """
        if self._references is None:
            return self._from_split(part, local)
        if self._ends is None:
            return self._from_heaps(part, local)
        split = self._is_split[part]
        ways = [(np.flatnonzero(split), self._from_split), (np.flatnonzero(~split), self._from_heaps)]
        order = np.argsort(np.concatenate([mine for mine, _ in ways]), kind="stable")
        found = [way(part[mine], local[mine]) for mine, way in ways]
        if self._column.kind == "length":
            return np.concatenate([np.asarray(each) for each in found])[order]
        return Ragged.concatenate([each for each in found if isinstance(each, Ragged)])[order]

    def _bounds(self, part: np.ndarray, local: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the values of rows begin, int64 `[k]`, and their lengths, int64 `[k, ...]`."""
        assert self._ends is not None
        number = self._number[part]
        ends = np.empty((len(part), *self._outer), np.int64)
        before = np.empty_like(ends)
        self._ends.gather(number, local, ends)
        self._ends.gather(number, np.maximum(local - 1, 0), before)
        flat = ends.reshape(len(part), self._width)
        firsts = np.where(local > 0, before.reshape(len(part), self._width)[:, -1], 0)
        lengths = np.diff(flat, axis=1, prepend=firsts[:, None])
        wrong = (firsts < 0) | (lengths < 0).any(axis=1) | (flat[:, -1] > self._counts[part])
        if wrong.any():
            k = int(np.argmax(wrong))
            where = self._where(part[k], local[k])
            raise OSError(f"{where}: damaged: it ends at value {flat[k, -1]:,}, which cannot be")
        return firsts, lengths.reshape(ends.shape)

    def _from_split(self, part: np.ndarray, local: np.ndarray) -> Ragged | np.ndarray:
        firsts, lengths = self._bounds(part, local)
        if self._values is None:
            return lengths
        counts = lengths.reshape(len(part), self._width).sum(axis=1)
        values = self._room(part, local, counts)
        self._values.gather_runs(self._number[part], firsts, counts, values)
        return Ragged(values, lengths)

    def _from_heaps(self, part: np.ndarray, local: np.ndarray) -> Ragged | np.ndarray:
        assert self._references is not None
        raw = np.empty((len(part), *self._outer), f"V{REFERENCE.itemsize}")
        self._references.gather(self._number[part], local, raw)
        references = raw.view(REFERENCE).reshape(len(part), self._width)
        lengths = references["length"].astype(np.int64)
        if self._column.kind == "length":
            return lengths.reshape(raw.shape)
        counts = lengths.sum(axis=1)
        values = self._room(part, local, counts)
        ends = np.cumsum(counts) - counts
        for shard in np.unique(part).tolist():
            mine = np.flatnonzero(part == shard)
            try:
                rows = self._heaps[shard].read(references[mine].reshape(-1), self._dtype.itemsize)
            except ValueError as error:
                row = local[mine[error.args[1] // references.shape[1]]]
                raise OSError(f"{self._where(shard, row)}: damaged: {error.args[0]}") from None
            layout = self._layouts[shard]
            assert isinstance(layout, InHeaps)
            joined = np.frombuffer(b"".join(rows), layout.dtype)
            if len(mine) == len(part):
                values[:] = joined
            else:
                values[runs_of(ends[mine], counts[mine])] = joined
        return Ragged(values, lengths.reshape(raw.shape))

    def _room(self, part: np.ndarray, local: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Memory for the values of rows that have so many.

        Raises:
            OSError: There is not so much.
        """
        total = int(counts.sum())
        if not fits(total * self._column.value_bytes):
            k = int(np.argmax(counts))
            raise OSError(
                f"{self._where(part[k], local[k])}: it has {counts[k]:,} values, and {len(part)} rows {total:,}: too "
                "many for the free memory; take a smaller batch_size, or shards with shorter rows"
            )
        return np.empty((total, *self._inner), self._dtype)

    def _where(self, shard: int, row: int) -> str:
        return f"{self._reader.shards.paths[shard]}: dataset {self._name!r}, row {row}"

    def begin(self, runs: list[Run]) -> list[Future[None]]:
        """Begins to read runs of rows, (shard, first, end); returns what to wait for."""
        split, heaped = self._own(runs)
        futures = self._references.begin(heaped) if self._references else []
        if self._ends and split:
            futures += self._ends.begin(split)
            if self._values:
                futures += self._values.begin(self._value_runs(split))
        return futures

    def drop(self, runs: list[Run], keep: list[Run]) -> None:
        """What is decoded of `runs` makes room first, but for what `keep` needs too."""
        split, heaped = self._own(runs)
        kept_split, kept_heaped = self._own(keep)
        if self._references:
            self._references.drop(heaped, kept_heaped)
        if self._ends and self._values and self._values.is_chunked:
            self._values.drop(self._value_runs(split), self._value_runs(kept_split))
        if self._ends:
            self._ends.drop(split, kept_split)

    def _own(self, runs: list[Run]) -> tuple[list[Run], list[Run]]:
        """Those in shards with ends and values, and those in heaps, by the number of the part."""
        both: tuple[list[Run], list[Run]] = [], []
        for shard, first, end in runs:
            both[0 if self._is_split[shard] else 1].append((int(self._number[shard]), first, end))
        return both

    def _value_runs(self, runs: list[Run]) -> list[Run]:
        """The runs of values of runs of rows, of shards with ends and values."""
        assert self._ends is not None
        if not runs:
            return []
        part, first, end = (np.array(each, np.int64) for each in zip(*runs, strict=True))
        found = np.empty((2 * len(runs), *self._outer), np.int64)
        self._ends.gather(np.tile(part, 2), np.concatenate([np.maximum(first - 1, 0), end - 1]), found)
        low, high = found.reshape(2, len(runs), self._width)[:, :, -1]
        low, counts = np.where(first > 0, low, 0), self._counts[self._is_split][part]
        each = zip(part.tolist(), np.clip(low, 0, counts).tolist(), np.clip(high, 0, counts).tolist(), strict=True)
        return [(k, a, b) for k, a, b in each if a < b]

    @property
    def wants_to_know(self) -> bool:
        """Whether `expect` is of any use."""
        return any(column.wants_to_know for column in self._all)

    def expect(self, part: np.ndarray, local: np.ndarray) -> None:
        """Announces that these rows will be read next."""
        split = self._is_split[part]
        if self._ends and split.any():
            self._ends.expect(self._number[part[split]], local[split])
        if self._references and not split.all():
            self._references.expect(self._number[part[~split]], local[~split])
