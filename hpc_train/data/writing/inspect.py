"""What HDF5 shards hold and how fast it can be read, file by file: `hpc-train shard inspect`."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import h5py

from hpc_train.data.hdf5.codecs import filters_of, name_of
from hpc_train.data.hdf5.data_file import HDF5_ERRORS
from hpc_train.data.hdf5.declared import why_not_plausible
from hpc_train.data.hdf5.input_file import InputFile, OutsideError
from hpc_train.data.hdf5.layout import Contiguous, Opaque, layout_of
from hpc_train.data.hdf5.shards import Column, matches
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
        read_by: "memory map", "parallel chunks" or "through HDF5", and then `reason` says why; "not at all" where it
            holds no numbers in rows, or cannot be read; "with consent" where it lies in other files.
        outside: Those files, which are not looked at.
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
    return [] if dataset is None else [_report(name, dataset, file.bytes_around(name, dataset))]


def _report(name: str, dataset: h5py.Dataset, size: int) -> DatasetReport:
    shape, dtype = dataset.shape or (), dataset.dtype
    read_by, reason = "not at all", "it does not hold numbers in rows"
    if shape and dtype.kind in "buifc":
        how = layout_of(dataset)
        if isinstance(how, Opaque):
            read_by, reason = "through HDF5" if how.readable else "not at all", how.reason
        else:
            read_by, reason = "memory map" if isinstance(how, Contiguous) else "parallel chunks", ""
        if why_not := why_not_plausible(dataset, how, size):
            raise UserError(f"dataset {name!r} {why_not}")
    kinds = {h5py.h5d.CONTIGUOUS: "contiguous", h5py.h5d.CHUNKED: "chunked", h5py.h5d.COMPACT: "compact"}
    return DatasetReport(
        name=name,
        dtype=dtype.newbyteorder("=").name,
        shape=tuple(map(int, shape[1:])),
        rows=int(shape[0]) if shape else 0,
        layout=kinds.get(dataset.id.get_create_plist().get_layout(), "virtual"),
        chunk=None if dataset.chunks is None else tuple(map(int, dataset.chunks)),
        compression=name_of(filters_of(dataset)),
        byte_order=_ORDERS[dtype.byteorder],
        stored_bytes=int(dataset.id.get_storage_size()),
        raw_bytes=math.prod(shape) * dtype.itemsize,
        read_by=read_by,
        reason=reason or None,
    )


def _own_problems(numbers: Sequence[DatasetReport]) -> list[str]:
    if not numbers:
        return ["has no dataset of numbers in rows at its top level"]
    rows = {dataset.rows for dataset in numbers}
    if len(rows) > 1:
        return [f"rows differ: {', '.join(f'{d.name!r} has {d.rows}' for d in numbers)}"]
    return ["has no rows"] if rows == {0} else []


def _compared(numbers: Sequence[DatasetReport], others: Sequence[DatasetReport], path: str) -> list[str]:
    here = {d.name: Column(d.name, d.shape, d.dtype) for d in numbers}
    there = {d.name: Column(d.name, d.shape, d.dtype) for d in others}
    problems = [f"has no dataset {name!r}, which {path} has" for name in there if name not in here]
    problems += [f"has a dataset {name!r}, which {path} has not" for name in here if name not in there]
    problems += [
        f"dataset {name!r} is {here[name]}, but {there[name]} in {path}"
        for name in here
        if name in there and here[name] != there[name]
    ]
    return problems
