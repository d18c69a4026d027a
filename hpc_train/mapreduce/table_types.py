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
    """Of Parts: how many values of each column are of which of texts.KINDS, and how many rows each Part has.

    Args:
        label: The column without a value of which a row does not count; None: all count.
    """

    def __init__(self, label: str | None = None) -> None:
        self._label = label

    def init(self) -> State:
        return {"columns": {}, "parts": np.zeros((0, 4), np.int64)}

    def add(self, state: State, values: Part) -> State:
        columns = {name: _counts(values, name) for name in values.table.column_names}
        rows = values.table.num_rows
        counting = rows if self._label is None else columns[self._label]["count"]
        part = np.array([[values.block, values.row, counting, rows]], np.int64)
        return self.merge(state, {"columns": columns, "parts": part})

    def merge(self, first: State, second: State) -> State:
        if not first["columns"] or not second["columns"]:
            return first if first["columns"] else second
        columns = {name: _merged(counts, second["columns"][name]) for name, counts in first["columns"].items()}
        return {"columns": columns, "parts": np.concatenate([first["parts"], second["parts"]])}

    def result(self, state: State) -> State:
        return state


def _counts(part: Part, name: str) -> State:
    array = part.table.column(name).combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if (found := column_type(array.type)) != "text":
        of = _kinds_of_typed(array.drop_null(), found)
        return {"of": of, "count": sum(of.values()), "spaces": 0, "odd": None}
    array = array.cast(pa.large_string())
    array = compute.if_else(compute.equal(array, ""), pa.scalar(None, pa.large_string()), array)
    there, count = array.drop_null(), len(array) - array.null_count
    kinds = texts.kinds_of(there)
    spaces = 0 if set(kinds) <= NUMERIC else compute.sum(compute.count_substring(there, " ")).as_py() or 0
    odd = None
    if not set(kinds) <= NUMERIC:
        row = int(np.argmin(texts.is_number(array)))
        odd = [part.block, part.row + row, array[row].as_py()[:LONGEST]]
    return {"of": kinds, "count": count, "spaces": spaces, "odd": odd}


def _kinds_of_typed(array: Any, kind: str | None) -> dict[str, int]:
    """As texts.kinds_of, of values, none of them null, that a file gives a type."""
    if not len(array):
        return {}
    if kind == "boolean":
        return {texts.BOOLEAN: len(array)}
    if kind == "date":
        return {texts.ISO: len(array)}
    numbers = np.asarray(array.cast(pa.float64(), safe=False))
    return texts.kinds_of_numbers(numbers[~np.isnan(numbers)])


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
    if not count:
        kind, remark = known or "text", "has no values"
    elif known == "text":
        kind = known
    elif of[texts.PADDED] and numbers == count:
        remark = "digits with zeros in front, taken for texts; if they are numbers, give type: integer"
    elif of[texts.BEYOND] and of[texts.BEYOND] + of[texts.WHOLE] == count:
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
        by_column: Of each column. firsts: The number of the first row of each Part, by block and row in it.
        rows: How many there are that count. all_rows: How many there are.
    """

    by_column: Mapping[str, ColumnType]
    firsts: Mapping[tuple[int, int], int]
    rows: int
    all_rows: int

    @classmethod
    def find(
        cls, world: World, blocks: BlockSource, known: Mapping[str, str | None], label: str | None = None
    ) -> ColumnTypes:
        """Reads all rows once. Collective.

        Args:
            blocks: Gives Parts. known: the types of columns that all files say. label: see TypeCounts.
        """
        reducer = TypeCounts(label)
        state = reduce_blocks(world, blocks, reducer.add, reducer)
        parts = state["parts"][np.lexsort(state["parts"][:, 1::-1].T)]
        firsts = np.cumsum(parts[:, 2]) - parts[:, 2]
        keys = map(tuple, parts[:, :2].tolist())
        found = {name: type_of(counts, known[name]) for name, counts in state["columns"].items()}
        return cls(found, dict(zip(keys, firsts.tolist(), strict=True)), *parts[:, 2:].sum(axis=0).tolist())
