"""The file of a table as a source of shards, whose columns a schema says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from hpc_train.config.table import Table
from hpc_train.config.table_schema import TableSchema
from hpc_train.data.hdf5.shard_schema import MOST_CLASSES
from hpc_train.data.ragged import TEXT
from hpc_train.data.sources.recipe import Part
from hpc_train.data.sources.table import Block, Field
from hpc_train.data.tables.csv_file import CSVFile
from hpc_train.data.tables.files import open_file
from hpc_train.data.tables.rows import BadRowError, encoded
from hpc_train.data.tables.table_file import TableFile
from hpc_train.errors import UserError, did_you_mean
from hpc_train.text import listed

TEXT_BYTES = 16
"""What a text takes, about, before any has been read."""


class TablePart(Part):
    """A file of a table: the columns that `schema` uses, with raw values, and its label.

    Raises:
        UserError: It cannot be read, or has not all columns of the schema.
    """

    def __init__(self, path: Path, schema: TableSchema) -> None:
        self._file = whole(open_file(path, Table(files=(str(path),), schema=schema)))
        self._schema, self.name = schema, str(path)
        self.refused, self._block = {}, 0
        used = [*schema.features, *([schema.label] if schema.label is not None else [])]
        check_columns(self._file, used)
        self.names = used
        self.fields = {name: self._field(name) for name in used}

    def _field(self, name: str) -> Field:
        if name == self._schema.label:
            classes = self._schema.classes
            kept = classes if len(classes) <= MOST_CLASSES else ()
            return Field(name, np.dtype(np.int64 if classes else np.float64), classes=kept)
        if self._schema.columns[name].type == "text":
            return Field(name, TEXT, (), True, TEXT_BYTES)
        return Field(name, np.dtype(np.float64))

    def blocks(self, names: Sequence[str], start: int) -> Iterator[Block]:
        assert start == 0, "rows that are not counted are read from the first"
        wanted = {name: self._schema.columns[name].type for name in self.names}
        for block in range(self._file.blocks):
            self._block, row = block, 0
            for table in self._file.read(block, wanted):
                try:
                    rows = encoded(table, self._schema)
                except BadRowError as error:
                    place = self._file.place(block, row + error.row)
                    raise UserError(f"{self.name}: {place}: column {error.column!r} {error.text}") from None
                row += table.num_rows
                if len(next(iter(rows.values()))):
                    yield {name: rows[name] for name in names}

    def share(self) -> float | None:
        return (self._block + 1) / max(1, self._file.blocks)


def whole(file: TableFile) -> TableFile:
    """The file, cut into blocks if it is of CSV. Local.

    Raises:
        UserError: It has quotes that cannot be read.
    """
    if isinstance(file, CSVFile) and not file.gzipped:
        return file.with_pieces([file.piece(number) for number in range(file.pieces)])
    return file


def check_columns(file: TableFile, wanted: Sequence[str]) -> None:
    """UserError where a file has not all columns of a schema."""
    file.check_readable(wanted)
    if lacking := [name for name in wanted if name not in file.types]:
        near = did_you_mean(lacking[0], file.types)
        raise UserError(
            f"{file.path}: has no column {lacking[0]!r}, which the schema uses; {near}the columns are "
            f"{listed(file.types)}"
        )
