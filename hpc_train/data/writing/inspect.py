"""What HDF5 shards hold and how fast it can be read, file by file: `hpc-train shard inspect`."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpc_train.data.hdf5.codecs import filters_of, name_of
from hpc_train.data.hdf5.columns import ENDS, VALUES, Column
from hpc_train.data.hdf5.data_file import HDF5_ERRORS
from hpc_train.data.hdf5.declared import why_not_plausible
from hpc_train.data.hdf5.input_file import InputFile, OutsideError
from hpc_train.data.hdf5.layout import Contiguous, InHeaps, Opaque, layout_of, value_type
from hpc_train.data.hdf5.shards import matches
from hpc_train.data.ragged import TEXT
from hpc_train.errors import UserError
from hpc_train.text import listed

OUTSIDE = "in other files"
_ORDERS = {"<": "little", ">": "big", "|": "", "=": sys.byteorder}


@dataclass(frozen=True)
class DatasetReport:
    """One dataset at a file's top level.

    Attributes:
        shape: Of a row; `dtype` without its byte order, which is `byte_order` ("" where there is none).
        layout: "contiguous", "chunked", or what else HDF5 has; `chunk` with its rows first.
        compression: The filters' names, or "none".
        read_by: "memory map", "parallel chunks", "heaps" or "through HDF5", and then `reason` says why; "not at all"
            where it holds no numbers or texts in rows, or cannot be read; "with consent" where it lies in other files.
        outside: Those files, which are not looked at.
        lengths: Whether rows have different ones, `shape` each value; of texts `shape` each row.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    rows: int
    layout: str
    chunk: tuple[int, ...] | None
    compression: str
    byte_order: str
    stored_bytes: int
    raw_bytes: int
    read_by: str
    reason: str | None
    outside: tuple[str, ...] = ()
    lengths: bool = False

    @property
    def row(self) -> str:
        """Type and shape of a row, in words."""
        any_length = ["any"] if self.lengths and self.dtype != "text" else []
        return f"{self.dtype} [{', '.join(map(str, [*any_length, *self.shape]))}] {self.byte_order}"

    @property
    def alike(self) -> DatasetReport:
        """What shards of one kind have in common."""
        return replace(self, rows=0, stored_bytes=0, raw_bytes=0)


@dataclass(frozen=True)
class FileReport:
    """One file.

    Attributes:
        rows: Of its first dataset of numbers.
        problems: What keeps it from being trained on, alone or together with the others.
    """

    path: str
    bytes: int
    rows: int
    datasets: tuple[DatasetReport, ...]
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def inspect(patterns: Sequence[str]) -> list[FileReport]:
    """Looks at the files that `patterns` name, without reading their rows. Local.

    Raises:
        UserError: A pattern that matches no file.
    """
    paths: list[Path] = []
    for pattern in patterns:
        found = matches(pattern)
        if not found:
            raise UserError(f"{pattern}: no such file")
        paths += found
    reports: list[FileReport] = []
    first: FileReport | None = None
    for path in dict.fromkeys(paths):
        report = _file(path, first)
        first = first or (None if report.problems else report)
        reports.append(report)
    return reports


def _file(path: Path, first: FileReport | None) -> FileReport:
    try:
        size = path.stat().st_size
        with InputFile(path) as file:
            found, problems = [], []
            for name in file.names:
                try:
                    found += _dataset(file, name)
                except UserError as error:
                    problems.append(str(error).removeprefix(f"{path}: "))
    except (UserError, *HDF5_ERRORS) as error:
        return FileReport(str(path), path.stat().st_size if path.exists() else 0, 0, (), (_unreadable(path, error),))
    numbers = _looked_at(found)
    if numbers or not any(dataset.outside for dataset in found):
        problems += _own_problems(numbers)
    if first is not None and not problems:
        problems += _compared(numbers, _looked_at(first.datasets), first.path)
    return FileReport(str(path), size, numbers[0].rows if numbers else 0, tuple(found), tuple(problems))


def _looked_at(datasets: Sequence[DatasetReport]) -> list[DatasetReport]:
    """Those of numbers that lie in the file itself."""
    return [d for d in datasets if d.read_by != "not at all" and not d.outside]


def _unreadable(path: Path, error: Exception) -> str:
    if path.is_dir():
        return "is a folder"
    text = str(error)
    if isinstance(error, UserError):
        return text.removeprefix(f"{path}: ")
    if isinstance(error, OSError) and error.filename:  # no library's error, but the system's
        return str(error.strerror)
    if "truncated file" in text:
        return "is cut short: write or copy it again"
    if "file signature not found" in text:
        return "is not an HDF5 file"
    return f"cannot be read as HDF5: {text}"


def _dataset(file: InputFile, name: str) -> list[DatasetReport]:
    """The report on the dataset `name`; none where it is something else."""
    try:
        dataset = file.dataset(name)
    except OutsideError as error:
        reason = f"it lies in {listed(error.files)}, which `external` has to allow"
        return [DatasetReport(name, "", (), 0, OUTSIDE, None, "", "", 0, 0, "with consent", reason, error.files)]
    if dataset is not None:
        return [_report(name, dataset, file.bytes_around(name, dataset))]
    group = file.group(name, (ENDS, VALUES))
    return [] if group is None else [_group_report(file, name, *group)]


def _group_report(file: InputFile, name: str, ends: h5py.Dataset, values: h5py.Dataset) -> DatasetReport:
    """On rows of different lengths in a group: what holds for their values."""
    both = [_report(name + part, d, file.bytes_around(name + part, d)) for part, d in ((ENDS, ends), (VALUES, values))]
    text = values.dtype == TEXT
    return replace(
        both[1],
        name=name,
        dtype="text" if text else both[1].dtype,
        shape=both[0].shape if text else both[1].shape,
        rows=both[0].rows,
        stored_bytes=sum(report.stored_bytes for report in both),
        raw_bytes=sum(report.raw_bytes for report in both),
        lengths=True,
    )


def _report(name: str, dataset: h5py.Dataset, size: int) -> DatasetReport:
    shape, dtype = dataset.shape or (), dataset.dtype
    read_by, reason = "not at all", "it does not hold numbers or texts in rows"
    value = value_type(dataset)
    if shape and (dtype.kind in "buifcS" or value is not None):
        how = layout_of(dataset)
        if isinstance(how, Opaque):
            read_by, reason = "through HDF5" if how.readable else "not at all", how.reason
        else:
            read_by, reason = "memory map" if isinstance(how, Contiguous) else "parallel chunks", ""
            if isinstance(how, InHeaps):
                read_by, reason = "heaps", "its rows have different lengths: hpc-train shard writes them faster to read"
        if why_not := why_not_plausible(dataset, how, size):
            raise UserError(f"dataset {name!r} {why_not}")
    kinds = {h5py.h5d.CONTIGUOUS: "contiguous", h5py.h5d.CHUNKED: "chunked", h5py.h5d.COMPACT: "compact"}
    return DatasetReport(
        name=name,
        dtype=_type_name(value, dtype),
        shape=tuple(map(int, shape[1:])),
        rows=int(shape[0]) if shape else 0,
        layout=kinds.get(dataset.id.get_create_plist().get_layout(), "virtual"),
        chunk=None if dataset.chunks is None else tuple(map(int, dataset.chunks)),
        compression=name_of(filters_of(dataset)),
        byte_order=_ORDERS[(dtype if value is None else value).byteorder],
        stored_bytes=int(dataset.id.get_storage_size()),
        raw_bytes=math.prod(shape) * dtype.itemsize,
        read_by=read_by,
        reason=reason or None,
        lengths=value is not None,
    )


def _type_name(value: np.dtype | None, dtype: np.dtype) -> str:
    if value is not None and value.kind == "S":
        return "text"
    return f"S{dtype.itemsize}" if dtype.kind == "S" else (dtype if value is None else value).newbyteorder("=").name


def _own_problems(numbers: Sequence[DatasetReport]) -> list[str]:
    if not numbers:
        return ["has no dataset of numbers or texts in rows at its top level"]
    rows = {dataset.rows for dataset in numbers}
    if len(rows) > 1:
        return [f"rows differ: {', '.join(f'{d.name!r} has {d.rows}' for d in numbers)}"]
    return ["has no rows"] if rows == {0} else []


def _compared(numbers: Sequence[DatasetReport], others: Sequence[DatasetReport], path: str) -> list[str]:
    here, there = ({d.name: _column(d) for d in datasets} for datasets in (numbers, others))
    problems = [f"has no dataset {name!r}, which {path} has" for name in there if name not in here]
    problems += [f"has a dataset {name!r}, which {path} has not" for name in here if name not in there]
    problems += [
        f"dataset {name!r} is {here[name]}, but {there[name]} in {path}"
        for name in here
        if name in there and here[name] != there[name]
    ]
    return problems


def _column(report: DatasetReport) -> Column:
    dtype = "S1" if report.dtype == "text" else report.dtype
    return Column(report.name, report.shape, dtype, kind="ragged" if report.lengths else "numbers")
