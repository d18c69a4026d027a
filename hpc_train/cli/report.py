"""hpc-train report: a job's report, or several jobs side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hpc_train.cli.command import Command
from hpc_train.cli.terminal import answer, errors, say
from hpc_train.errors import UserError

COMPARISON_FILE = Path("compare.html")

JobDirs = Annotated[list[Path], typer.Argument(metavar="JOBDIR...", help="Job-dirs, such as runs/<name of the job>.")]
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
) -> None:
    """Write the report of a job, or lay several jobs side by side; one HTML file, or Markdown."""
    with errors():
        _check(job_dirs, out)
        written = _write(job_dirs, out, as_markdown)
    if written is not None:
        say(str(written))


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
    if out is not None and out.is_dir():
        mistakes.append(f"--out: {out} is a folder; give the name of a file")
    elif out is not None and not out.absolute().parent.is_dir():
        mistakes.append(f"--out: {out.parent}: no such folder")
    if mistakes:
        raise UserError("\n".join(mistakes))


def _write(job_dirs: list[Path], out: Path | None, as_markdown: bool) -> Path | None:
    """Where it was written; None: to standard output."""
    from hpc_train.files import replace_text
    from hpc_train.jobdir.job_dir import JobDir

    try:
        if as_markdown:
            from hpc_train.report.compare import markdown

            text = markdown([JobDir(job_dir).history() for job_dir in job_dirs])
            if out is None:
                with answer():
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


COMMANDS = (
    Command(
        "report",
        report,
        "Jobs",
        examples=(
            "hpc-train report runs/mine",
            "hpc-train report runs/one runs/two --out compare.html",
            "hpc-train report runs/one runs/two --markdown",
        ),
    ),
)
