"""hpc-train schema: what the columns of a table are, as a file that people review and edit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpc_train.cli.command import (
    TASKS,
    Command,
    Label,
    MissingTexts,
    Separator,
    SplitBy,
    SplitSeed,
    TableColumns,
    TableFiles,
    TaskName,
    TimeColumn,
)
from hpc_train.cli.terminal import answer, console, errors, say, show
from hpc_train.errors import UserError
from hpc_train.lazy import importing

if TYPE_CHECKING:
    from hpc_train.config.row_split import RowSplit
    from hpc_train.config.table import Table
    from hpc_train.config.table_schema import ColumnSchema, TableSchema

SHOWN_VALUES = 4
DISPENSABLE = ("values", "distinct", "missing")


def schema(
    files: TableFiles,
    label: Label = None,
    task: TaskName = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="What is written.")] = Path("schema.yaml"),
    columns: TableColumns = None,
    split: Annotated[
        float | None,
        typer.Option(metavar="FRACTION", help="So many rows are left out: those that `shard --split` puts into test."),
    ] = None,
    split_by: SplitBy = None,
    time: TimeColumn = None,
    seed: SplitSeed = None,
    separator: Separator = None,
    missing: MissingTexts = None,
    most_values: Annotated[
        int, typer.Option(metavar="N", min=1, max=10_000, help="Values and words that a vocabulary has at most.")
    ] = 1000,
    force: Annotated[bool, typer.Option("--force", help="Replace the file that is there.")] = False,
) -> None:
    """Find out what the columns of a table are: types, roles, missing values, vocabularies; and write schema.yaml.

    Review it, since it decides what a model sees. Run it alone, or on several ranks under mpirun, which share the rows:
    the file is the same.
    """
    with importing():
        from hpc_train.distributed.excepthook import report_error
        from hpc_train.distributed.startup import join_world
        from hpc_train.tabular.inference import infer_schema

    with errors():
        world = join_world()
    try:
        rows = world.each(lambda: _split(split, seed, split_by, time))
        table = world.each(lambda: _checked(files, columns, separator, missing, task, out, force))
        kind: Any = task
        found = infer_schema(world, table, label, kind, rows, most_values)
        world.each(lambda: _write(found, out) if world.is_chief else None)
    except Exception as error:
        sys.exit(report_error(world, error))


def _split(fraction: float | None, seed: int | None, by: str | None, time: str | None) -> RowSplit | None:
    """Which rows are to evaluate with; UserError where an option is not allowed."""
    from hpc_train.config.row_split import FRACTION, RowSplit

    if fraction is not None and not 0 < fraction < 1:
        raise UserError(f"--split {fraction:g}: allowed: a number between 0 and 1, as 0.1")
    if by is not None and time is not None:
        raise UserError("--split-by and --time: give one of them")
    if seed is not None and time is not None:
        raise UserError("--seed: with --time the latest rows are to evaluate with; leave it out")
    if fraction is None and by is None and time is None:
        if seed is not None:
            raise UserError("--seed: without --split or --split-by no row is left out; give one of them")
        return None
    return RowSplit(fraction=FRACTION if fraction is None else fraction, seed=seed or 0, by=by, time=time)


def _checked(
    files: list[str],
    columns: str | None,
    separator: str | None,
    missing: str | None,
    task: str | None,
    out: Path,
    force: bool,
) -> Table:
    """The table; UserError where an option is not allowed."""
    from hpc_train.config.table import Table

    if task is not None and task not in TASKS:
        raise UserError(f"--task {task}: allowed: {', '.join(TASKS)}")
    if not out.absolute().parent.is_dir():
        raise UserError(f"--out {out}: {out.absolute().parent}: no such folder")
    if out.exists() and not force:
        raise UserError(f"{out}: is there already; --force replaces it, --out names another file")
    names = None if columns is None else tuple(filter(None, map(str.strip, columns.split(","))))
    if names == ():
        raise UserError("--columns: give names of columns, as in --columns age,city")
    texts = None if missing is None else tuple(dict.fromkeys(["", *map(str.strip, missing.split(","))]))
    return Table(files=tuple(files), columns=names, separator=separator, missing=texts)


def _write(found: TableSchema, out: Path) -> None:
    """Writes the file, and shows what is in it. For the chief."""
    from hpc_train.files import replace_text

    try:
        replace_text(out, found.to_yaml())
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror}") from None
    _print(found, out)


@answer()
def _print(found: TableSchema, out: Path) -> None:
    from hpc_train.jobs.layout import Column, text_cell, text_table
    from hpc_train.telemetry.units import counted
    from hpc_train.text import visible

    label = "" if found.label is None else f", label {visible(found.label)}: {found.task}"
    say(f"{counted(found.rows or 0, 'row')} of {counted(len(found.columns), 'column')}{label}")
    titles = ("column", "type", "role", "missing", "distinct", "values")
    rows = [(visible(name), *_cells(column)) for name, column in found.columns.items()]
    shown = [
        Column(title, tuple(text_cell(row[place]) for row in rows), title in ("missing", "distinct"))
        for place, title in enumerate(titles)
    ]
    screen = console()
    show(screen, text_table(shown, screen.width, DISPENSABLE))
    for name, column in found.columns.items():
        for remark in column.remarks:
            say(f"{visible(name)}: {visible(remark)}")
    say(str(out))


def _cells(column: ColumnSchema) -> tuple[str, ...]:
    from hpc_train.data.tables.values import day_of
    from hpc_train.report import words
    from hpc_train.report.statistics import frequent_value

    about = column.statistics
    assert about is not None
    distinct = "" if about.distinct is None else f"{about.distinct:,}"
    if column.vocabulary:
        values = ", ".join(frequent_value(value) for value in column.vocabulary[:SHOWN_VALUES])
        values += ", …" if len(column.vocabulary) > SHOWN_VALUES else ""
    elif about.min is not None and about.max is not None:
        show_end = day_of if column.type == "date" else words.number
        values = f"{show_end(about.min)} … {show_end(about.max)}"
    else:
        values = ""
    return column.type, column.role, f"{about.missing:,}", distinct, values


COMMANDS = (
    Command(
        "schema",
        schema,
        "Data",
        place=7,
        examples=(
            "hpc-train schema 'data/*.csv' --label income",
            "hpc-train schema data.parquet --label income --split-by customer",
            "mpirun -np 4 hpc-train schema 'data/*.csv' --label income",
        ),
    ),
)
