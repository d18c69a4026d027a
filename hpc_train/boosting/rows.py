"""The rows of shards that a rank trains on, or evaluates, as trees see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpc_train.config.table_schema import TableSchema
from hpc_train.data.hdf5.reader import Reader
from hpc_train.data.hdf5.shards import ShardSet
from hpc_train.data.ragged import Ragged
from hpc_train.errors import UserError
from hpc_train.trees.columns import LARGEST, TreeColumns

READ_ROWS = 65_536
"""At a time."""


@dataclass(frozen=True)
class TreeRows:
    """This rank's rows.

    Attributes:
        features: float32 `[rows, features]`. labels: float32 `[rows]`. weights: float32 `[rows]`, or None: all weigh 1.
    """

    features: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)


def read_rows(
    shards: ShardSet,
    part: int,
    parts: int,
    columns: TreeColumns,
    schema: TableSchema,
    class_weight: Mapping[int, float] | None = None,
) -> TreeRows:
    """Part number `part` of all rows, which follow each other. Local; all of it is kept in memory.

    Raises:
        UserError: A label is of no class. OSError: a shard cannot be read.
    """
    first, end = shards.rows * part // parts, shards.rows * (part + 1) // parts
    features, labels = [np.zeros((0, len(columns.names)), np.float32)], [np.zeros(0)]
    with Reader(shards) as reader:
        for begin in range(first, end, READ_ROWS):
            read = reader.read(np.arange(begin, min(begin + READ_ROWS, end)))
            arrays = [rows.texts() if isinstance(rows, Ragged) else np.array(rows) for rows in read]
            named = {column.name: array for column, array in zip(shards.columns, arrays, strict=True)}
            features.append(columns.matrix(named))
            labels.append(named[shards.labels[0].name].astype(np.float64).reshape(-1))
    found = np.concatenate(labels)
    _check(found, first, schema)
    weights = None
    if class_weight is not None:
        weights = np.array([class_weight.get(int(label), 1.0) for label in range(len(schema.classes))], np.float32)
        weights = weights[found.astype(np.int64)]
    return TreeRows(np.concatenate(features), found.astype(np.float32), weights)


def _check(labels: np.ndarray, first: int, schema: TableSchema) -> None:
    """UserError where a label is none that the schema has."""
    classes = len(schema.classes)
    wrong = ~(np.abs(labels) <= LARGEST) if not classes else ~((labels >= 0) & (labels < classes) & (labels % 1 == 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        allowed = f"a whole number from 0 to {classes - 1}" if classes else f"a number up to {LARGEST:.2g}"
        raise UserError(f"row {first + row} of the shards has the label {labels[row]:g}, not {allowed}; make them anew")
