"""What one HDF5 file has at its top level that may be trained on, looked at without reading a row."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hpc_train.data.hdf5.columns import DTYPES, ENDS, LENGTH, VALUES, Column
from hpc_train.data.hdf5.data_file import HDF5_ERRORS
from hpc_train.data.hdf5.declared import why_not_plausible
from hpc_train.data.hdf5.input_file import Consent, InputFile
from hpc_train.data.hdf5.layout import ByEnds, InHeaps, Layout, Plain, layout_of, value_type
from hpc_train.data.ragged import TEXT
from hpc_train.errors import UserError
from hpc_train.text import listed


@dataclass(frozen=True)
class Entry:
    """A dataset at the top level of a file; without a column where it holds no numbers or texts in rows.

    Attributes:
        problem: Why it cannot be read.
        value_bytes: What the values of rows of different lengths take, or may take, in all.
    """

    rows: int = 0
    column: Column | None = None
    layout: Layout | None = None
    problem: UserError | None = None
    value_bytes: int = 0


Table = dict[str, Entry]


def read_table(path: Path, consent: Consent) -> Table:
    """What the file `path` has, by name.

    Raises:
        UserError: It cannot be read as HDF5, or is being written.
    """
    try:
        with InputFile(path, consent) as file:
            return {name: entry for name in file.names if (entry := describe(file, name)) is not None}
    except UserError:
        raise
    except BlockingIOError:
        raise UserError(f"{path}: is being written by another process; wait until it is closed") from None
    except HDF5_ERRORS as error:
        if "already open for write" in str(error):
            raise UserError(
                f"{path}: is being written, or was not closed after writing; wait, or repair it with h5clear -s"
            ) from None
        if isinstance(error, OSError) and error.filename:  # no library's error, but the system's
            raise UserError(f"{path}: {error.strerror}") from None
        raise UserError(f"{path}: cannot be read as HDF5: {error}") from None


def describe(file: InputFile, name: str) -> Entry | None:
    """What `file` has as `name` at its top level; None where that is neither a dataset nor rows in a group."""
    try:
        dataset = file.dataset(name)
        if dataset is None:
            return _describe_group(file, name)
    except UserError as error:
        return Entry(problem=error)
    shape = dataset.shape
    if not shape:
        return Entry()
    rows = int(shape[0])
    try:
        value = value_type(dataset)
        dtype = _name_of(dataset.dtype if value is None else value)
    except TypeError:  # a type that numpy has not
        return Entry(rows)
    if dtype is None or (value is not None and value != TEXT and len(shape) > 1):
        return Entry(rows)
    layout, size = layout_of(dataset, name in file.elsewhere), file.bytes_around(name, dataset)
    why_not = why_not_plausible(dataset, layout, size) if isinstance(layout, InHeaps) or value is None else None
    problem = UserError(f"{file.path}: dataset {name!r} {why_not}") if why_not else None
    column = Column(name, tuple(map(int, shape[1:])), dtype, kind="numbers" if value is None else "ragged")
    return Entry(rows, column, layout, problem, size if value is not None else 0)


def _name_of(dtype: np.dtype) -> str | None:
    """What a Column calls a type; None for those that nothing is trained on."""
    if dtype.kind == "S":
        return f"S{dtype.itemsize}"
    name = dtype.newbyteorder("=").name
    return name if name in DTYPES else None


def _describe_group(file: InputFile, name: str) -> Entry | None:
    """Rows of different lengths, as values and ends, where `name` is a group of these; None where it is another."""
    found = file.group(name, (ENDS, VALUES))
    if found is None:
        return None
    ends, values = found
    dtype = _name_of(values.dtype)
    if ends.dtype != np.int64 or not ends.shape or not values.shape or dtype is None:
        return None
    text = values.dtype.kind == "S"
    if (text and (values.dtype != TEXT or len(values.shape) > 1)) or (not text and len(ends.shape) > 1):
        return None
    plain: list[Plain] = []
    for part, dataset in zip((ENDS, VALUES), found, strict=True):
        layout = layout_of(dataset, name + part in file.elsewhere)
        assert not isinstance(layout, InHeaps), "its rows have one length"
        why_not = why_not_plausible(dataset, layout, file.bytes_around(name + part, dataset))
        if why_not is not None:
            return Entry(problem=UserError(f"{file.path}: dataset {name + part!r} {why_not}"))
        plain.append(layout)
    shape, count = (ends.shape[1:] if text else values.shape[1:]), int(values.shape[0])
    column = Column(name, tuple(map(int, shape)), dtype, kind="ragged")
    size = math.prod(values.shape) * values.dtype.itemsize + math.prod(ends.shape) * 8
    return Entry(int(ends.shape[0]), column, ByEnds(plain[0], plain[1], count), value_bytes=size)


def describe_column(file: InputFile, name: str) -> Entry | None:
    """What `file` has as `name`, `NAME/length` included; None where that is neither a dataset nor rows in a group."""
    names = {name, name.removesuffix(LENGTH)} & set(file.names)
    table = {known: entry for known in names if (entry := describe(file, known)) is not None}
    if name.endswith(LENGTH):
        add_lengths([table], name)
    return table.get(name)


def add_lengths(tables: list[Table], name: str) -> None:
    """To each table the lengths of a ragged dataset, as the column that is asked for by `name`."""
    for table in tables:
        entry = table.get(name.removesuffix(LENGTH))
        if entry is not None and entry.column is not None and entry.column.kind == "ragged":
            shape = entry.column.shape if entry.column.is_text else ()
            table[name] = replace(entry, column=Column(name, shape, "int64", kind="length"))


def mean_bytes(entries: list[Entry]) -> int:
    """What a row of different lengths takes on average."""
    return -(-sum(entry.value_bytes for entry in entries) // max(1, sum(entry.rows for entry in entries)))


def shown_table(table: Table) -> str:
    """A table in words, for messages."""
    if not table:
        return "no datasets"
    return listed(f"{name} ({entry.column or 'neither numbers nor texts'})" for name, entry in table.items())
