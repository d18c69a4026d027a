"""hpc-train report: a job's report, or several jobs side by side; what changed between two runs of a benchmark."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpc_train.cli.command import Command
from hpc_train.cli.terminal import complain
from hpc_train.errors import UserError

if TYPE_CHECKING:
    from hpc_train.report.benchmark_comparison import Comparison

COMPARISON_FILE = Path("compare.html")

JobDirs = Annotated[
    list[Path],
    typer.Argument(
        metavar="JOBDIR...",
        help="Job-dirs, such as runs/<name of the job>; with --compare two results of a benchmark.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Where to write it. [default: JOBDIR/report.html; of several jobs compare.html]"),
]


def report(
    job_dirs: JobDirs,
    out: Out = None,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Tables in Markdown, to --out or to standard output.")
    ] = False,
    between: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Tell what became slower or faster from the first to the second of two runs of a benchmark: results "
            "folders, such as benchmarks/results/<name>_<machine>_<date>, or files of records.",
        ),
    ] = False,
) -> None:
    """Write the report of a job, or lay several jobs side by side; one HTML file, or Markdown."""
    try:
        if between:
            _compare(job_dirs, out, as_markdown)
            return
        _check(job_dirs, out)
        written = _write(job_dirs, out, as_markdown)
    except UserError as error:
        sys.exit(complain(error))
    if written is not None:
        print(written)


def _check(job_dirs: list[Path], out: Path | None) -> None:
    from hpc_train.jobdir.job_dir import MARKS, JobDir

    mistakes = []
    for job_dir in job_dirs:
        if not job_dir.is_dir():
            mistakes.append(
                f"{job_dir}: no such folder; JOBDIR is where a job keeps everything: runs/<name of the job>"
            )
        elif not JobDir(job_dir).is_one():
            mistakes.append(f"{job_dir}: is no job-dir: it holds none of {', '.join(MARKS)}")
    mistakes += _wrong_place(out)
    if mistakes:
        raise UserError("\n".join(mistakes))


def _wrong_place(out: Path | None) -> list[str]:
    if out is not None and out.is_dir():
        return [f"--out: {out} is a folder; give the name of a file"]
    if out is not None and not out.absolute().parent.is_dir():
        return [f"--out: {out.parent}: no such folder"]
    return []


def _compare(paths: list[Path], out: Path | None, as_markdown: bool) -> None:
    """Prints what changed between two runs of a benchmark, or writes it to a file, whose path it prints."""
    from hpc_train.report import benchmark_words
    from hpc_train.report.benchmark_comparison import compare, read_run
    from hpc_train.telemetry.json_files import replace_text

    if len(paths) != 2:
        raise UserError(f"--compare: takes two results of a benchmark, the earlier one first; {len(paths)} given")
    if mistakes := _wrong_place(out):
        raise UserError("\n".join(mistakes))
    found = compare(read_run(paths[0]), read_run(paths[1]))
    if as_markdown or (out is not None and out.suffix == ".md"):
        text = benchmark_words.markdown(found)
    elif out is None and sys.stdout.isatty():
        _show(found)
        return
    else:
        text = "".join(f"{line}\n" for line in benchmark_words.lines(found))
    if out is None:
        with suppress(BrokenPipeError):
            sys.stdout.write(text)
        return
    try:
        replace_text(out, text)
    except OSError as error:
        raise UserError(f"--out: {out}: cannot be written: {error.strerror}") from None
    print(out)


def _show(found: Comparison) -> None:
    """On a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from hpc_train.report import benchmark_words

    console = Console(highlight=False)
    for line in benchmark_words.heading(found):
        console.print(Text(line, "yellow" if line.startswith("warning: ") else ""))
    told = benchmark_words.table(found)
    shown = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for number, name in enumerate(told.header):
        shown.add_column(name, justify="left" if number in (0, 2) else "right", no_wrap=number != 2)
    for row in told.rows:
        cells = [Text(cell.replace(" (", "\n").rstrip(")")) if at > 2 else Text(cell) for at, cell in enumerate(row)]
        shown.add_row(*cells, style={"slower": "red", "faster": "green"}.get(row[0], ""))
    console.print(shown)
    for line in benchmark_words.ending(found):
        console.print(Text(line))


def _write(job_dirs: list[Path], out: Path | None, as_markdown: bool) -> Path | None:
    """Where it was written; None: to standard output."""
    from hpc_train.jobdir.job_dir import JobDir
    from hpc_train.telemetry.json_files import replace_text

    try:
        if as_markdown:
            from hpc_train.report.compare import markdown

            text = markdown([JobDir(job_dir).history() for job_dir in job_dirs])
            if out is None:
                sys.stdout.write(text)
            else:
                replace_text(out, text)
            return out
        from hpc_train.report import write_comparison, write_report

        if len(job_dirs) == 1:
            return write_report(job_dirs[0], out)
        return write_comparison(job_dirs, out or COMPARISON_FILE)
    except OSError as error:
        where = "--out: " if out is not None else ""
        raise UserError(f"{where}{error.filename or out or job_dirs[0]}: cannot be written: {error.strerror}") from None


COMMANDS = (Command("report", report, "Jobs"),)
