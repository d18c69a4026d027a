"""hpc-train stats: what shards or a table hold, by statistics over all of their rows."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpc_train.cli.command import Command
from hpc_train.cli.terminal import answer, console, errors, say, show
from hpc_train.errors import UserError
from hpc_train.lazy import importing

if TYPE_CHECKING:
    from hpc_train.config.hdf5_input import HDF5Input
    from hpc_train.config.table import Table

TABLES = (".csv", ".tsv", ".txt", ".parquet", ".pq")
"""Of the names of files that are tables."""
FILE_NAMES = ("stats.json", "stats.html")
UNREMARKABLE = ("", "0")
"""A column of the table that has nothing else is left out."""
DISPENSABLE = ("infinite", "25%", "75%", "std", "50%", "missing", "distinct")
"""Columns that are left out where there is no room, in this order."""


def stats(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES...", help="HDF5 files, or a table in CSV (.csv, .tsv, also .gz) or Parquet; or patterns."
        ),
    ],
    columns: Annotated[
        str | None, typer.Option(metavar="A,B", help="Of these alone. \\[default: all that are in rows]")
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The schema of a table, for the types of its columns.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the histograms.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with the histograms.")] = None,
    job_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write stats.json and stats.html there, as a job does.")
    ] = None,
    external: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Files that the shards may lead to, by links or external storage."),
    ] = None,
) -> None:
    """Show mean, spread, quantiles, missing and most frequent values of each column, in one pass over all rows.

    Run it alone, or on several ranks under mpirun, which share the rows: the result is the same to the bit.
    """
    with importing():
        from hpc_train.distributed.excepthook import report_error
        from hpc_train.distributed.startup import join_world
        from hpc_train.mapreduce.statistics import statistics

    with errors():
        world = join_world()
    try:
        source = world.each(lambda: _checked_source(sources, columns, schema, html, job_dir, external))
        found = statistics(world, source)
        world.each(lambda: _report(found, sources, as_json, html, job_dir) if world.is_chief else None)
    except Exception as error:
        sys.exit(report_error(world, error))


def _checked_source(
    sources: list[str],
    columns: str | None,
    schema: Path | None,
    html: Path | None,
    job_dir: Path | None,
    external: list[str] | None,
) -> HDF5Input | Table:
    """What is read; UserError where an option is not allowed."""
    from hpc_train.config.hdf5_input import HDF5Input
    from hpc_train.config.table import Table

    for option, folder in (("--html", html and html.absolute().parent), ("--job-dir", job_dir)):
        if folder is not None and not folder.is_dir():
            raise UserError(f"{option}: {folder}: no such folder")
    names = None if columns is None else tuple(filter(None, map(str.strip, columns.split(","))))
    if names == ():
        raise UserError("--columns: give names of datasets, as in --columns image,label")
    if schema is not None or any(Path(name.removesuffix(".gz")).suffix.lower() in TABLES for name in sources):
        if external:
            raise UserError("--external: is for HDF5 files; leave it out for a table")
        return Table(files=tuple(sources), columns=names, schema=schema)
    return HDF5Input(shards=tuple(sources), features=names, label=(), external=tuple(external or ()))


def _report(
    found: Mapping[str, Any], sources: list[str], as_json: bool, html: Path | None, job_dir: Path | None
) -> None:
    """Prints and writes what was found. For the chief."""
    from hpc_train.files import replace_text
    from hpc_train.report.statistics import write_statistics

    _print(found, as_json)
    written = [] if html is None else [html]
    if job_dir is not None:
        written += [job_dir / name for name in FILE_NAMES]
    try:
        for path in written:
            if job_dir is not None and path == job_dir / FILE_NAMES[0]:
                replace_text(path, json.dumps(found, indent=1) + "\n")
            else:
                write_statistics(found, sources, path)
            if not as_json:
                say(str(path))
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be written: {error.strerror}") from None


@answer()
def _print(found: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(found))
        return
    from hpc_train.jobs.layout import Column, text_cell, text_table
    from hpc_train.report.statistics import NUMBERS, cells, frequent_value, kind_of
    from hpc_train.telemetry.units import counted

    screen = console()
    say(f"{counted(found['rows'], 'row')} in {counted(found['files'], 'file')}")
    rows = []
    for name, column in found["columns"].items():
        top = column.get("top") or [None]
        most = f"{frequent_value(top[0][0])} ({top[0][1]:,})" if top[0] else ""
        rows.append((name, kind_of(column), *cells(column), most))
    titles = ("column", "type", *NUMBERS, "distinct", "most frequent")
    shown = [
        Column(title, tuple(text_cell(row[place]) for row in rows), title in NUMBERS or title == "distinct")
        for place, title in enumerate(titles)
    ]
    shown = [column for column in shown if any(cell.plain not in UNREMARKABLE for cell in column.cells)]
    table = text_table(shown, screen.width, DISPENSABLE)
    show(screen, table)
    there = {str(column.header) for column in table.columns}
    if left_out := [column.title for column in shown if column.title not in there]:
        say(f"not shown for want of room: {', '.join(left_out)}; --json and --html have all")


COMMANDS = (
    Command(
        "stats",
        stats,
        "Data",
        place=6,
        examples=(
            "hpc-train stats 'data/train-*.h5'",
            "hpc-train stats 'data/*.csv'",
            "mpirun -np 4 hpc-train stats 'data/train-*.h5' --json",
        ),
    ),
)
