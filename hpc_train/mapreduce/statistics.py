"""Statistics of all columns of shards, or of a table, in one pass over all ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.table import Table
from hpc_train.config.table_schema import ColumnSchema
from hpc_train.data.hdf5.columns import Column
from hpc_train.data.hdf5.reader import Rows
from hpc_train.data.ragged import Ragged
from hpc_train.data.tables.values import day_of
from hpc_train.distributed.world import World
from hpc_train.mapreduce.blocks import BlockSource, ShardBlocks
from hpc_train.mapreduce.histogram import Histogram
from hpc_train.mapreduce.map_reduce import shared_shards
from hpc_train.mapreduce.moments import MinMax, Moments, Sum
from hpc_train.mapreduce.quantiles import Quantiles
from hpc_train.mapreduce.reducer import Reducer, Together
from hpc_train.mapreduce.reduction import reduce_blocks
from hpc_train.mapreduce.table_blocks import table_blocks
from hpc_train.mapreduce.vocabulary import Vocabulary

State = dict[str, Any]
QUARTERS = (0.25, 0.5, 0.75)
MOST_NUMBERS, MOST_TEXTS = 1000, 100_000
"""So many different values of a column are counted. Of more, numbers are not; of texts the rarest are given up."""
ROWS, DAY_SECS = "/rows", 86_400.0
TOP = 10
"""Of the most frequent values so many are listed."""


def statistics(world: World, source: HDF5Input | Table) -> dict[str, Any]:
    """What the columns of `source` hold, as JSON can: `rows`, `files`, and `columns` by name. Collective.

    Of each column it is what ColumnStatistics gives, or TableColumnStatistics of a table's; the same on all ranks.

    Raises:
        UserError: The files cannot be read, or do not go together.
    """
    reducers: dict[str, Reducer[State]]
    blocks: BlockSource
    if isinstance(source, Table):
        blocks = found = table_blocks(world, source)
        reducers, files = {name: TableColumnStatistics(each) for name, each in found.columns.items()}, len(found.files)
    else:
        shards = shared_shards(world, source)
        blocks, files = ShardBlocks(shards), len(shards.paths)
        reducers = {column.key: ColumnStatistics(column) for column in shards.columns}
    together = Together({ROWS: Sum(), **reducers})

    def add(states: State, rows: Mapping[str, Rows]) -> State:
        count = len(next(iter(rows.values())))
        return together.add(states, {ROWS: np.array([count]), **rows})

    columns = together.result(reduce_blocks(world, blocks, add, together))
    return {"rows": int(columns.pop(ROWS)), "files": files, "columns": columns}


class ColumnStatistics(Reducer[State]):
    """Of a column, as JSON can hold it.

    `dtype` and `shape` of a row, whose first number is null where rows have different lengths; `values`, their number.
    Of numbers: `missing` (NaN), `infinite`, `mean` and `std` of the others, `min`, `max`, `quantiles` by probability
    with `quantile_error`, and a `histogram`. Of texts and of rows of different lengths: `lengths`, the same of these.
    Of whole numbers, truth values and texts: `distinct`, null where there are more than are counted; `top`, the most
    frequent with their counts; and `top_error`, by how much these are too low at most.
    """

    def __init__(self, column: Column) -> None:
        self._column = column
        self._parts: dict[str, Reducer[Any]] = {}
        kind = np.dtype(column.dtype).kind
        if column.is_text or kind in "biu":
            self._parts["vocabulary"] = Vocabulary(most_distinct=MOST_TEXTS if column.is_text else MOST_NUMBERS)
        if not column.is_text and kind in "biuf":
            self._parts["numbers"] = NumberStatistics()
        if column.kind == "ragged" or column.is_text:
            self._parts["lengths"] = NumberStatistics()

    def init(self) -> State:
        return {"values": 0, **{name: part.init() for name, part in self._parts.items()}}

    def add(self, state: State, values: Any) -> State:
        lengths, flat = np.zeros(0, np.int64), values
        if isinstance(values, Ragged):
            lengths, flat = values.lengths, values if self._column.is_text else values.values
        elif self._column.is_text:
            lengths = np.char.str_len(values)
        given = {"vocabulary": flat, "numbers": flat, "lengths": lengths}
        count = lengths.size if self._column.is_text else flat.size
        return {"values": state["values"] + count} | {
            name: part.add(state[name], given[name]) for name, part in self._parts.items()
        }

    def merge(self, first: State, second: State) -> State:
        return {"values": first["values"] + second["values"]} | {
            name: part.merge(first[name], second[name]) for name, part in self._parts.items()
        }

    def result(self, state: State) -> State:
        column = self._column
        length = [None] if column.kind == "ragged" and not column.is_text else []
        found: State = {
            "dtype": "text" if column.is_text else column.dtype,
            "shape": [*length, *column.shape],
            "values": state["values"],
        }
        if "numbers" in self._parts:
            found |= self._parts["numbers"].result(state["numbers"])
        if "lengths" in self._parts:
            found["lengths"] = self._parts["lengths"].result(state["lengths"])
        if "vocabulary" in self._parts:
            found |= self._frequent(self._parts["vocabulary"].result(state["vocabulary"]))
        return found

    def _frequent(self, found: State) -> State:
        if found["error"] and not self._column.is_text:
            return {"distinct": None}
        top = zip(found["values"][:TOP].tolist(), found["counts"][:TOP].tolist(), strict=True)
        return {
            "distinct": None if found["error"] else len(found["values"]),
            "top": [[value, count] for value, count in top],
            "top_error": found["error"],
        }


class TableColumnStatistics(Reducer[State]):
    """Of a table's column, as ColumnStatistics has it; `dtype` is the type that schemas have for it.

    `missing` counts missing values. Of dates `mean`, `min`, `max` and `quantiles` are texts, `std` is in days, and
    there is no `histogram`.
    """

    def __init__(self, column: ColumnSchema) -> None:
        self._type = column.type
        dtype = {"text": "S1", "integer": "int64", "boolean": "bool"}.get(column.type, "float64")
        self._inner = ColumnStatistics(Column("", (), dtype, kind="ragged" if column.type == "text" else "numbers"))

    def init(self) -> State:
        return {"missing": 0, "inner": self._inner.init()}

    def add(self, state: State, values: Any) -> State:
        if isinstance(values, Ragged):
            there: Any = Ragged(values.values, values.lengths[values.lengths > 0])
        else:
            there = values[~np.isnan(values)]
            if self._type in ("integer", "boolean"):
                there = there.astype(np.int64)
        missing = state["missing"] + len(values) - len(there)
        return {"missing": missing, "inner": self._inner.add(state["inner"], there)}

    def merge(self, first: State, second: State) -> State:
        inner = self._inner.merge(first["inner"], second["inner"])
        return {"missing": first["missing"] + second["missing"], "inner": inner}

    def result(self, state: State) -> State:
        found = self._inner.result(state["inner"])
        found |= {"dtype": self._type, "missing": state["missing"], "values": found["values"] + state["missing"]}
        if self._type == "date":
            days = {name: found[name] for name in ("mean", "min", "max")}
            found |= {name: None if value is None else day_of(value) for name, value in days.items()}
            found["quantiles"] = {
                key: None if value is None else day_of(value) for key, value in found["quantiles"].items()
            }
            found["std"] = None if found["std"] is None else found["std"] / DAY_SECS
            found.pop("histogram")
        return found


class NumberStatistics(Together):
    """Of numbers, see ColumnStatistics."""

    def __init__(self) -> None:
        super().__init__(
            {
                "moments": Moments(),
                "range": MinMax(),
                "quantiles": Quantiles(QUARTERS),
                "histogram": Histogram(),
            }
        )

    def add(self, state: State, values: Any) -> State:
        flat = np.asarray(values).reshape(-1)
        finite = flat[np.isfinite(flat)] if flat.dtype.kind == "f" else flat
        return super().add(state, {"moments": finite, "range": finite, "quantiles": finite, "histogram": flat})

    def result(self, state: State) -> State:
        found = super().result(state)
        moments, quantiles, histogram = (found[name] for name in ("moments", "quantiles", "histogram"))
        pairs = zip(quantiles["probabilities"].tolist(), quantiles["values"].tolist(), strict=True)
        return {
            "missing": histogram["missing"],
            "infinite": histogram["below"] + histogram["above"],
            "mean": _finite(moments["mean"]),
            "std": _finite(np.sqrt(moments["variance"])),
            **{name: None if end is None else end.item() for name, end in found["range"].items()},
            "quantiles": {f"{probability:g}": _finite(value) for probability, value in pairs},
            "quantile_error": quantiles["error"],
            "histogram": {name: histogram[name].tolist() for name in ("edges", "counts")},
        }


def _finite(number: Any) -> float | None:
    """As JSON can hold it."""
    return float(number) if math.isfinite(number) else None
