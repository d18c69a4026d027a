"""Schemas and rows for tests of built-in models: each kind of column, values missing, names of all sorts."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from hpc_train.config.table_schema import TableSchema

DAY = 86_400.0


def statistics(values: np.ndarray) -> dict[str, Any]:
    there = values[~np.isnan(values)]
    quantiles = np.quantile(there, [0.25, 0.5, 0.75]).tolist()
    of_all = {"count": len(there), "missing": len(values) - len(there), "quantiles": quantiles}
    return {**of_all, "mean": float(there.mean()), "std": float(there.std())}


LABELS: dict[str, dict[str, Any]] = {
    "binary": {"type": "text", "vocabulary": ["no", "yes"], "statistics": {"count": 9, "counts": [3, 6]}},
    "classes": {"type": "integer", "vocabulary": [10, 20, 30]},
    "regression": {"type": "number", "statistics": {"count": 9, "mean": 5, "std": 2}},
    "counts": {"type": "integer", "statistics": {"count": 9, "mean": 5}},
}

ROWS: dict[str, list[Any]] = {
    "age in years": [1e9 + 1, np.nan, 1e9 - 3],
    "constant": [1.5, 1.5, np.nan],
    "größe": [3.0, np.nan, 1.0],
    "born": [0.0, np.nan, 19_675 * DAY + DAY / 4],
    "city": ["Bern", "", "nowhere"],
    "code": [2.0**53, np.nan, 3.4],
    "comment": ["Good, good film!", "", "what"],
}
"""The third city, code and comment are out of their vocabularies."""
COLUMNS: dict[str, dict[str, Any]] = {
    "age in years": {
        "type": "number",
        "role": "numeric",
        "missing": "median",
        "statistics": {"count": 3, "missing": 1, "mean": 1e9, "std": 2, "quantiles": [1, 1e9 + 8, 2e9]},
    },
    "constant": {
        "type": "number",
        "role": "numeric",
        "missing": "refuse",
        "statistics": {"count": 3, "mean": 1, "std": 0},
    },
    "größe": {"type": "integer", "role": "numeric", "missing": "zero", "statistics": {"count": 3, "mean": 2, "std": 2}},
    "born": {"type": "date", "role": "date", "statistics": {"count": 3, "mean": 0, "std": 19_675.25 * DAY}},
    "city": {"type": "text", "role": "categorical", "vocabulary": ["Bern", "[UNK]", "Zürich\nWest"]},
    "code": {"type": "number", "role": "categorical", "vocabulary": [3.5, -1, 2**53]},
    "comment": {
        "type": "text",
        "role": "text",
        "vocabulary": ["good", "bad", "film"],
        "statistics": {"count": 2, "missing": 1},
    },
}


def schema(task: str | None = "binary", columns: dict[str, dict[str, Any]] = COLUMNS, **label: Any) -> TableSchema:
    """A schema of `columns` and a label y for `task`."""
    label = {} if task is None else {"y": {"role": "label", **LABELS[task], **label}}
    return TableSchema(task=task, rows=9, columns={"number": {"type": "integer", "role": "id"}, **columns, **label})


def batch(rows: dict[str, list[Any]] = ROWS) -> dict[str, tf.Tensor]:
    """Raw rows as a model takes them."""
    return {k: tf.constant(v, tf.string if isinstance(v[0], str) else tf.float64) for k, v in rows.items()}
