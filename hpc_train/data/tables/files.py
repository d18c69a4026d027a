"""The files of a table: opened once, and made again on other ranks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py

from hpc_train.config.table import Table
from hpc_train.data.hdf5.shards import matches
from hpc_train.data.tables.csv_file import CSVFile
from hpc_train.data.tables.hdf5_file import HDF5File
from hpc_train.data.tables.parquet_file import ParquetFile
from hpc_train.data.tables.table_file import TableFile, check_alike
from hpc_train.errors import UserError
from hpc_train.files import open_to_read

KINDS = "CSV (.csv, .tsv, also .gz), Parquet or HDF5"
_CLASSES: Mapping[str, type[CSVFile | ParquetFile | HDF5File]] = {
    each.kind: each for each in (CSVFile, ParquetFile, HDF5File)
}


def open_files(table: Table) -> list[TableFile]:
    """The files of `table`; those of CSV are not cut yet. Local.

    Raises:
        UserError: There are none, one cannot be read, or they do not have the same columns.
    """
    paths = []
    for pattern in table.files:
        found = matches(pattern)
        if not found:
            raise UserError(f"{pattern}: no such file")
        paths += found
    if twice := [path for path, times in Counter(map(os.path.abspath, paths)).items() if times > 1]:
        raise UserError(f"{min(twice)}: named twice")
    files = [open_file(path, table) for path in paths]
    check_alike(files)
    csv = [file for file in files if isinstance(file, CSVFile)]
    if other := next((file for file in csv if file.separator != csv[0].separator), None):
        raise UserError(
            f"{other.path}: its columns are separated by {other.separator!r}, those of {csv[0].path} by "
            f"{csv[0].separator!r}; write all files with one separator"
        )
    return files


def open_file(path: Path, table: Table) -> TableFile:
    """One file, as the kind that its first bytes, or its name, show.

    Raises:
        UserError: It cannot be read, or is something else.
    """
    try:
        with open_to_read(path, follow=True) as file:
            start = file.read(8)
        if not start:
            raise UserError(f"{path}: is empty")
        if start.startswith(b"PAR1"):
            return ParquetFile.open(path)
        if path.suffix in (".h5", ".hdf5") or h5py.is_hdf5(path):
            return HDF5File.open(path)
        if path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv", ".txt")):
            return CSVFile.open(path, table.separator_in_files, table.missing_texts)
    except (OSError, EOFError) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    raise UserError(f"{path}: cannot tell what this is; a table is {KINDS}")


def files_to_json(files: Sequence[TableFile]) -> list[Any]:
    """What `files_from_json` makes the same files of, on another rank."""
    return [[file.kind, file.to_json()] for file in files]


def files_from_json(value: Sequence[Any]) -> list[TableFile]:
    """The files that `files_to_json` was given."""
    return [_CLASSES[kind].from_json(about) for kind, about in value]
