"""The tables that built-in models are compared on: those that scikit-learn carries, and one that is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from sklearn import datasets
from sklearn.model_selection import KFold, StratifiedKFold

from hpc_train.config.table_schema import Task
from hpc_train.tabular.column_facts import MOST_DISTINCT
from hpc_train.tabular.inference import MOST_VALUES
from tables.orders import orders

SEED = 0
LABEL = "y"
"""What the label is called in files."""


@dataclass(frozen=True)
class DataSet:
    """Rows of a table.

    Attributes:
        task: What the label is.
        columns: By name `[rows]`: float64, NaN where missing; or objects of str, "" where missing.
        label: `[rows]`: int64, classes from 0 on; or float64.
        of_words: The columns of texts of several words.
        most_values: Each `--most-values` of `hpc-train schema` that is tried.
        is_overfitted: Whether 200 passes are far too many for a network.
    """

    task: Task
    columns: Mapping[str, np.ndarray]
    label: np.ndarray
    of_words: tuple[str, ...] = ()
    most_values: tuple[int, ...] = (MOST_VALUES,)
    is_overfitted: bool = False

    def first(self, rows: int | None) -> DataSet:
        """The first rows, `rows` at most; None: all."""
        return self._rows(np.arange(len(self.label))[:rows])

    def folds(self, count: int) -> Iterator[tuple[DataSet, DataSet]]:
        """Rows to train on, and the others, `count` times; of classes each fold has the same share."""
        split = (KFold if self.task == "regression" else StratifiedKFold)(count, shuffle=True, random_state=SEED)
        for train, test in split.split(self.label, self.label):
            yield self._rows(train), self._rows(test)

    def write(self, path: Path) -> None:
        """Writes a Parquet file, with LABEL as its last column."""
        columns = {name: pa.array(column, mask=is_missing(column)) for name, column in self.columns.items()}
        parquet.write_table(pa.table({**columns, LABEL: self.label}), path)

    def _rows(self, numbers: np.ndarray) -> DataSet:
        columns = {name: column[numbers] for name, column in self.columns.items()}
        return replace(self, columns=columns, label=self.label[numbers])


def is_missing(column: np.ndarray) -> np.ndarray:
    """Where a column of a DataSet lacks a value: bool `[rows]`."""
    found: np.ndarray = column == "" if column.dtype == object else np.isnan(column)
    return found


def _carried(load: Callable[[], Any], task: Task) -> DataSet:
    found = load()
    return DataSet(task, {f"x{place}": column for place, column in enumerate(found.data.T)}, found.target)


def _made() -> DataSet:
    columns, label = orders()
    return DataSet("binary", columns, label, ("comment",), (MOST_VALUES, MOST_DISTINCT), is_overfitted=True)


DATA_SETS: Mapping[str, Callable[[], DataSet]] = {
    "breast_cancer": partial(_carried, datasets.load_breast_cancer, "binary"),
    "wine": partial(_carried, datasets.load_wine, "classes"),
    "diabetes": partial(_carried, datasets.load_diabetes, "regression"),
    "digits": partial(_carried, datasets.load_digits, "classes"),
    "orders": _made,
}
"""By name."""
