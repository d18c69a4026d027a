"""What trees see of a table's columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpc_train.config.table_schema import TableSchema
from hpc_train.errors import UserError
from hpc_train.trees.columns import TreeColumns

NAN = float("nan")
COLUMNS: dict[str, Any] = {
    "x<1>": {"type": "number", "role": "numeric"},
    "x[1>": {"type": "integer", "role": "numeric"},
    "city": {"type": "text", "role": "categorical", "vocabulary": ["Bern", "Genève"], "out_of_vocabulary": 5},
    "code": {"type": "integer", "role": "categorical", "vocabulary": [7, 3]},
    "sold": {"type": "date", "role": "date"},
    "note": {"type": "text", "role": "text", "vocabulary": ["good", "bad"]},
    "left": {"type": "text", "role": "ignored"},
    "y": {"type": "boolean", "role": "label", "vocabulary": [False, True]},
}


def texts(*values: str) -> np.ndarray:
    found = np.empty(len(values), object)
    found[:] = [value.encode() for value in values]
    return found


def test_each_kind_of_column_becomes_numbers() -> None:
    columns = TreeColumns(TableSchema.model_validate({"task": "binary", "columns": COLUMNS}))
    day = 86400.0
    found = columns.matrix({
        "x<1>": np.array([1.5, NAN, np.inf]),
        "x[1>": np.array([1.0, 2.0, -1e300]),
        "city": texts("Genève", "Zug", ""),
        "code": np.array([3.0, 4.0, NAN]),
        "sold": np.array([0.0, 19723 * day + 6 * 3600, NAN]),  # Thursday, and Monday 2024-01-01
        "note": texts("Good, good; BAD", "other", ""),
    })  # fmt: skip
    assert found.dtype == np.float32
    by_name = {name: found[:, k].tolist() for k, name in enumerate(columns.names)}
    largest = float(np.finfo(np.float32).max)
    expected = {
        "x_1>": [1.5, NAN, largest],
        "x_1> 2": [1, 2, -largest],
        "city": [1, 2, NAN],
        "code": [1, NAN, NAN],  # training had no others
        "sold (day)": [0, 19723.25, NAN],
        "sold (time of day)": [0, 6, NAN],
        "sold (weekday)": [3, 0, NAN],
        "sold (day of year)": [0, np.float32(19723.25 % 365.2425), NAN],
        "note: good": [2, 0, 0],
        "note: bad": [1, 0, 0],
        "note (words)": [3, 1, 0],
    }
    assert list(by_name) == list(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(by_name[name], values, err_msg=name)
    assert [kind for name, kind in zip(columns.names, columns.kinds, strict=True) if kind == "c"] == ["c", "c"]
    assert columns.columns == ["x<1>", "x[1>", "city", "code", "sold", "note"]
    empty = columns.matrix({name: texts() if name in ("city", "note") else np.zeros(0) for name in columns.columns})
    assert empty.shape == (0, 11)


def test_a_category_without_a_vocabulary_is_refused() -> None:
    columns = {**COLUMNS, "city": {"type": "text", "role": "categorical"}}
    with pytest.raises(UserError, match="column 'city' of the schema has no vocabulary"):
        TreeColumns(TableSchema.model_validate({"task": "binary", "columns": columns}))
