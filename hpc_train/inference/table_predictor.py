"""Batch prediction of tables: raw rows through an export, on one rank or many."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hpc_train.config.ensemble import MEAN, OUTPUTS
from hpc_train.config.table import Table
from hpc_train.config.table_schema import TableSchema, read_schema
from hpc_train.data.hdf5.reader import Rows
from hpc_train.data.ragged import Ragged
from hpc_train.data.tables.files import files_from_json, files_to_json, open_files
from hpc_train.data.tables.part import check_columns
from hpc_train.data.tables.rows import BadRowError, encoded
from hpc_train.data.tables.table_file import TableFile
from hpc_train.data.writing.prediction_files import InputSpec
from hpc_train.distributed.world import World
from hpc_train.errors import UserError, did_you_mean
from hpc_train.files import open_to_read, replacement
from hpc_train.folders import remove
from hpc_train.inference.loaded_export import LoadedExport
from hpc_train.inference.predictor import PredictionResult
from hpc_train.inference.table_outputs import output_columns, output_names
from hpc_train.inference.table_writer import writer_for
from hpc_train.jobdir.paths import SCHEMA_FILE
from hpc_train.mapreduce.table_blocks import FileBlocks, cut_files
from hpc_train.mapreduce.table_types import Part
from hpc_train.models.heads import head_of
from hpc_train.text import listed


@dataclass(frozen=True)
class TableRequest:
    """What is to be predicted.

    Attributes:
        files: Of the table, and patterns; with the same columns. out: The file that is written, .csv or .parquet.
        keep: Columns of the table that are written beside the predictions; None: the schema's ids.
        batch_size: Rows that are predicted together. overwrite: Whether a file that is there is replaced.
    """

    files: tuple[str, ...]
    out: Path
    keep: tuple[str, ...] | None = None
    batch_size: int = 4096
    overwrite: bool = False


def predict_table(
    world: World, export: LoadedExport, request: TableRequest, report: Callable[[str], None]
) -> PredictionResult:
    """Predicts all rows of a table, in their order. Collective; the file is the same on any number of ranks.

    Each rank predicts blocks of rows that follow each other. Those of several ranks lie beside the output as hidden
    files until the chief has joined them. Memory does not grow with the rows. Nothing is kept of a run that was ended.

    Args:
        report: Prints a line; of the chief.

    Raises:
        UserError: The export is of no table, the table has not its columns, or a value is not of its column's type.
        OSError: A file cannot be written.
    """
    began = time.monotonic()
    schema = world.each(lambda: schema_of(export))

    def opened() -> list[Any]:
        files = open_files(Table(files=request.files, schema=schema))
        _check_out(request, files)
        return files_to_json(files)

    files = cut_files(world, files_from_json(world.on_chief(opened)))
    work = world.each(lambda: _Work.of(export, schema, files, request))
    if world.is_chief and (more := [n for n in files[0].types if n not in schema.columns and n not in work.kept]):
        report(f"{files[0].path}: has columns that the model was not trained with, and leaves out: {listed(more)}")
    try:
        rows = world.each(lambda: work.predict(*_share(work.blocks.blocks, world)))
        world.each(lambda: work.join(world.size) if world.is_chief else None)
    finally:
        if world.size > 1:
            with suppress(FileNotFoundError):
                remove(work.part(world.rank))
    return PredictionResult(sum(world.all_gather(rows)), 0, time.monotonic() - began, (request.out,))


def schema_of(export: LoadedExport) -> TableSchema:
    """The schema of the table that the export's model was trained on.

    Raises:
        UserError: It has none, or takes other columns.
    """
    path = export.path / "assets" / SCHEMA_FILE
    if not path.is_file():
        raise UserError(f"{export.path}: is no export of a built-in model of a table; predict shards, with --shards")
    schema = read_schema(path, follow=False)
    for name, dataset in export.datasets.items():
        if dataset not in schema.features:
            raise UserError(
                f"{path}: has no feature {dataset!r}, which the export takes; predict shards, with --shards"
            )
        wanted = InputSpec("object" if schema.columns[dataset].type == "text" else "float64", ())
        if export.inputs[name] != wanted:
            raise UserError(
                f"{export.path}: takes {dataset!r} as {export.inputs[name]}, not {wanted} as tables have it; predict "
                "shards, with --shards"
            )
    return schema


def _check_out(request: TableRequest, files: Sequence[TableFile]) -> None:
    """UserError where the output cannot be written, or would replace what is there."""
    out = request.out
    writer_for(out)
    if not out.absolute().parent.is_dir():
        raise UserError(f"--out {out}: {out.absolute().parent}: no such folder")
    for file in files:
        if out.exists() and out.samefile(file.path):
            raise UserError(f"--out {out}: is the table itself; name another file")
    if out.is_dir() or (os.path.lexists(out) and not request.overwrite):
        way = "name another file" if out.is_dir() else "name another file, or give --overwrite to replace it"
        raise UserError(f"--out {out}: is there already; {way}")


def _check_types(file: TableFile, wanted: Mapping[str, str]) -> None:
    """UserError where a column has numbers that are to be dates, or dates that are to be numbers."""
    for name, kind in wanted.items():
        given = file.types[name]
        if given not in (None, "text", kind) and kind != "text" and "date" in (given, kind):
            raise UserError(
                f"{file.path}: column {name!r} has the type {given}, in the schema of the model {kind}; write it as "
                "that, or as texts"
            )


def _share(blocks: int, world: World) -> tuple[int, int, int, int]:
    """This rank's first block, and that after its last; its number, and how many there are."""
    first, end = (blocks * rank // world.size for rank in (world.rank, world.rank + 1))
    return first, end, world.rank, world.size


@dataclass(frozen=True)
class _Work:
    """What one rank does, once it is known what is there.

    Attributes:
        kept: Columns of the table that are written as they are.
    """

    export: LoadedExport
    schema: TableSchema
    blocks: FileBlocks
    kept: tuple[str, ...]
    request: TableRequest

    @classmethod
    def of(cls, export: LoadedExport, schema: TableSchema, files: Sequence[TableFile], request: TableRequest) -> _Work:
        """Raises UserError where the table has not all columns."""
        there = files[0].types
        if request.keep is None:
            kept = tuple(name for name in there if name in schema.columns and schema.columns[name].role == "id")
        else:
            kept = request.keep
        files[0].check_readable(kept)
        for name in kept:
            if name not in there:
                near = did_you_mean(name, there)
                raise UserError(f"--keep {name}: {files[0].path} has no such column; {near}it has {listed(there)}")
        if twice := [name for name in output_names(schema) if name in kept]:
            raise UserError(
                f"column {twice[0]!r} of {files[0].path} is called as a prediction is; give --keep without it, or "
                "rename it"
            )
        features = {name: column.type for name, column in schema.features.items()}
        for file in files:
            check_columns(file, [*features, *kept])
            _check_types(file, features)
        return cls(export, schema, FileBlocks(files, {**features, **dict.fromkeys(kept)}), kept, request)

    def part(self, rank: int) -> Path:
        """Where a rank's rows lie until they are joined."""
        return self.request.out.with_name(f".{self.request.out.name}.part-{rank}")

    def predict(self, first: int, end: int, rank: int, ranks: int) -> int:
        """Predicts blocks, writes the output, or this rank's part of it, and returns the number of rows."""
        tables = self._tables(first, end)
        if ranks == 1:
            return self._write(tables)
        rows = 0
        with replacement(self.part(rank), to_disk=False) as file:
            for table in tables:
                with pa.ipc.new_stream(file, table.schema) as writer:  # of its own: files may have other types
                    writer.write_table(table)
                rows += table.num_rows
        return rows

    def join(self, ranks: int) -> None:
        """Makes the output of the ranks' parts."""
        if ranks > 1:
            self._write(self._parts(ranks))

    def _parts(self, ranks: int) -> Iterator[Any]:
        for rank in range(ranks):
            with open_to_read(self.part(rank)) as file:
                size = os.fstat(file.fileno()).st_size
                while file.tell() < size:
                    yield pa.ipc.open_stream(file).read_all()

    def _write(self, tables: Iterator[Any]) -> int:
        first = next(tables, None)
        if first is None:
            raise UserError(f"{listed(self.request.files)}: has no rows; give a table with some")
        rows = 0
        with (
            replacement(self.request.out) as file,
            closing(writer_for(self.request.out)(file, first.schema)) as writer,
        ):
            for table in chain([first], tables):
                writer.write(table)
                rows += table.num_rows
        return rows

    def _tables(self, first: int, end: int) -> Iterator[Any]:
        with self.blocks.reader() as read:
            for block in range(first, end):
                for part in read(block):
                    if part.table.num_rows:
                        yield self._predicted(part)

    def _predicted(self, part: Part) -> Any:
        """The kept columns of a Part, with what is predicted of its rows."""
        features = self._features(part)
        values = [
            self._values({name: rows[start : start + self.request.batch_size] for name, rows in features.items()})
            for start in range(0, part.table.num_rows, self.request.batch_size)
        ]
        found = output_columns(np.concatenate(values), self.schema)
        return pa.table({**{name: part.table.column(name) for name in self.kept}, **found})

    def _features(self, part: Part) -> dict[str, Rows]:
        """What each input of the export takes of a Part: the label, if it is kept, is none of it."""
        datasets = self.export.datasets
        try:
            rows = encoded(part.table.select(list(self.schema.features)), self.schema)
        except BadRowError as error:
            place = self.blocks.place(part.block, part.row + error.row)
            raise UserError(f"{place}: column {error.column!r} {error.text}; mend it, or leave its row out") from None
        return {name: rows[dataset] for name, dataset in datasets.items()}

    def _values(self, rows: Mapping[str, Rows]) -> np.ndarray:
        """What the export makes of some rows, `[rows, units]`."""
        arrays = {name: each.texts() if isinstance(each, Ragged) else np.asarray(each) for name, each in rows.items()}
        outputs = self.export.predict(arrays)
        if sorted(outputs) == sorted(OUTPUTS):
            outputs = {MEAN: outputs[MEAN]}
        shape = (len(next(iter(arrays.values()))), head_of(self.schema).units)
        if [output.shape for output in outputs.values()] != [shape]:
            given = listed(f"{name} {list(output.shape)}" for name, output in outputs.items())
            raise UserError(
                f"{self.export.path}: gives {given} of {shape[0]} rows, a model of this schema {list(shape)} alone; "
                "predict shards, with --shards"
            )
        return next(iter(outputs.values()))
