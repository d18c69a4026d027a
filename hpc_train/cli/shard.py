"""The command `hpc-train shard`: makes shards, or with `inspect` shows what they hold."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from hpc_train.cli.command import Command, examples
from hpc_train.cli.terminal import answer, complain, console, errors, say, show, warn
from hpc_train.outcome import EXIT_BAD_INPUT, EXIT_FAILED
from hpc_train.telemetry.units import counted, size
from hpc_train.text import by_mistake, listed, visible

if TYPE_CHECKING:
    from hpc_train.data.sources.spool import Report
    from hpc_train.data.writing.convert import Options
    from hpc_train.data.writing.inspect import FileReport

BY_NAMES = "by names"
"""What --split alone stands for, as in hpc_train.data.sources.split, which imports numpy."""
QUIET_SECS = 10.0
"""Where there is no terminal, a line reports the progress at most so often."""


class _Make(TyperCommand):
    """The command that has no name of its own: its help and its errors call it `hpc-train shard`."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return super().make_context(parent.info_name, _with_split(args), parent=parent.parent, **extra)


def _with_split(args: list[str]) -> list[str]:
    """`args` where --split, which may stand alone, always has a value: what follows it, if that is a number."""
    end = args.index("--") if "--" in args else len(args)
    made: list[str] = []
    for arg in args[:end]:
        if made and made[-1] == "--split":
            number = re.fullmatch(r"[-+]?(\.?\d[\d.,eE+-]*%?|nan|inf)", arg, re.IGNORECASE)
            made[-1] = f"--split={arg if number else BY_NAMES}"
            if number:
                continue
        made.append(arg)
    return [f"--split={BY_NAMES}" if arg == "--split" else arg for arg in made] + args[end:]


class _MakeUnlessNamed(TyperGroup):
    """`hpc-train shard PREFIX SOURCES…` is `make`; the other commands are called by their names."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = bool(args) and args[0] in self.commands and args[0] != "make"
        return super().parse_args(ctx, args if named else ["make", *args])


app = typer.Typer(cls=_MakeUnlessNamed, rich_markup_mode="rich")
_EXAMPLES = examples(
    "hpc-train shard data/train train.npz --shards 16 --shuffle",
    "hpc-train shard data/ table.csv --schema schema.yaml --split",
    "hpc-train shard data/ 'part-*.csv' --split 0.1 --stack image=pixel1..pixel784 --dtype 'image=uint8[28,28]'",
)
_ABOUT_INSPECT = "[bold]hpc-train shard inspect FILES[/bold] shows what shards hold and how they will be read."


@app.command(cls=_Make, epilog=f"{_EXAMPLES}\n\n{_ABOUT_INSPECT}")
def make(
    prefix: Annotated[
        str,
        typer.Argument(
            metavar="PREFIX", help="Folder and beginning of the file names: data/train. With --split the folder."
        ),
    ],
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCES...",
            help="Files: .npz, HDF5, CSV (.csv, .tsv, also .gz), Parquet, TFRecord (also .gz), or NAME=FILE for .npy "
            "and IDX (also .gz). Those with the same columns follow each other, others stand side by side.",
        ),
    ],
    shards: Annotated[int, typer.Option(metavar="N", help="Number of files.")] = 8,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Write the rows in a random order.")] = False,
    seed: Annotated[int, typer.Option(metavar="S", help="Which order that is.")] = 0,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="[FRACTION]",
            help="Write several sets, train-* and test-*. Alone: by names such as x_train and x_test, which become x. "
            "With 0.1: a tenth of the rows, chosen by --seed, is for test. Alone with --schema: as the schema says.",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,NEW=B", help="Only these columns; B is called NEW in the shards."),
    ] = None,
    stack: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=A..B", help="Make one column of those from A to B, or of A,B,C. Repeatable."),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TYPE",
            help="A column's type, or TYPE\\[SHAPE] with the shape of its rows; each value is checked to fit. A TYPE "
            "alone is for all floats (float32), or all integers (int32); NAME=text writes text. Repeatable.",
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="What is made of a table's columns: a schema.yaml, as hpc-train schema writes it."
        ),
    ] = None,
    external: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Files that HDF5 sources may lead to, by links, virtual datasets or external storage. Repeatable.",
        ),
    ] = None,
    header: Annotated[
        bool | None,
        typer.Option(
            "--header/--no-header",
            help="Whether the first line of CSV files has the columns' names; without it they are c0, c1, … "
            "\\[default: it has, and is refused where it looks like a row]",
        ),
    ] = None,
    compression: Annotated[
        str, typer.Option(metavar="KIND", help="gzip, gzip-1 … gzip-9, lzf, zstd, lz4, blosc or none.")
    ] = "none",
    chunk_rows: Annotated[
        int | None,
        typer.Option(metavar="R", help="Rows of a chunk. \\[default: contiguous, or chunks of 256 KiB if compressed]"),
    ] = None,
) -> None:
    """Write files of other formats as HDF5 shards: PREFIX-00000.h5 and so on.

    A run that was killed goes on where it was when the same command is given again.
    """
    from hpc_train.data.writing.convert import Options, convert

    try:
        with errors():
            options = Options(
                shards=shards,
                shuffle=shuffle,
                seed=seed,
                compression=compression,
                chunk_rows=chunk_rows,
                columns=columns,
                stack=stack or (),
                dtype=dtype or (),
                split=split,
                header=header,
                external=external or (),
                schema=schema,
            )
            _warn_of_statistics(options)
            with _progress() as report:
                done = convert(prefix, sources, options, report)
    except OSError as error:
        complain(f"{error}; what was finished is kept, and the same command goes on from there")
        sys.exit(EXIT_FAILED)
    for one in done:
        last = f" … {one.paths[-1].name}" if len(one.paths) > 1 else ""
        kept = f" ({one.kept} of them from an earlier run)" if one.kept else ""
        columns_written = listed(field.name for field in one.fields)
        rows = counted(one.rows, "row")
        say(f"{rows} of {columns_written} in {counted(len(one.paths), 'file')}{kept}: {one.paths[0]}{last}")


def _warn_of_statistics(options: Options) -> None:
    """Reports where a schema knows rows that it should not."""
    if options.schema is not None and options.split is not None:
        schema = options.table_schema()
        if schema.split is None and schema.rows is not None:
            warn(
                f"{options.schema}: its vocabularies and statistics are over all rows, those for test included; "
                "hpc-train schema --split leaves these out"
            )


@app.command(epilog=examples("hpc-train shard inspect 'data/train-*.h5'"))
@answer()
def inspect(
    files: Annotated[list[str], typer.Argument(metavar="FILES...", help="Shards, or any HDF5 files.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what shards hold, how it is stored and how it will be read; exit code 2 where something is wrong."""
    from hpc_train.data.writing.inspect import inspect as look

    with errors():
        reports = look(files)
    if as_json:
        print(json.dumps([report.to_json() for report in reports], indent=1))
    else:
        _show(reports)
    for line in by_mistake((report.path, problem) for report in reports for problem in report.problems):
        complain(line)
    sys.exit(EXIT_BAD_INPUT if any(report.problems for report in reports) else 0)


def _show(reports: list[FileReport]) -> None:
    from rich.text import Text

    from hpc_train.jobs.layout import Column, text_table

    screen = console()
    groups: dict[Any, list[FileReport]] = {}
    for found in reports:
        if found.datasets:
            alike = tuple(dataset.alike for dataset in found.datasets)
            groups.setdefault((alike, found.problems), []).append(found)
    for files in groups.values():
        rows = [report.rows for report in files]
        most = "" if len(set(rows)) == 1 else f" to {max(rows)}"
        each = f" ({min(rows)}{most} each)" if len(files) > 1 else ""
        names = files[0].path if len(files) == 1 else f"{files[0].path} … {files[-1].path}: {len(files)} files"
        summary = f"{names}: {sum(rows)} rows{each}, {size(sum(report.bytes for report in files))}"
        lines = []
        for i, dataset in enumerate(files[0].datasets):
            chunk = "" if dataset.chunk is None else f" {list(dataset.chunk)}"
            cells = (
                dataset.name,
                "" if dataset.outside else dataset.row,
                *(dataset.layout + chunk, dataset.compression),
                size(sum(report.datasets[i].stored_bytes for report in files)),
                size(sum(report.datasets[i].raw_bytes for report in files)),
                dataset.read_by + (f": {dataset.reason}" if dataset.reason else ""),
            )
            lines.append(cells)
        titles = ("dataset", "type, row, order", "layout", "filters", "bytes", "raw", "read by")
        columns = [
            Column(title, tuple(Text(visible(line[place])) for line in lines), title in ("bytes", "raw"))
            for place, title in enumerate(titles)
        ]
        show(screen, visible(summary), text_table(columns, screen.width, ("raw", "filters", "bytes", "layout")), "")


@contextmanager
def _progress() -> Iterator[Report]:
    """A bar on a terminal; elsewhere a line on stderr now and then. Both stay away from what is done at once."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.table import Column

    whole = Column(no_wrap=True)
    columns = (
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=3)),
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=6, max_width=40)),
        *(DownloadColumn(table_column=whole), TransferSpeedColumn(table_column=whole)),
        TimeRemainingColumn(table_column=whole),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as progress:
        task = progress.add_task("", total=None)

        def report(what: str, done: int, total: int) -> None:
            progress.update(task, description=visible(what), completed=done, total=total or None)

        yield report


def _lines() -> Report:
    last = time.monotonic()

    def report(what: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last < QUIET_SECS:
            return
        last = time.monotonic()
        share = f" of {size(total)} ({done / total:.0%})" if total else ""
        warn(f"{what}: {size(done)}{share}")

    return report


COMMANDS = (Command("shard", app, "Data", help="Write files of other formats as HDF5 shards, or inspect shards."),)
