"""A temporary file with all columns of a table, row by row, for tables that cannot be read at random or counted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from hpc_train.data.hdf5.data_file import errno_of
from hpc_train.data.sources.arrays import InFile
from hpc_train.data.sources.combine import JoinedTable
from hpc_train.data.sources.table import PIECE_BYTES, Block, Field, Table
from hpc_train.errors import UserError
from hpc_train.files import create, unforeseen
from hpc_train.folders import remove, rename
from hpc_train.telemetry.disk_space import shortage

EXACT = 2**53
"""Whole numbers to here are exact in float64."""

Report = Callable[[str, int, int], None]
"""Called with what is being done, how many bytes are done, and of how many, or 0 where that is not known."""


class Spool(Table):
    """The table in a spool: `rows` records in `path`, each with all of `fields`."""

    random = True

    def __init__(self, path: Path, name: str, fields: Mapping[str, Field], rows: int) -> None:
        self.path, self.name, self.fields, self.rows = path, name, fields, rows
        self._records = InFile(path, 0, _record(fields), (rows,), follow=False)

    def blocks(self, start: int = 0) -> Iterator[Block]:
        assert self.rows is not None
        read = self._records.reader(start)
        piece = max(1, PIECE_BYTES // self._records.dtype.itemsize)
        for first in range(start, self.rows, piece):
            yield self._columns(read(min(piece, self.rows - first)))

    def gather(self, rows: np.ndarray) -> Block:
        order = np.argsort(rows, kind="stable")
        records = np.empty(len(rows), self._records.dtype)
        records[order] = self._records.gather(rows[order])
        return self._columns(records)

    def _columns(self, records: np.ndarray) -> Block:
        return {name: records[f"f{i}"] for i, name in enumerate(self.fields)}

    def to_json(self) -> dict[str, Any]:
        """As plain values, without the path."""
        fields = [[f.name, f.dtype.str, list(f.shape)] for f in self.fields.values()]
        return {"name": self.name, "rows": self.rows, "fields": fields}

    @classmethod
    def from_json(cls, path: Path, value: dict[str, Any]) -> Spool:
        fields = {name: Field(name, np.dtype(dtype), tuple(shape)) for name, dtype, shape in value["fields"]}
        return cls(path, value["name"], fields, value["rows"])


def fill(table: JoinedTable, path: Path, report: Report) -> Spool:
    """Reads all of `table` into a spool at `path`, which appears by rename when it is whole.

    Raises:
        OSError: The spool cannot be written.
    """
    fields = dict(table.fields)
    row_bytes = sum(field.row_bytes for field in fields.values())
    temporary = unforeseen(path)
    rows = 0
    try:
        with cast(BinaryIO, open(create(temporary, readable=True), "r+b", buffering=0)) as file:
            for block in table.blocks():
                turned = {n for n, a in block.items() if a.dtype.kind == "f" and fields[n].dtype.kind in "iu"}
                if turned:
                    fresh = {n: Field(n, block[n].dtype, f.shape) if n in turned else f for n, f in fields.items()}
                    _rewrite(file, path, table.name, fields, fresh)
                    fields = fresh
                records = _pack(table.name, fields, block)
                _write(file, records, path)
                rows += len(records)
                share = table.share()
                total = rows * row_bytes / share if share else (table.rows or 0) * row_bytes
                report(f"reading {table.name}", rows * row_bytes, int(total))
            with writing(path):
                os.fsync(file.fileno())
        rename(temporary, path)
    finally:
        remove(temporary, missing_ok=True)
    return Spool(path, table.name, fields, rows)


@contextmanager
def writing(path: Path, nbytes: int | None = None) -> Iterator[None]:
    """Gives the errors of writing `path`, from the system or from HDF5, one form: a sentence with path and cause.

    Of a full disk it has what is free, and `nbytes`, what was to be written, where that is known.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        number = errno_of(error)
        cause = os.strerror(number) if number else str(error)
        raise OSError(f"{path}: cannot be written: {cause}{shortage(number, path, nbytes)}") from None


def _record(fields: Mapping[str, Field]) -> np.dtype[Any]:
    return np.dtype([(f"f{i}", field.dtype, field.shape) for i, field in enumerate(fields.values())])


def _pack(name: str, fields: Mapping[str, Field], block: Block) -> np.ndarray:
    records = np.empty(len(next(iter(block.values()))), _record(fields))
    for i, (column, field) in enumerate(fields.items()):
        if field.dtype.kind == "f" and block[column].dtype.kind in "iu":
            _check_exact(name, column, block[column])
        records[f"f{i}"] = block[column]
    return records


def _check_exact(name: str, column: str, values: np.ndarray) -> None:
    if len(values) and (values.max() > EXACT or values.min() < -EXACT):
        raise UserError(
            f"{name}: column {column!r} has numbers with a fraction and whole ones beyond 2**53, which float64 rounds; "
            f"give --dtype {column}=float64 if that does no harm"
        )


def _write(file: BinaryIO, records: np.ndarray, path: Path) -> None:
    data = records.view(np.uint8).data
    with writing(path):
        while data:
            data = data[file.write(data) :]


def _rewrite(file: BinaryIO, path: Path, name: str, old: Mapping[str, Field], new: Mapping[str, Field]) -> None:
    """Gives the records written so far other types, of the same size, where they lie."""
    end, dtype = file.tell(), _record(old)
    piece = max(1, PIECE_BYTES // dtype.itemsize) * dtype.itemsize
    for offset in range(0, end, piece):
        file.seek(offset)
        records = np.frombuffer(file.read(min(piece, end - offset)), dtype)
        fresh = _pack(name, new, {column: records[f"f{i}"] for i, column in enumerate(old)})
        file.seek(offset)
        _write(file, fresh, path)
