"""The file of a table as a source of shards, whose columns a schema says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
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
from hpc_train.data.tables.rows import BadRowError, encoded, for_evaluation
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
        self._side: bool | None = None
        used = [*schema.features, *([schema.label] if schema.label is not None else [])]
        check_columns(self._file, used)
        self.names = used
        self.fields = {name: self._field(name) for name in used}

    def side(self, evaluation: bool) -> TablePart:
        """The rows to evaluate with, or the others, where a column decides, as the schema's split says.

        Raises:
            UserError: The file has no such column.
        """
        assert self._schema.split is not None
        assert self._schema.split.column is not None
        check_columns(self._file, [self._schema.split.column])
        part = copy(self)
        part._side = evaluation
        return part

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
        split = self._schema.split if self._side is not None else None
        read = self.names if split is None else dict.fromkeys([*self.names, str(split.column)])
        wanted = {name: self._schema.columns[name].type for name in read}
        for block in range(self._file.blocks):
            self._block, row = block, 0
            for table in self._file.read(block, wanted):
                numbers = np.arange(table.num_rows)
                try:
                    if split is not None:
                        numbers = np.flatnonzero(for_evaluation(table, self._schema) == self._side)
                    rows = encoded(table if split is None else table.take(numbers), self._schema)
                except BadRowError as error:
                    place = self._file.place(block, row + int(numbers[error.row]))
                    problem = f"column {error.column!r} {error.text}; mend it, or {error.way}"
                    raise UserError(f"{self.name}: {place}: {problem}") from None
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
