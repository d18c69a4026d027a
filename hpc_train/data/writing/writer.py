"""Writes tables as HDF5 shards, of which those that are there already stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpc_train.data.sampling.shuffle import Shuffle
from hpc_train.data.sources.arrays import Array, Arrays, Slices
from hpc_train.data.sources.combine import JoinedTable, combine
from hpc_train.data.sources.recipe import Recipe, check_name
from hpc_train.data.sources.split import hint
from hpc_train.data.sources.spool import Report, Spool, fill
from hpc_train.data.sources.table import Cursor, ShuffledTable, Table
from hpc_train.data.sources.texts import Listed, Texts
from hpc_train.data.writing import resume_plan
from hpc_train.data.writing.shard_file import check_shard, write_shard
from hpc_train.data.writing.storage import Storage
from hpc_train.errors import UserError
from hpc_train.telemetry.units import counted
from hpc_train.text import listed


def nothing(what: str, done: int, total: int) -> None:
    """A report to nobody."""


def write_shards(
    prefix: str | Path,
    columns: Mapping[str, Any],
    shards: int = 8,
    *,
    shuffle: bool = False,
    seed: int = 0,
    compression: str = "none",
    chunk_rows: int | None = None,
) -> list[Path]:
    """Writes `<prefix>-00000.h5` … with the same number of rows each, give or take one. Local.

    Args:
        prefix: Folder and beginning of the file names; the folder is made where it is missing.
        columns: Arrays `[rows, ...]` by dataset name, all with as many rows: numpy arrays, memory maps or HDF5
            datasets, of numbers or texts. They are read piece by piece, never whole. Or lists: of texts (str, or
            bytes in UTF-8), or of rows of numbers of different lengths, each an array or list `[length, ...]`.
        shards: Number of files.
        shuffle: Whether rows are written in another order, a permutation of all rows chosen by `seed`.
        seed: Chooses the permutation, from 0.
        compression: "none", "gzip" (or "gzip-1" to "gzip-9"), "lzf", or with hdf5plugin "zstd", "lz4", "blosc".
        chunk_rows: Rows of a chunk. Without it datasets are contiguous where they are not compressed, which is the
            fastest to read, and else have chunks of about 256 KiB.

    Returns:
        The files. Each has an attribute `hpc_train_schema`: JSON with `version`, `rows` and, for each column, its
        `shape` without the rows and its `dtype`.

    Raises:
        UserError: Columns of neither numbers nor texts, or of different lengths, more shards than rows, or shards of
            that prefix already there (reading would mix old and new rows).
        OSError: The files cannot be written; the message is a sentence with path and cause.
    """
    prefix, storage = Path(prefix), Storage(compression, chunk_rows)
    for name in columns:
        check_name(name)
    if not columns:
        raise UserError("no columns to write")
    part = Arrays(str(prefix), {name: _array(name, array) for name, array in columns.items()})
    for name, reason in part.refused.items():
        raise UserError(f"column {name!r}: {reason}")
    (table,) = combine([part], Recipe())
    check_rows([table], shards)
    with resume_plan.alone(prefix):
        old = resume_plan.shards(prefix)
        if old:
            raise UserError(f"{old[0]}: already there, with {len(old) - 1} more; remove them or choose another prefix")
        resume_plan.clean(prefix, plan=True)
        try:
            tables = ordered([spooled(table, prefix, 0, shuffle, nothing)], shuffle, seed)
            return write_tables(prefix, tables, shards, storage)
        finally:
            resume_plan.clean(prefix)


def _array(name: str, given: Any) -> Array:
    """What is given as a column: an array of numbers or texts, or a list of texts or rows."""
    kind = given.dtype.kind if hasattr(given, "dtype") else "O"
    if isinstance(given, list | tuple) or kind in "OT":  # h5py gives texts and rows of any length as objects
        return Listed(name, given)
    return Texts(Slices(given)) if kind in "SU" and given.shape else Slices(given)


def spooled(table: JoinedTable, prefix: Path, number: int, shuffle: bool, report: Report) -> JoinedTable | Spool:
    """`table`, or its rows in a spool where its rows are not counted, or `shuffle` needs them at random."""
    if table.rows is not None and (table.random or not shuffle):
        return table
    return fill(table, prefix.parent / f".{prefix.name}.spool-{number}", report)


def rows_of(tables: Sequence[Table]) -> int | None:
    """The rows of all `tables`, but for those that are not counted yet; None where that is all of them.

    Raises:
        UserError: Tables with different numbers of rows.
    """
    known = {table.name: table.rows for table in tables if table.rows is not None}
    if len(set(known.values())) > 1:
        counts = listed(f"{name} has {counted(rows, 'row')}" for name, rows in known.items())
        more = hint([name for table in tables for name in table.fields])
        raise UserError(f"columns of different lengths: {counts}{more}")
    return next(iter(known.values()), None)


def check_rows(tables: Sequence[Table], shards: int) -> int:
    """As rows_of, or 0.

    Raises:
        UserError: Tables with different numbers of rows, or fewer rows than `shards`.
    """
    rows = rows_of(tables)
    if rows is not None and not 1 <= shards <= rows:
        possible = f"between 1 and {rows} are possible" if rows > 1 else "each needs a row"
        raise UserError(f"cannot write {counted(rows, 'row')} to {counted(shards, 'shard')}: {possible}")
    return rows or 0


def ordered(tables: Sequence[Table], shuffle: bool, seed: int) -> Sequence[Table]:
    """`tables`, whose rows are known, or where they are to be shuffled, all in one other order."""
    if not shuffle:
        return tables
    rows = rows_of(tables)
    assert rows is not None
    order = Shuffle(rows, seed)
    return [ShuffledTable(table, order, 0, rows) for table in tables]


def write_tables(
    prefix: Path, tables: Sequence[Table], shards: int, storage: Storage, report: Report = nothing
) -> list[Path]:
    """Writes the columns of `tables`, side by side, to those of the shards that are not there yet.

    Raises:
        UserError: A shard that is there is not what would be written.
        OSError: The files cannot be written; the message is a sentence with path and cause.
    """
    rows = check_rows(tables, shards)
    fields = [field for table in tables for field in table.fields.values()]
    bounds = [rows * i // shards for i in range(shards + 1)]
    paths = [prefix.parent / f"{prefix.name}-{i:05d}.h5" for i in range(shards)]
    row_bytes = sum(field.row_bytes for field in fields)
    cursors, position = [Cursor(table, 0) for table in tables], 0
    for path, first, end in zip(paths, bounds, bounds[1:], strict=False):
        if path.exists():
            check_shard(path, fields, end - first)
            continue
        if position != first:
            cursors = [Cursor(table, first) for table in tables]

        def count(written: int, path: Path = path, first: int = first) -> None:
            report(f"writing {path}", first * row_bytes + written, rows * row_bytes)

        write_shard(path, fields, cursors, end - first, storage, count)
        position = end
    return paths
