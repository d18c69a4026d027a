"""Which types the columns of a table have: what CSV files leave open, all of their rows decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
from pyarrow import compute

from hpc_train.config.table_schema import Type
from hpc_train.data.tables import texts
from hpc_train.data.tables.values import column_type
from hpc_train.distributed.world import World
from hpc_train.mapreduce.blocks import BlockSource
from hpc_train.mapreduce.reducer import Reducer
from hpc_train.mapreduce.reduction import reduce_blocks

State = dict[str, Any]
NUMERIC = {texts.WHOLE, texts.PADDED, texts.BEYOND, texts.NUMBER}
LONGEST = 60
"""Characters that are kept of a text."""
MOSTLY = 0.9
"""So many of a column's texts are numbers where it is remarked that the others are not."""


class Part(NamedTuple):
    """Rows of a block: its number, that of the first row in it, and a table of Arrow."""

    block: int
    row: int
    table: Any


@dataclass(frozen=True)
class ColumnType:
    """What is found of a column.

    Attributes:
        type, format: As in ColumnSchema.
        remark: What is odd about it; "": nothing is.
        odd: Block, row and text of the first value that is no number, where most are; None: there is none.
        spaces: Of texts: how many there are in all of them. count: Rows with a value.
    """

    type: Type
    format: str | None = None
    remark: str = ""
    odd: tuple[int, int, str] | None = None
    spaces: int = 0
    count: int = 0


class TypeCounts(Reducer[State]):
    """Of Parts: how many texts of each column are of which of texts.KINDS, and how many rows each block has."""

    def init(self) -> State:
        return {"columns": {}, "blocks": np.zeros(0, np.int64), "rows": np.zeros(0, np.int64)}

    def add(self, state: State, values: Part) -> State:
        columns = {name: _counts(values, name) for name in values.table.column_names}
        block, rows = np.array([values.block]), np.array([values.table.num_rows])
        return self.merge(state, {"columns": columns, "blocks": block, "rows": rows})

    def merge(self, first: State, second: State) -> State:
        if not first["columns"] or not second["columns"]:
            return first if first["columns"] else second
        columns = {name: _merged(counts, second["columns"][name]) for name, counts in first["columns"].items()}
        return {"columns": columns} | {name: np.append(first[name], second[name]) for name in ("blocks", "rows")}

    def result(self, state: State) -> State:
        return state


def _counts(part: Part, name: str) -> State:
    array = part.table.column(name).combine_chunks()
    count = len(array) - array.null_count
    if column_type(array.type) != "text":
        return {"of": {texts.NUMBER: count}, "count": count, "spaces": 0, "odd": None}
    array = array.cast(pa.large_string())
    there = array.drop_null()
    kinds = texts.kinds_of(there)
    spaces = 0 if set(kinds) <= NUMERIC else compute.sum(compute.count_substring(there, " ")).as_py() or 0
    odd = None
    if not set(kinds) <= NUMERIC:
        row = int(np.argmin(texts.is_number(array)))
        odd = [part.block, part.row + row, array[row].as_py()[:LONGEST]]
    return {"of": kinds, "count": count, "spaces": spaces, "odd": odd}


def _merged(first: State, second: State) -> State:
    kinds = {**first["of"], **second["of"]}
    return {
        "of": {kind: first["of"].get(kind, 0) + second["of"].get(kind, 0) for kind in kinds},
        "count": first["count"] + second["count"],
        "spaces": first["spaces"] + second["spaces"],
        "odd": first["odd"] or second["odd"],
    }


def type_of(counts: State, known: str | None = None) -> ColumnType:
    """The type of a column, by how many texts are of each kind. Pure.

    Args:
        known: The type that the file says.
    """
    of, count = {kind: counts["of"].get(kind, 0) for kind in texts.KINDS}, counts["count"]
    numbers = sum(of[kind] for kind in NUMERIC)
    kind, form, remark = "text", None, ""
    odd = None if counts["odd"] is None or not MOSTLY * count <= numbers < count else tuple(counts["odd"])
    whole = [each for each in texts.GUESSED if of[each] == count]
    if known is not None:
        kind = known
    elif not count:
        remark = "has no values"
    elif of[texts.PADDED] and numbers == count:
        remark = "digits with zeros in front, taken for texts; if they are numbers, give type: integer"
    elif of[texts.BEYOND] and numbers == count:
        remark = "whole numbers beyond 2^53, which are not exact as numbers, taken for texts"
    elif of[texts.WHOLE] == count:
        kind = "integer"
    elif numbers == count:
        kind = "number"
    elif of[texts.BOOLEAN] == count:
        kind = "boolean"
    elif len(whole) > 1:
        ways = " or ".join(f"{each!r}" for each in whole)
        remark = f"dates whose day and month cannot be told apart: give type: date, role: date and format: {ways}"
    elif whole:
        kind, form = "date", None if whole[0] == texts.ISO else whole[0]
    elif odd:
        remark = f"numbers, but for {count - numbers:,} of {count:,} values, and so taken for texts"
    return ColumnType(cast(Type, kind), form, remark, odd, counts["spaces"], count)


@dataclass(frozen=True)
class ColumnTypes:
    """What is found of a table.

    Attributes:
        by_column: Of each column. block_rows: How many rows each block has, int64 `[blocks]`.
    """

    by_column: Mapping[str, ColumnType]
    block_rows: np.ndarray

    @property
    def rows(self) -> int:
        """How many there are."""
        return int(self.block_rows.sum())

    @classmethod
    def find(cls, world: World, blocks: BlockSource, known: Mapping[str, str | None]) -> ColumnTypes:
        """Reads all rows once. Collective.

        Args:
            blocks: Gives Parts. known: the types of columns that the files say.
        """
        reducer = TypeCounts()
        state = reduce_blocks(world, blocks, reducer.add, reducer)
        rows = np.zeros(blocks.blocks, np.int64)
        np.add.at(rows, state["blocks"], state["rows"])
        found = {name: type_of(counts, known[name]) for name, counts in state["columns"].items()}
        return cls(found, rows)
