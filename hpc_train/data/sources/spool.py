"""A temporary file with all columns of a table, row by row, for tables that cannot be read at random or counted."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from hpc_train.data.hdf5.data_file import errno_of
from hpc_train.data.ragged import Ragged
from hpc_train.data.sources.arrays import InFile
from hpc_train.data.sources.combine import JoinedTable
from hpc_train.data.sources.table import PIECE_BYTES, Block, Field, Rows, Table, piece_rows
from hpc_train.errors import UserError
from hpc_train.files import create, is_ours, open_to_read, unforeseen
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
        self._values: dict[str, InFile] = {}
        for i, (column, field) in enumerate(fields.items()):
            if field.ragged:
                beside = values_path(path, i)
                if not is_ours(beside):
                    raise ValueError(f"{beside} is missing")
                count = beside.stat().st_size // max(1, value_bytes(field))
                self._values[column] = InFile(beside, 0, field.dtype, (count, *_inner(field)), follow=False)

    def blocks(self, start: int = 0) -> Iterator[Block]:
        assert self.rows is not None
        read = self._records.reader(start)
        piece = piece_rows(list(self.fields.values()))
        for first in range(start, self.rows, piece):
            yield self._columns(np.asarray(read(min(piece, self.rows - first))))

    def gather(self, rows: np.ndarray) -> Block:
        order = np.argsort(rows, kind="stable")
        records = np.empty(len(rows), self._records.dtype)
        records[order] = self._records.gather(rows[order])
        return self._columns(records)

    def _columns(self, records: np.ndarray) -> Block:
        return {name: self._column(name, records[f"f{i}"]) for i, name in enumerate(self.fields)}

    def _column(self, name: str, stored: np.ndarray) -> Rows:
        """Rows of a column, of which those of different lengths are stored as where they begin, and lengths."""
        if name not in self._values:
            return stored
        begins, lengths = stored["begin"], stored["lengths"]
        counts = lengths.reshape(len(lengths), math.prod(lengths.shape[1:])).sum(axis=1)
        values, total = self._values[name], int(counts.sum())
        if (begins[1:] == (begins + counts)[:-1]).all():
            found = np.asarray(values.reader(int(begins[0]) if len(begins) else 0)(total))
            return Ragged(found, lengths.copy())
        out, place = np.empty((total, *values.shape[1:]), values.dtype), 0
        for begin, count in zip(begins.tolist(), counts.tolist(), strict=True):
            if count:
                out[place : place + count] = values.reader(begin)(count)
            place += count
        return Ragged(out, lengths.copy())

    def to_json(self) -> dict[str, Any]:
        """As plain values, without the path."""
        fields = [
            [f.name, f.dtype.str, list(f.shape), f.ragged, f.mean_bytes, list(f.classes)] for f in self.fields.values()
        ]
        return {"name": self.name, "rows": self.rows, "fields": fields}

    @classmethod
    def from_json(cls, path: Path, value: dict[str, Any]) -> Spool:
        fields = {
            name: Field(name, np.dtype(dtype), tuple(shape), ragged, mean_bytes, tuple(classes))
            for name, dtype, shape, ragged, mean_bytes, classes in value["fields"]
        }
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
    sides = {i: Side(path, i) for i, field in enumerate(fields.values()) if field.ragged}
    try:
        with ExitStack() as opened, cast(BinaryIO, open(create(temporary, readable=True), "r+b", buffering=0)) as file:
            for side in sides.values():
                opened.enter_context(side)
            for block in table.blocks():
                turned = {
                    n
                    for n, a in block.items()
                    if isinstance(a, np.ndarray) and a.dtype.kind == "f" and fields[n].dtype.kind in "iu"
                }
                if turned:
                    fresh = {n: Field(n, block[n].dtype, f.shape) if n in turned else f for n, f in fields.items()}
                    _rewrite(file, path, table.name, fields, fresh)
                    fields = fresh
                placed = {name: sides[i].put(block[name]) for i, name in enumerate(fields) if i in sides}
                records = _pack(table.name, fields, {**block, **placed})
                _write(file, records, path)
                rows += len(records)
                share = table.share()
                total = rows * row_bytes / share if share else (table.rows or 0) * row_bytes
                report(f"reading {table.name}", rows * row_bytes, int(total))
            with writing(path):
                os.fsync(file.fileno())
        for side in sides.values():
            side.commit()
        rename(temporary, path)
    finally:
        for side in sides.values():
            remove(side.temporary, missing_ok=True)
        remove(temporary, missing_ok=True)
    for i, name in enumerate(fields):
        if i in sides:
            fields[name] = replace(fields[name], mean_bytes=-(-sides[i].nbytes // max(1, rows)))
    return Spool(path, table.name, fields, rows)


class Side:
    """The file of the values of a column whose rows have different lengths, beside the spool. A context manager."""

    def __init__(self, path: Path, number: int) -> None:
        self.path, self.temporary = values_path(path, number), unforeseen(values_path(path, number))
        self.nbytes = self._count = 0

    def __enter__(self) -> Side:
        self._file = cast(BinaryIO, open(create(self.temporary, readable=True), "r+b", buffering=0))
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()

    def put(self, rows: Rows) -> np.ndarray:
        """Appends the values of `rows`; returns where those of each begin, and lengths, as records have them."""
        assert isinstance(rows, Ragged)
        counts = rows.lengths.reshape(len(rows), math.prod(rows.lengths.shape[1:])).sum(axis=1)
        records = np.empty(len(rows), _placed(rows.lengths.shape[1:]))
        records["begin"], records["lengths"] = self._count + np.cumsum(counts) - counts, rows.lengths
        _write(self._file, np.ascontiguousarray(rows.values).reshape(-1), self.path)
        self._count += len(rows.values)
        self.nbytes += rows.values.nbytes
        return records

    def commit(self) -> None:
        """Puts the file where it belongs."""
        with writing(self.path):
            with open_to_read(self.temporary) as whole:
                os.fsync(whole.fileno())
            rename(self.temporary, self.path)


def values_path(path: Path, number: int) -> Path:
    """The file beside a spool that has the values of column `number`."""
    return path.with_name(f"{path.name}.{number}")


def _inner(field: Field) -> tuple[int, ...]:
    return () if field.is_text else field.shape


def value_bytes(field: Field) -> int:
    """What one value of a column takes whose rows have different lengths."""
    return math.prod(_inner(field)) * field.dtype.itemsize


def _placed(shape: tuple[int, ...]) -> np.dtype[Any]:
    """Of a row of such a column: where in the file beside it begins, and its length, or those of its texts."""
    return np.dtype([("begin", np.int64), ("lengths", np.int64, shape)])


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
    def stored(field: Field) -> tuple[Any, ...]:
        return (_placed(field.shape if field.is_text else ()),) if field.ragged else (field.dtype, field.shape)

    return np.dtype([(f"f{i}", *stored(field)) for i, field in enumerate(fields.values())])


def _pack(name: str, fields: Mapping[str, Field], block: Block) -> np.ndarray:
    records = np.empty(len(next(iter(block.values()))), _record(fields))
    for i, (column, field) in enumerate(fields.items()):
        if field.dtype.kind == "f" and not field.ragged and block[column].dtype.kind in "iu":
            _check_exact(name, column, np.asarray(block[column]))
        records[f"f{i}"] = block[column]
    return records


def _check_exact(name: str, column: str, values: np.ndarray) -> None:
    if len(values) and (values.max() > EXACT or values.min() < -EXACT):
        raise UserError(
            f"{name}: column {column!r} has numbers with a fraction and whole ones beyond 2**53, which float64 rounds; "
            f"give --dtype {column}=float64 if that does no harm"
        )


def _write(file: BinaryIO, records: np.ndarray, path: Path) -> None:
    data = records.view(np.uint8).data if len(records) else memoryview(b"")
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
