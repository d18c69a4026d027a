"""ShardSet: the rows of several HDF5 files as one table, checked before anything is trained on them."""

from __future__ import annotations

import glob
import os
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpc_train.config.specs import HDF5Input
from hpc_train.errors import UserError

LABEL_NAMES = ("label", "labels", "y")


@dataclass(frozen=True)
class Column:
    """A dataset that all shards have: `[rows, *shape]` of `dtype` (numpy's name for it)."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype} [rows{''.join(f', {n}' for n in self.shape)}]"


@dataclass(frozen=True)
class ShardSet:
    """Shards in order, with the columns that are read from them."""

    paths: tuple[str, ...]
    shard_rows: tuple[int, ...]
    features: tuple[Column, ...]
    labels: tuple[Column, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        """Features, then labels."""
        return self.features + self.labels

    @property
    def rows(self) -> int:
        """Rows of all shards together."""
        return sum(self.shard_rows)

    @cached_property
    def starts(self) -> np.ndarray:
        """Row number of each shard's first row, int64 `[shards]`."""
        return np.concatenate([[0], np.cumsum(self.shard_rows)[:-1]]).astype(np.int64)

    def to_json(self) -> dict[str, Any]:
        """As plain values, to be sent to other ranks."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ShardSet:
        """The inverse of `to_json`."""

        def columns(items: list[dict[str, Any]]) -> tuple[Column, ...]:
            return tuple(Column(c["name"], tuple(c["shape"]), c["dtype"]) for c in items)

        return cls(
            tuple(value["paths"]), tuple(value["shard_rows"]), columns(value["features"]), columns(value["labels"])
        )


def open_file(path: str | Path) -> h5py.File:
    """Opens an HDF5 file for reading. Locks are tried and not insisted on: many parallel file systems lack them."""
    return h5py.File(path, "r", locking="best-effort")


def find_shards(source: HDF5Input) -> ShardSet:
    """Finds the files that `source` names and checks them all. Local; opens every file once.

    Raises:
        UserError: No such file, not HDF5, no rows, a dataset that is missing or cannot be trained on, shards whose
            columns or columns whose rows do not fit together.
    """
    paths = _expand(source.shards)
    schemas = [_read_schema(path) for path in paths]
    features, labels = _choose_columns(source, paths[0], schemas[0])
    first = schemas[0]
    shard_rows = []
    for path, schema in zip(paths, schemas, strict=True):
        for name in features + labels:
            if name not in schema:
                raise UserError(f"{path}: has no dataset {name!r}; it has {_listed(schema)}")
            rows, column = schema[name]
            if column is None:
                raise UserError(f"{path}: dataset {name!r} does not hold numbers in rows, so it cannot be trained on")
            if column != first[name][1]:
                raise UserError(f"{path}: dataset {name!r} is {column}, but {first[name][1]} in {paths[0]}")
            if rows != schema[features[0]][0]:
                raise UserError(
                    f"{path}: dataset {name!r} has {rows} rows, but {features[0]!r} has {schema[features[0]][0]}"
                )
        if schema[features[0]][0] == 0:
            raise UserError(f"{path}: has no rows; remove the file or write rows into it")
        shard_rows.append(schema[features[0]][0])
    pick = {name: column for name, (_, column) in first.items() if column is not None}
    return ShardSet(
        tuple(map(str, paths)), tuple(shard_rows), tuple(pick[n] for n in features), tuple(pick[n] for n in labels)
    )


def _expand(patterns: tuple[str, ...]) -> list[Path]:
    paths: list[Path] = []
    for pattern in patterns:
        found = [Path(pattern)] if Path(pattern).exists() else sorted(map(Path, glob.glob(pattern, recursive=True)))
        if not found:
            raise UserError(f"no such shard: {pattern} matches no file")
        paths += found
    twice = [path for path, times in Counter(map(os.path.abspath, paths)).items() if times > 1]
    if twice:
        raise UserError(f"shard named twice: {min(twice)}")
    return paths


Schema = dict[str, tuple[int, Column | None]]


def _read_schema(path: Path) -> Schema:
    """Rows and column of each top-level dataset; the column is None where it holds no numbers in rows."""
    try:
        with open_file(path) as file:
            return {n: _column(n, item) for n, item in file.items() if isinstance(item, h5py.Dataset)}
    except (OSError, KeyError) as error:
        raise UserError(f"{path}: cannot be read as HDF5: {error}") from None


def _column(name: str, dataset: h5py.Dataset) -> tuple[int, Column | None]:
    if dataset.shape is None or dataset.ndim == 0:
        return 0, None
    if dataset.dtype.kind not in "buifc":
        return int(dataset.shape[0]), None
    return int(dataset.shape[0]), Column(name, tuple(map(int, dataset.shape[1:])), dataset.dtype.newbyteorder("=").name)


def _choose_columns(source: HDF5Input, path: Path, schema: Schema) -> tuple[tuple[str, ...], tuple[str, ...]]:
    labels = source.label
    if labels is None:
        found = [name for name in LABEL_NAMES if name in schema and name not in (source.features or ())]
        if not found:
            raise UserError(f"{path}: which dataset is the label? Give `label`; the file has {_listed(schema)}")
        labels = (found[0],)
    features = source.features
    if features is None:
        features = tuple(name for name, (_, column) in schema.items() if column is not None and name not in labels)
        if not features:
            raise UserError(f"{path}: has no dataset of numbers beside the label; it has {_listed(schema)}")
    return features, labels


def _listed(schema: Schema) -> str:
    return ", ".join(f"{name} ({column or 'not numbers'})" for name, (_, column) in schema.items()) or "no datasets"
