"""What predictions of a table's rows are as columns of a table. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from hpc_train.config.table_schema import TableSchema

PREDICTION, PROBABILITY = "prediction", "probability"
MOST_CLASSES = 20
"""Of more, the probability of the predicted one alone is a column."""


def output_names(schema: TableSchema) -> list[str]:
    """The names of the columns that `output_columns` makes."""
    return [PREDICTION, *_names_of_probabilities(schema)]


def _names_of_probabilities(schema: TableSchema) -> Sequence[str]:
    if not schema.classes:
        return []
    if len(schema.classes) > MOST_CLASSES:
        return [PROBABILITY]
    shown = schema.classes[1:] if schema.task == "binary" else schema.classes
    return [f"{PROBABILITY}_{_text(value)}" for value in shown]


def _text(value: bool | int | float | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def output_columns(values: np.ndarray, schema: TableSchema) -> dict[str, Any]:
    """Columns of Arrow, null where a number is none.

    Of two classes `prediction` is the more probable one, and `probability_<class>` that of the second; of more classes
    there is a `probability_<class>` of each. Of numbers `prediction` is the number.

    Args:
        values: What a built-in model gives, `[rows, units]`.
    """
    values = np.asarray(values, np.float32)
    if not schema.classes:
        return {PREDICTION: _numbers(values[:, 0])}
    both = np.concatenate([1 - values, values], axis=1) if schema.task == "binary" else values
    unknown = np.isnan(both).any(axis=1)
    places = np.where(unknown, 0, np.argmax(np.where(np.isnan(both), 0, both), axis=1))
    predicted = pa.array(schema.classes).take(pa.array(places, mask=unknown))
    if schema.task == "binary":
        shown = values
    elif len(schema.classes) > MOST_CLASSES:
        shown = np.take_along_axis(both, places[:, None], axis=1)
    else:
        shown = both
    names = _names_of_probabilities(schema)
    return {PREDICTION: predicted, **{name: _numbers(shown[:, k]) for k, name in enumerate(names)}}


def _numbers(values: np.ndarray) -> Any:
    return pa.array(np.ascontiguousarray(values), pa.float32(), mask=np.isnan(values))
