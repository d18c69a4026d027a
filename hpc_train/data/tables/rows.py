"""Rows of a table as shards of a schema have them: raw values of the columns that are used, and the label encoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from hpc_train.config.table_schema import ColumnSchema, TableSchema
from hpc_train.data.hdf5.reader import Rows
from hpc_train.data.ragged import Ragged
from hpc_train.data.sources.arrow import arrow_of_texts
from hpc_train.data.tables.evaluation_rows import NoTimeError, by_value
from hpc_train.data.tables.values import BadValueError, shown_value, values_of
from hpc_train.text import listed

DROP, REFUSE = "drop", "refuse"


class BadRowError(Exception):
    """A row that a schema does not allow: where it is, its column, what is wrong, as "has …", and what else to do."""

    def __init__(self, row: int, column: str, text: str, way: str) -> None:
        super().__init__(text)
        self.row, self.column, self.text, self.way = row, column, text, way


def encoded(table: Any, schema: TableSchema) -> Mapping[str, Rows]:
    """The rows of a table of Arrow: features as values_of gives them, the label as `label_of`; rows may be left out.

    Raises:
        BadRowError: A value is not of its column's type, missing where that is refused, or no class.
    """
    found: dict[str, Rows] = {}
    for name, column in schema.features.items():
        found[name] = _values(table, name, column)
        if column.treatment == REFUSE:
            _refuse_missing(found[name], name, "give another `missing` in the schema")
    label = schema.label
    if label is None or label not in table.column_names:
        return found
    values = _values(table, label, schema.columns[label])
    there = is_there(values)
    if schema.columns[label].treatment != DROP:
        _refuse_missing(values, label, "give `missing: drop` in the schema, which leaves such rows out")
    elif not there.all():
        values, found = values[there], {name: rows[there] for name, rows in found.items()}
    rows = np.flatnonzero(there)
    return found | {label: _label(values, rows, schema)}


def for_evaluation(table: Any, schema: TableSchema) -> np.ndarray:
    """Of each row of a table of Arrow whether it is to evaluate with, as a column decides: bool `[rows]`.

    Raises:
        BadRowError: A value is not of the column's type, or a time is missing.
    """
    split = schema.split
    assert split is not None
    assert split.column is not None
    try:
        return by_value(split, _values(table, split.column, schema.columns[split.column]))
    except NoTimeError as error:
        raise BadRowError(error.row, split.column, error.text, error.way) from None


def _values(table: Any, name: str, column: ColumnSchema) -> Rows:
    try:
        return values_of(table.column(name), column)
    except BadValueError as error:
        raise BadRowError(error.row, name, error.text, error.way) from None


def is_there(values: Rows) -> np.ndarray:
    """In which rows there is a value: bool `[rows]`."""
    found: np.ndarray = values.lengths > 0 if isinstance(values, Ragged) else ~np.isnan(values)
    return found


def _refuse_missing(values: Rows, name: str, way: str) -> None:
    there = is_there(values)
    if not there.all():
        raise BadRowError(int(np.argmin(there)), name, "has no value", way)


def _label(values: Rows, rows: np.ndarray, schema: TableSchema) -> np.ndarray:
    """The label: of classes their numbers, int64 `[rows]`; else the numbers themselves, float64.

    Args:
        rows: Their numbers in the table.
    """
    name = schema.label
    assert name is not None
    if not schema.classes:
        numbers = np.asarray(values)
        if not np.isfinite(numbers).all():
            place = int(np.argmin(np.isfinite(numbers)))
            way = "leave its row out"
            raise BadRowError(int(rows[place]), name, f"has {numbers[place]:g}, not a finite number", way)
        if schema.task == "counts" and (wrong := (numbers < 0) | (numbers != np.floor(numbers))).any():
            place = int(np.argmax(wrong))
            text = f"has {numbers[place]:g}, not a whole number from 0 on"
            raise BadRowError(int(rows[place]), name, text, "give `task: regression`")
        return numbers
    if isinstance(values, Ragged):
        texts = arrow_of_texts(values)
        places = compute.index_in(texts, pa.array([str(each).encode() for each in schema.classes], pa.large_binary()))
    else:
        numbers = np.asarray(values)
        places = compute.index_in(pa.array(numbers), pa.array([float(each) for each in schema.classes]))
    if places.null_count:
        place = int(np.argmin(np.asarray(places.is_valid())))
        value: Any = values[np.array([place])].texts()[0].decode() if isinstance(values, Ragged) else values[place]
        classes = listed(map(str, schema.classes))
        text = f"has {shown_value(value)}, which is no class of the schema ({classes})"
        way = "add it to these"
        if not isinstance(values, Ragged) and schema.columns[name].type != "boolean":
            way += ", or give `task: regression` or `counts`"
        raise BadRowError(int(rows[place]), name, text, way)
    return np.asarray(places).astype(np.int64)
