"""The rows of a table in blocks: its files are cut, and the types of its columns found, by all ranks together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np

from hpc_train.config.table import Table
from hpc_train.config.table_schema import ROLES_OF, ColumnSchema, Type
from hpc_train.data.hdf5.reader import Rows
from hpc_train.data.tables.csv_cut import Piece
from hpc_train.data.tables.csv_file import CSVFile
from hpc_train.data.tables.files import files_from_json, files_to_json, open_files
from hpc_train.data.tables.table_file import TableFile
from hpc_train.data.tables.values import BadValueError, values_of
from hpc_train.distributed.world import World
from hpc_train.errors import UserError, did_you_mean
from hpc_train.mapreduce.blocks import Batch, BlockSource, Read
from hpc_train.mapreduce.reducer import Reducer
from hpc_train.mapreduce.reduction import reduce_blocks
from hpc_train.mapreduce.table_types import ColumnType, ColumnTypes, Part
from hpc_train.text import listed

Columns = Mapping[str, ColumnSchema]


class FileBlocks(BlockSource):
    """The blocks of files one after the other, as Parts with the columns `wanted`."""

    def __init__(self, files: Sequence[TableFile], wanted: Mapping[str, str | None]) -> None:
        self._files, self._wanted = files, wanted
        self._starts = np.append(0, np.cumsum([file.blocks for file in files])).astype(np.int64)
        self.blocks = int(self._starts[-1])

    @contextmanager
    def reader(self) -> Iterator[Read]:
        def read(block: int) -> Iterator[Part]:
            file, number = self.file_of(block)
            row = 0
            for table in file.read(number, self._wanted):
                yield Part(block, row, table)
                row += table.num_rows

        yield read

    def file_of(self, block: int) -> tuple[TableFile, int]:
        """The file of a block, and which of its own blocks that is."""
        number = int(np.searchsorted(self._starts, block, "right")) - 1
        return self._files[number], block - int(self._starts[number])

    def place(self, block: int, row: int) -> str:
        """Where a row of a block is, as "data.csv: line 17"."""
        file, number = self.file_of(block)
        return f"{file.path}: {file.place(number, row)}"


class TableBlocks(BlockSource):
    """The rows of a table as Batches: of each column what values_of gives.

    Attributes:
        files: Of the table. columns: by name, with type and format at least.
        types: What was found of the columns by reading all rows; None: they were not read.
        raw: The same blocks as Parts.
    """

    def __init__(self, files: Sequence[TableFile], columns: Columns, types: ColumnTypes | None = None) -> None:
        self.files, self.columns, self.types = files, columns, types
        self.raw = FileBlocks(files, {name: column.type for name, column in columns.items()})
        self.blocks = self.raw.blocks

    @contextmanager
    def reader(self) -> Iterator[Read]:
        with self.raw.reader() as raw:

            def read(block: int) -> Iterator[Batch]:
                for part in raw(block):
                    yield self.batch(part)

            yield read

    def batch(self, part: Part) -> Batch:
        """The rows of a Part of `raw`."""
        return {name: self.values(part, name) for name in self.columns}

    def values(self, part: Part, name: str) -> Rows:
        """A column of a Part of `raw`.

        Raises:
            UserError: A value is not of the column's type.
        """
        try:
            return values_of(part.table.column(name), self.columns[name])
        except BadValueError as error:
            place = self.raw.place(part.block, part.row + error.row)
            raise UserError(f"{place}: column {name!r} {error.text}; mend it, or {error.way}") from None


def table_blocks(world: World, table: Table, look: bool = False, label: str | None = None) -> TableBlocks:
    """The rows of `table`. Collective; the same on all ranks.

    Args:
        look: Read all rows once even where the files or a schema say the types.
        label: Of rows without a value in this column `types` counts none; where it is looked.

    Raises:
        UserError: On all ranks, where the files cannot be read, are no such table, or do not fit the schema.
    """
    files = cut_files(world, files_from_json(world.on_chief(lambda: files_to_json(open_files(table)))))
    names = world.each(lambda: _chosen(table, files, label))
    world.each(lambda: _check_rows(files, any(file.blocks for file in files)))
    if table.schema is not None and not look:
        return TableBlocks(files, {name: table.schema.columns[name] for name in names})
    said = {name: _said(files, name) for name in names}
    # Whole numbers may be larger than a number here can be, which their values show.
    open_ones = names if look else [name for name, kind in said.items() if kind in (None, "integer")]
    columns = {name: _column(ColumnType(cast(Type, kind))) for name, kind in said.items() if kind is not None}
    if not open_ones:
        return TableBlocks(files, columns)
    types = ColumnTypes.find(world, FileBlocks(files, dict.fromkeys(open_ones)), said, label)
    world.each(lambda: _check_rows(files, bool(types.by_column)))
    columns |= {name: _column(types.by_column[name]) for name in open_ones}
    return TableBlocks(files, {name: columns[name] for name in names}, types)


def _said(files: Sequence[TableFile], name: str) -> str | None:
    """The type of a column that all files say; None: they do not."""
    kinds = {file.types[name] for file in files}
    return kinds.pop() if len(kinds) == 1 else None


def _check_rows(files: Sequence[TableFile], has_some: bool) -> None:
    if not has_some:
        raise UserError(f"{files[0].path}: has no rows; give a table with some")


def _column(found: ColumnType) -> ColumnSchema:
    return ColumnSchema(type=found.type, role=ROLES_OF[found.type][0], format=found.format)


def _chosen(table: Table, files: Sequence[TableFile], label: str | None) -> list[str]:
    """The columns that are read, in the files' order."""
    names = _names(table, files)
    for file in files:
        file.check_readable([*file.refused, *names] if table.columns is None and table.schema is None else names)
    if label is not None and label not in names:
        if label in files[0].types:
            raise UserError(f"--label {label}: --columns leaves it out; name it there, too")
        near = did_you_mean(label, names)
        raise UserError(f"--label {label}: {files[0].path} has no such column; {near}it has {listed(names)}")
    return names


def _names(table: Table, files: Sequence[TableFile]) -> list[str]:
    there = files[0].types
    known = there if table.schema is None else table.schema.columns
    for name in table.columns or ():
        files[0].check_readable([name])
        if name not in there or name not in known:
            where = files[0].path if name not in there else "the schema"
            raise UserError(f"{where}: has no column {name!r}; {did_you_mean(name, known)}it has {listed(known)}")
    if table.columns is not None:
        return [name for name in there if name in table.columns]
    if table.schema is None:
        return list(there)
    used = [name for name, column in table.schema.columns.items() if column.role != "ignored"]
    if lacking := [name for name in used if name not in there]:
        raise UserError(
            f"{files[0].path}: has no column {lacking[0]!r}, which the schema has; give the table that it was made of, "
            "or change the schema"
        )
    return [name for name in there if name in used]


class _Pieces(BlockSource):
    """The pieces of plain CSV files, each as int64 `[5]`."""

    def __init__(self, files: Sequence[CSVFile]) -> None:
        self._files = files
        self.starts = np.append(0, np.cumsum([file.pieces for file in files])).astype(np.int64)
        self.blocks = int(self.starts[-1])

    @contextmanager
    def reader(self) -> Iterator[Read]:
        def read(block: int) -> Iterator[np.ndarray]:
            number = int(np.searchsorted(self.starts, block, "right")) - 1
            yield self._files[number].piece(block - int(self.starts[number])).to_array()[None]

        yield read


class _InOrder(Reducer[np.ndarray]):
    """Arrays `[n, 5]`, one after the other."""

    def init(self) -> np.ndarray:
        return np.zeros((0, 5), np.int64)

    def add(self, state: np.ndarray, values: np.ndarray) -> np.ndarray:
        return np.concatenate([state, values])

    def merge(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return np.concatenate([first, second])

    def result(self, state: np.ndarray) -> np.ndarray:
        return state


def cut_files(world: World, files: Sequence[TableFile]) -> list[TableFile]:
    """The files, those of CSV cut into blocks. Collective.

    Raises:
        UserError: A CSV file has quotes that cannot be read.
    """
    plain = [file for file in files if isinstance(file, CSVFile) and not file.gzipped]
    if not plain:
        return list(files)
    pieces, reducer = _Pieces(plain), _InOrder()
    found = reduce_blocks(world, pieces, reducer.add, reducer)

    def cut() -> list[TableFile]:
        whole = {}
        for file, first, end in zip(plain, pieces.starts, pieces.starts[1:], strict=False):
            whole[file.path] = file.with_pieces([Piece.of_array(row) for row in found[first:end]])
        return [whole.get(file.path, file) for file in files]

    return world.each(cut)
