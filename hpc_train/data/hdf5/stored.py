"""Which datasets of rows of one length a column is stored in, and what of their chunks is kept decoded. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpc_train.data.hdf5.columns import ENDS, LENGTH, VALUES, Column
from hpc_train.data.hdf5.layout import REFERENCE, ByEnds, Chunked, InHeaps, Plain
from hpc_train.data.hdf5.shards import ShardSet


@dataclass(frozen=True)
class Stored:
    """One dataset in some of the shards.

    Attributes:
        column: What it holds; its name is the dataset's.
        shards: Their numbers; `layouts` and `rows` of the dataset in each of them.
        row_parts: How many rows of it there are for a row of the shards.
    """

    column: Column
    shards: tuple[int, ...]
    layouts: tuple[Plain, ...]
    rows: tuple[int, ...]
    row_parts: float = 1.0

    def _bands(self) -> list[tuple[int, int]]:
        """Of each part that is chunked: rows of a band, and how many bands there are."""
        each = zip(self.layouts, self.rows, strict=True)
        chunked = [(layout, rows) for layout, rows in each if isinstance(layout, Chunked)]
        return [(size := layout.band_rows(self.column.row_bytes), -(-rows // size)) for layout, rows in chunked]

    def cache_slots(self, rows: int, runs: int) -> int:
        """Bands that `runs` runs of `rows` rows of the shards in all may lie in; 0 where none is chunked."""
        bands = self._bands()
        if not bands:
            return 0
        wanted = -(-int(rows * self.row_parts) // min(bands)[0]) if self.row_parts != 1.0 else rows // min(bands)[0]
        return min(sum(count for _, count in bands), wanted + 2 * runs)

    def cache_bytes(self, rows: int, runs: int) -> int:
        """Memory that so many slots take."""
        band_rows, _ = max(self._bands(), default=(0, 0))
        return self.cache_slots(rows, runs) * band_rows * self.column.row_bytes


def stored_of(shards: ShardSet, number: int) -> list[Stored]:
    """The datasets of column `number`: itself, or its ends and values, or its references into heaps."""
    column = shards.columns[number]
    both = enumerate(zip(shards.layouts, shards.shard_rows, strict=True))
    each = [(i, layouts[number], rows) for i, (layouts, rows) in both]
    split = [(i, layout, rows) for i, layout, rows in each if isinstance(layout, ByEnds)]
    heaped = [(i, layout.references, rows) for i, layout, rows in each if isinstance(layout, InHeaps)]
    plain = [(i, layout, rows) for i, layout, rows in each if not isinstance(layout, ByEnds | InHeaps)]
    name, outer = column.name.removesuffix(LENGTH), column.shape if column.is_text else ()
    found = []
    if plain:
        found.append(Stored(column, *_columns(plain)))
    if split:
        ends = [(i, layout.ends, rows) for i, layout, rows in split]
        found.append(Stored(Column(name + ENDS, outer, "int64"), *_columns(ends)))
        if column.kind != "length":
            values = [(i, layout.values, layout.count) for i, layout, _ in split]
            inner = () if column.is_text else column.shape
            part = sum(layout.count for _, layout, _ in split) / max(1, sum(rows for _, _, rows in split))
            found.append(Stored(Column(name + VALUES, inner, column.dtype), *_columns(values), part))
    if heaped:
        found.append(Stored(Column(name, outer, f"V{REFERENCE.itemsize}"), *_columns(heaped)))
    return found


def _columns(rows: Sequence[tuple[int, Plain, int]]) -> tuple[tuple[int, ...], tuple[Plain, ...], tuple[int, ...]]:
    return tuple(r[0] for r in rows), tuple(r[1] for r in rows), tuple(r[2] for r in rows)


def all_stored(shards: ShardSet) -> list[list[Stored]]:
    """`stored_of` for each column."""
    return [stored_of(shards, number) for number in range(len(shards.columns))]


def cache_bytes(shards: ShardSet, rows: int, runs: int) -> int:
    """Memory that a Reader which keeps `rows` rows in `runs` runs decoded takes for it."""
    return sum(stored.cache_bytes(rows, runs) for each in all_stored(shards) for stored in each)
