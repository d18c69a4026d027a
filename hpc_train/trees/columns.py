"""What trees see of a table's columns: one matrix of numbers, NaN where a value is missing. Pure."""

from __future__ import annotations

import hashlib
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from hpc_train.config.table_schema import ColumnSchema, TableSchema
from hpc_train.data.tables.words import words_of
from hpc_train.errors import UserError

MOST_WORDS = 200
"""Of a text, the most frequent ones are counted each."""
DAY = 86_400.0
LARGEST = float(np.finfo(np.float32).max)
QUANTITY, CATEGORY = "q", "c"
"""How XGBoost calls the kinds of features."""


@dataclass(frozen=True)
class _Column(ABC):
    """A column of the table, which becomes one or more features."""

    name: str

    @property
    @abstractmethod
    def features(self) -> Sequence[str]:
        """Their names."""

    @property
    def kind(self) -> str:
        """Of its features."""
        return QUANTITY

    @abstractmethod
    def values(self, rows: np.ndarray) -> np.ndarray:
        """float32 `[rows, features]` of float64 or bytes `[rows]`."""


class _Number(_Column):
    @property
    def features(self) -> Sequence[str]:
        return [self.name]

    def values(self, rows: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.clip(rows, -LARGEST, LARGEST).astype(np.float32)[:, None]  # trees take no infinity
        return found


_PARTS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "day": lambda seconds: seconds / DAY,
    "time of day": lambda seconds: seconds % DAY / 3600,
    "weekday": lambda seconds: (seconds // DAY + 3) % 7,
    "day of year": lambda seconds: seconds / DAY % 365.2425,
}
"""Of dates: days since 1970-01-01, hours, days since Monday, days."""


class _Date(_Column):
    @property
    def features(self) -> Sequence[str]:
        return [f"{self.name} ({part})" for part in _PARTS]

    def values(self, rows: np.ndarray) -> np.ndarray:
        return np.stack([part(rows) for part in _PARTS.values()], axis=1).astype(np.float32)


@dataclass(frozen=True)
class _Category(_Column):
    """A value's place in the vocabulary.

    Attributes:
        vocabulary: Of Arrow.
        unknown: What all others have: the place after its end; NaN where training had none, as if they were missing:
            at each split XGBoost sends a category that it has never seen the same way.
    """

    vocabulary: Any
    unknown: float

    @property
    def features(self) -> Sequence[str]:
        return [self.name]

    @property
    def kind(self) -> str:
        return CATEGORY

    def values(self, rows: np.ndarray) -> np.ndarray:
        if rows.dtype == object:
            missing = np.array([not text for text in rows], bool)
            given = pa.array(rows, pa.large_binary())
        else:
            missing, given = np.isnan(rows), pa.array(rows)
        places = compute.index_in(given, self.vocabulary)
        found = np.asarray(places.fill_null(0)).astype(np.float32)
        found[np.asarray(places.is_null())] = self.unknown
        found[missing] = np.nan
        return found[:, None]


@dataclass(frozen=True)
class _Words(_Column):
    """How often each word occurs, and how many words there are."""

    vocabulary: Any
    """Of Arrow."""

    @property
    def features(self) -> Sequence[str]:
        return [f"{self.name}: {word}" for word in self.vocabulary.cast(pa.large_string()).to_pylist()] + [
            f"{self.name} (words)"
        ]

    def values(self, rows: np.ndarray) -> np.ndarray:
        words, of = words_of(pa.array(rows, pa.large_binary()))
        found = np.zeros((len(rows), len(self.vocabulary) + 1), np.float32)
        places = compute.index_in(words.cast(pa.large_binary()), self.vocabulary)
        known = np.asarray(places.is_valid())
        np.add.at(found, (of[known], np.asarray(places.fill_null(0))[known]), 1)
        found[:, -1] = np.bincount(of, minlength=len(rows))
        return found


class TreeColumns:
    """The features that trees are grown on, of the columns that a schema gives a model.

    Numbers and truth values as they are; dates in days, and their time of day, weekday and day of the year;
    categorical values by their place in the vocabulary, as categories, and others as one more, or as missing where
    training had none; of texts how often each of the MOST_WORDS most frequent words occurs.

    Attributes:
        columns: Of the table, in the schema's order.
        names, kinds: Of the features, as XGBoost takes them.

    Raises:
        UserError: A column has no vocabulary.
    """

    def __init__(self, schema: TableSchema) -> None:
        self._columns = [_column(name, column) for name, column in schema.features.items()]
        self.columns = [column.name for column in self._columns]
        self.names = _distinct([name for column in self._columns for name in column.features])
        self.kinds = [column.kind for column in self._columns for _ in column.features]

    def matrix(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """float32 `[rows, features]`.

        Args:
            rows: By column: float64 `[rows]`, NaN where one is missing; of texts bytes, b"" where one is missing.
        """
        return np.concatenate([column.values(np.asarray(rows[column.name])) for column in self._columns], axis=1)


def digest_of(schema: TableSchema) -> str:
    """Of all that decides what a booster sees of a table, and what its outputs mean."""
    columns = [
        [name, column.type, column.role, column.vocabulary, column.out_of_vocabulary > 0]
        for name, column in schema.features.items()
    ]
    return hashlib.sha256(json.dumps([schema.task, schema.classes, columns]).encode()).hexdigest()


def _column(name: str, column: ColumnSchema) -> _Column:
    if column.role == "numeric":
        return _Number(name)
    if column.role == "date":
        return _Date(name)
    if not column.vocabulary:
        raise UserError(f"column {name!r} of the schema has no vocabulary; give one, or another role")
    if column.type == "text":
        values = pa.array([str(each).encode() for each in column.vocabulary], pa.large_binary())
    else:
        values = pa.array([float(each) for each in column.vocabulary])
    if column.role == "text":
        return _Words(name, values[:MOST_WORDS])
    return _Category(name, values, len(values) if column.out_of_vocabulary else math.nan)


def _distinct(names: Sequence[str]) -> list[str]:
    """Names that XGBoost takes: without brackets and less-than, and each once."""
    found: dict[str, None] = {}
    for name in names:
        plain = same = re.sub(r"[\[\]<]", "_", name)
        number = 2
        while plain in found:
            plain, number = f"{same} {number}", number + 1
        found[plain] = None
    return list(found)
