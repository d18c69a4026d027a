"""ShardSet: the rows of several HDF5 files as one table, checked before anything is trained on them."""

from __future__ import annotations

import glob
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
from pydantic import TypeAdapter

from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.types import datasets_of, padding_of
from hpc_train.data.hdf5.columns import LENGTH, Column
from hpc_train.data.hdf5.file_table import Table, add_lengths, mean_bytes, read_table, shown_table
from hpc_train.data.hdf5.input_file import NONE, Consent, OutsideError
from hpc_train.data.hdf5.layout import REFERENCE, ByEnds, Chunked, InHeaps, Layout, Opaque
from hpc_train.data.memory import available_bytes, fits
from hpc_train.data.sampling.dealing import Blocks
from hpc_train.errors import UserError, did_you_mean
from hpc_train.text import NAMED, by_mistake, listed

P = ParamSpec("P")
T = TypeVar("T")
LABEL_NAMES = ("label", "labels", "y")
BLOCK_BYTES = 4 << 20
"""About what a parallel file system gives in one piece: blocks are that large, where there are many of them."""
MIN_BLOCKS = 1024
MAX_BLOCK_ROWS = 1 << 16
"""Chunks of more rows, such as labels may have, are decoded again for each block instead."""
MAX_PART = 8
"""A batch may take half of the memory that is free."""


@dataclass(frozen=True)
class ShardSet:
    """Shards in order, with the columns that are read from them.

    Attributes:
        file_bytes: Size of each file; `layouts`: of each column in each shard.
        consent: Which files outside of them may be read.
    """

    paths: tuple[str, ...]
    shard_rows: tuple[int, ...]
    file_bytes: tuple[int, ...]
    features: tuple[Column, ...]
    labels: tuple[Column, ...]
    layouts: tuple[tuple[Layout, ...], ...]
    consent: Consent = NONE

    @property
    def feature_inputs(self) -> dict[str, str]:
        """The dataset of each feature, by what the model calls it."""
        return {column.key: column.name for column in self.features}

    @property
    def columns(self) -> tuple[Column, ...]:
        """Features, then labels."""
        return self.features + self.labels

    @property
    def rows(self) -> int:
        """Rows of all shards together."""
        return sum(self.shard_rows)

    def only(self, number: int) -> ShardSet:
        """The same shards with column `number` alone, as a feature."""
        layouts = tuple((shard[number],) for shard in self.layouts)
        return replace(self, features=(self.columns[number],), labels=(), layouts=layouts)

    def lengths_of(self, name: str) -> ShardSet:
        """The same shards with the lengths of the rows of the ragged column `name`, as the one feature."""
        (number,) = (k for k, column in enumerate(self.columns) if column.name == name)
        shape = self.columns[number].shape if self.columns[number].is_text else ()
        return replace(self.only(number), features=(Column(name + LENGTH, shape, "int64", kind="length"),))

    @property
    def row_bytes(self) -> int:
        return sum(column.row_bytes for column in self.columns)

    @cached_property
    def blocks(self) -> Blocks:
        """Blocks for block mode."""
        return self.blocks_of(1)

    def blocks_of(self, least_rows: int, most_bytes: int | None = None) -> Blocks:
        """Blocks within one shard each, of whole chunks where there are chunks: about 4 MiB, where there are many.

        Args:
            least_rows: So many rows a block has even where there are few, if it is below 4 MiB then.
            most_bytes: Chunks that would make a block larger are not kept whole; None: all are.
        """
        rows = max(least_rows, -(-self.rows // MIN_BLOCKS))
        rows = max(1, min(BLOCK_BYTES // max(1, self.row_bytes), rows))
        starts = []
        for start, shard_rows, layouts in zip(self.starts, self.shard_rows, self.layouts, strict=True):
            each = zip(layouts, self.columns, strict=True)
            chunks = (stored.band_rows(size) for layout, c in each for stored, size in _chunked(layout, c))
            most = MAX_BLOCK_ROWS if most_bytes is None else most_bytes // max(1, self.row_bytes)
            chunk = max((size for size in chunks if size <= min(most, MAX_BLOCK_ROWS)), default=1)
            starts.append(start + np.arange(0, shard_rows, -(-rows // chunk) * chunk))
        return Blocks(np.append(np.concatenate(starts), self.rows))

    @cached_property
    def starts(self) -> np.ndarray:
        """Row number of each shard's first row, int64 `[shards]`."""
        return np.concatenate([[0], np.cumsum(self.shard_rows)[:-1]]).astype(np.int64)

    def to_json(self) -> dict[str, Any]:
        """As plain values, to be sent to other ranks."""
        plain: dict[str, Any] = _PLAIN.dump_python(self, mode="json")
        return plain

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ShardSet:
        return _PLAIN.validate_python(value)


_PLAIN = TypeAdapter(ShardSet)


def _chunked(layout: Layout, column: Column) -> list[tuple[Chunked, int]]:
    """The chunked dataset that has a row of `column` whole, and what a row of it takes."""
    if isinstance(layout, InHeaps):
        layout, row_bytes = layout.references, REFERENCE.itemsize * math.prod(column.shape if column.is_text else ())
    elif isinstance(layout, ByEnds):
        layout, row_bytes = layout.ends, 8 * math.prod(column.shape if column.is_text else ())
    else:
        row_bytes = column.row_bytes
    return [(layout, row_bytes)] if isinstance(layout, Chunked) else []


def find_shards(source: HDF5Input, in_batches: bool = True) -> ShardSet:
    """Finds the files that `source` names and checks them all. Local; opens every file once.

    Args:
        in_batches: Whether it is read in batches, which memory has to hold, with rows of one length.

    Raises:
        UserError: No such file, not HDF5, cut short, being written, no rows, a dataset that is missing, cannot be
            trained on, lies in files that the user does not allow, or declares what cannot be; shards whose columns or
            columns whose rows do not fit together; a batch that no memory holds.
    """
    paths, consent = _expand(source.shards), Consent(source.external)
    with _Mistakes() as mistakes:
        tables = [table for path in paths if (table := mistakes.of(path, read_table, path, consent)) is not None]
    features, labels = _choose_columns(source, paths[0], tables[0])
    names, first = tuple(features.values()) + tuple(labels.values()), tables[0]
    for name in names:
        if name.endswith(LENGTH):
            add_lengths(tables, name)
    with _Mistakes() as mistakes:
        for path, table in zip(paths, tables, strict=True):
            mistakes.of(path, _check, path, table, names, paths[0], first)
    given = [
        key if isinstance(chosen, dict) else None
        for chosen, found in ((source.features, features), (source.label, labels))
        for key in found
    ]
    columns = tuple(
        replace(column, given=key, mean_bytes=mean_bytes([table[name] for table in tables]))
        for name, key in zip(names, given, strict=True)
        if (column := first[name].column) is not None
    )
    if in_batches:
        _check_padded(source, paths[0], columns)
        _check_batch(source, paths[0], sum(column.row_bytes for column in columns))
    return ShardSet(
        tuple(map(str, paths)),
        tuple(table[names[0]].rows for table in tables),
        tuple(path.stat().st_size for path in paths),
        columns[: len(features)],
        columns[len(features) :],
        tuple(tuple(layout for name in names if (layout := table[name].layout) is not None) for table in tables),
        consent,
    )


class _Mistakes:
    """What is wrong with files, each of which is looked at before they are refused. A context manager.

    Raises:
        UserError: At its end, where something is; a line for each mistake, whatever number of files has it. An
            OutsideError where nothing but consent is missing.
    """

    def __init__(self) -> None:
        self._found: list[tuple[str, str]] = []
        self._outside: dict[Path, OutsideError] = {}

    def of(self, path: Path, look: Callable[P, T], *args: P.args, **named: P.kwargs) -> T | None:
        """What `look` returns; None where something is wrong with `path`."""
        try:
            return look(*args, **named)
        except UserError as error:
            self._found.append((str(path), str(error).removeprefix(f"{path}: ")))
            if isinstance(error, OutsideError):
                self._outside[path] = error
            return None

    def __enter__(self) -> _Mistakes:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self._found:
            said = "\n".join(by_mistake(self._found))
            if len(self._outside) == len(self._found):
                raise OutsideError(said, dict.fromkeys(file for each in self._outside.values() for file in each.files))
            raise UserError(said)


def _check_batch(source: HDF5Input, path: Path, row_bytes: int) -> None:
    size = source.batch_size * row_bytes
    if not fits(size // MAX_PART):
        raise UserError(
            f"{path}: batch_size {source.batch_size} x rows of {row_bytes:,} bytes does not fit well into the "
            f"{available_bytes():,} bytes of free memory; take a smaller batch_size"
        )


def _check(path: Path, table: Table, names: tuple[str, ...], first_path: Path, first: Table) -> None:
    for name in names:
        if name not in table:
            raise UserError(f"{path}: has no dataset {name!r}; {did_you_mean(name, table)}it has {shown_table(table)}")
        entry = table[name]
        rows, column, layout = entry.rows, entry.column, entry.layout
        if entry.problem is not None:
            raise entry.problem
        if column is None:
            what = "does not hold numbers or texts in rows, so it cannot be trained on"
            raise UserError(f"{path}: dataset {name!r} {what}")
        if column != first[name].column:
            raise UserError(f"{path}: dataset {name!r} is {column}, but {first[name].column} in {first_path}")
        if rows != table[names[0]].rows:
            raise UserError(f"{path}: dataset {name!r} has {rows} rows, but {names[0]!r} has {table[names[0]].rows}")
        if rows == 0:
            raise UserError(f"{path}: dataset {name!r} has no rows; remove the file or write rows into it")
        if isinstance(layout, Opaque) and not layout.readable:
            raise UserError(f"{path}: dataset {name!r} cannot be read: {layout.reason}")


def matches(pattern: str) -> list[Path]:
    """The files that `pattern` names, itself a path or a glob, in order."""
    return [Path(pattern)] if Path(pattern).exists() else sorted(map(Path, glob.glob(pattern, recursive=True)))


def _expand(patterns: tuple[str, ...]) -> list[Path]:
    found = [matches(pattern) for pattern in patterns]
    if missing := [pattern for pattern, here in zip(patterns, found, strict=True) if not here]:
        match = "matches no file" if len(missing) == 1 else "match no file"
        raise UserError(f"no such shard: {listed(missing, most=NAMED)} {match}")
    paths = [path for here in found for path in here]
    twice = [path for path, times in Counter(map(os.path.abspath, paths)).items() if times > 1]
    if twice:
        raise UserError(f"shard named twice: {min(twice)}")
    return paths


def _check_padded(source: HDF5Input, path: Path, columns: Sequence[Column]) -> None:
    """Whether what is padded are ragged columns of numbers, all of them."""
    ragged = [column.name for column in columns if column.takes_padding]
    for column in columns:
        if column.name in ragged and column.name not in source.pad:
            raise UserError(
                f"{path}: dataset {column.name!r} is {column}: its rows have different lengths; give "
                f"`pad: {{{column.name}: 0}}`, by which each batch is padded with 0 to its longest row, or "
                f"`pad: {{{column.name}: {{value: 0, length: 128}}}}`, to that length"
            )
    by = source.bucket_by
    if by is not None and not any(column.name == by and column.kind == "ragged" for column in columns):
        raise UserError(f"{path}: `bucket_by` names {by!r}, which is no feature or label of rows of different lengths")
    for name in source.pad:
        if name not in ragged:
            raise UserError(
                f"{path}: `pad` names {name!r}, which is no feature or label whose rows have different lengths; "
                f"{f'those are {listed(ragged)}' if ragged else 'there is none'}"
            )
    for column in columns:
        value = padding_of(source.pad[column.name])[0] if column.name in source.pad else 0
        if not _holds(np.dtype(column.dtype), value):
            raise UserError(f"{path}: `pad` has {value} for dataset {column.name!r}, which {column.dtype} cannot hold")


def _holds(dtype: np.dtype, value: float) -> bool:
    """Whether numbers of `dtype` can have `value`, as far as they have fractions at all."""
    if dtype.kind not in "iub":
        return True
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return math.isfinite(value) and value == int(value) and low <= value <= high


def _choose_columns(source: HDF5Input, path: Path, table: Table) -> tuple[dict[str, str], dict[str, str]]:
    """The datasets of features and labels, each by what it is called in a batch."""
    taken = datasets_of(source.features)
    labels = source.label
    if labels is None:
        found = [name for name in LABEL_NAMES if name in table and name not in taken]
        if not found:
            raise UserError(f"{path}: which dataset is the label? Give `label`; the file has {shown_table(table)}")
        labels = (found[0],)
    features = source.features
    if features is None:
        others = (name for name in table if name not in datasets_of(labels))
        features = tuple(name for name in others if table[name].column or table[name].problem)
        if not features:
            raise UserError(f"{path}: has no dataset of numbers or texts beside the label; it has {shown_table(table)}")
    return _by_key(features), _by_key(labels)


def _by_key(names: tuple[str, ...] | dict[str, str]) -> dict[str, str]:
    return names if isinstance(names, dict) else {name: name for name in names}


def record_of(shards: ShardSet) -> list[dict[str, Any]]:
    """What a job-dir records of them: name, rows and bytes of each shard. Folders are left out: data may move."""
    each = zip(shards.paths, shards.shard_rows, shards.file_bytes, strict=True)
    return [{"file": Path(path).name, "rows": rows, "bytes": size} for path, rows, size in each]


def check_record(began: list[dict[str, Any]], shards: ShardSet, where: Path) -> None:
    """Compares `shards` with what `record_of` gave when the job began.

    Raises:
        UserError: A shard has changed, is new, or is gone: the order of rows would be another one.
    """
    now = record_of(shards)
    remedy = f"begin a new job-dir, or remove {where} to go on with the data as they are now"
    for then, path, here in zip(began, shards.paths, now, strict=False):
        if then["file"] != here["file"]:
            raise UserError(f"{path}: the job began with {then['file']} in its place; {remedy}")
        if then != here:
            raise UserError(
                f"{path}: has changed since the job began: {then['rows']} rows in {then['bytes']} bytes then, "
                f"{here['rows']} rows in {here['bytes']} bytes now; {remedy}"
            )
    if len(began) != len(now):
        raise UserError(
            f"{shards.paths[0]}: the job began with {len(began)} shards, now there are {len(now)}; {remedy}"
        )
