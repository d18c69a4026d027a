"""hpc-train report: a job's report, or several jobs side by side."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from hpc_train.cli.command import Command
from hpc_train.cli.jobs import Root
from hpc_train.cli.terminal import answer, errors, say
from hpc_train.errors import UserError

COMPARISON_FILE = Path("compare.html")

JobDirs = Annotated[
    list[str], typer.Argument(metavar="JOB|FOLDER...", help="Jobs, or folders of job-dirs, such as runs.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Where to write it. \\[default: JOBDIR/report.html; of several jobs compare.html]"
    ),
]


def report(
    jobs: JobDirs,
    out: Out = None,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Tables in Markdown, to --out or to standard output.")
    ] = False,
    metric: Annotated[
        str | None,
        typer.Option(metavar="METRIC[:min|:max]", help="What several jobs are ranked by. \\[default: their own]"),
    ] = None,
    root: Root = None,
) -> None:
    """Write the report of a job, or rank several jobs and lay them side by side; one HTML file, or Markdown."""
    with errors():
        job_dirs, is_one = _job_dirs(jobs, out, root)
        if is_one and metric is not None:
            raise UserError("--metric is for several jobs")
        written = _write(job_dirs, is_one, out, as_markdown, metric)
    if written is not None:
        say(str(written))


def _job_dirs(jobs: list[str], out: Path | None, root: Path | None) -> tuple[list[Path], bool]:
    """The job-dirs, and whether a single one was named.

    Raises:
        UserError: With all that names none, and what is wrong with `out`.
    """
    from hpc_train.jobs.record.job_dirs import find_job_dirs, in_full, root_of
    from hpc_train.jobs.schedulers import job_dir_in_queues

    mistakes, found = [], []
    try:
        found = find_job_dirs(jobs, root_of(root, os.environ), job_dir_in_queues)
    except UserError as error:
        mistakes.append(str(error))
    if out is not None and out.is_dir():
        mistakes.append(f"--out: {out} is a folder; give the name of a file")
    elif out is not None and not out.absolute().parent.is_dir():
        mistakes.append(f"--out: {out.parent}: no such folder")
    if mistakes:
        raise UserError("\n".join(mistakes))
    return found, len(found) == 1 and found[0].parent != in_full(Path(jobs[0]))


def _write(job_dirs: list[Path], is_one: bool, out: Path | None, as_markdown: bool, metric: str | None) -> Path | None:
    """Where it was written; None: to standard output."""
    from hpc_train.files import replace_text
    from hpc_train.jobdir.job_dir import JobDir

    try:
        if as_markdown:
            from hpc_train.report.compare import markdown

            text = markdown([JobDir(job_dir).history() for job_dir in job_dirs], metric)
            if out is None:
                with answer():
                    sys.stdout.write(text)
            else:
                replace_text(out, text)
            return out
        from hpc_train.report.compare import write_comparison
        from hpc_train.report.page import write_report

        if is_one:
            return write_report(job_dirs[0], out)
        return write_comparison(job_dirs, out or COMPARISON_FILE, metric)
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
            "hpc-train report runs --metric accuracy --markdown",
        ),
    ),
)
