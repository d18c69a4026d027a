"""hpc-train doctor: whether jobs can run here, and what to do where they cannot."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpc_train.cli.command import Command
from hpc_train.cli.terminal import answer, errors, say, show
from hpc_train.errors import UserError
from hpc_train.outcome import EXIT_FAILED
from hpc_train.text import LINES, visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.table import Table

    from hpc_train.doctor.tools import Finding

_STYLES = {"ok": "green", "warning": "yellow", "fails": "bold red", "not here": "dim"}


@answer()
def doctor(
    job_dir: Annotated[
        Path | None,
        typer.Option(help="Where jobs will keep their files. \\[default: $HPC_TRAIN_ROOT, or ./runs]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a check and line.")] = False,
    site: Annotated[
        bool, typer.Option("--site", help="Print a first version of a site file instead, from what is found here.")
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="With --site: a new file for it.")] = None,
) -> None:
    """Check Python, TensorFlow, Horovod, MPI, GPUs, Slurm and the file system; say what to do where one fails.

    Takes some 15 s and leaves nothing behind. Exit code 1 where the demo could not run; warnings do not change it.
    """
    from hpc_train.doctor.examine import demo_runs, examine

    if site or out is not None:
        _write_site(site, out)
        return
    folder = job_dir or _root()
    findings = []
    if as_json:
        for finding in examine(folder, lambda doing: None):
            print(json.dumps(asdict(finding)), flush=True)
            findings.append(finding)
    else:
        console = _console()
        with progress(console) as report:
            findings = list(examine(folder, report))
        show(console, _table(findings, console.width))
        say(f"\n{_summary(findings)}")
    sys.exit(0 if demo_runs(findings) else EXIT_FAILED)


def _root() -> Path:
    from hpc_train.jobs.record.job_dirs import root_of

    try:
        return root_of(None, os.environ)
    except UserError:  # the finding of the site file says it
        return Path("runs")


def _write_site(site: bool, out: Path | None) -> None:
    from hpc_train.doctor.site import first_version
    from hpc_train.files import create

    with errors():
        if not site:
            raise UserError("--out is the file that --site writes: give both")
        text = first_version(os.environ)
        if out is None:
            sys.stdout.write(text)
            return
        try:
            with os.fdopen(create(out, 0o644), "w", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise UserError(f"{out}: cannot be written: {error.strerror}; --out names a new file") from None
    say(f"{out}: read it, and set HPC_TRAIN_SITE to it; at /etc/hpc_train/site.yaml it is found without that")


def _console() -> Console:
    from rich.console import Console

    from hpc_train.telemetry.progress import LOG_WIDTH, is_live

    if is_live():
        return Console(highlight=False)
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) > 0 else LOG_WIDTH
    return Console(width=width, force_terminal=False, no_color=True, highlight=False)


@contextmanager
def progress(console: Console) -> Iterator[Callable[[str], None]]:
    """Shows on a terminal what is being looked at; elsewhere nothing."""
    if not console.is_terminal:
        yield lambda doing: None
        return
    with console.status("looking") as status:
        yield lambda doing: status.update(f"looking at {doing}")


def _table(findings: list[Finding], width: int) -> Table:
    """A row a finding: what there is, and below it, after an arrow, what to do."""
    from rich.text import Text

    from hpc_train.jobs.layout import Column, text_table

    found = [Text(visible(finding.found, LINES)) for finding in findings]
    for finding, cell in zip(findings, found, strict=True):
        if finding.advice:
            cell.append(visible(f"\n→ {finding.advice}", LINES), "bold" if finding.result == "fails" else "")
    columns = [
        Column("check", tuple(Text(visible(finding.check)) for finding in findings)),
        Column("result", tuple(Text(finding.result, _STYLES[finding.result]) for finding in findings)),
        Column("found, and → what to do", tuple(found)),
    ]
    return text_table(columns, width)


def _summary(findings: list[Finding]) -> str:
    bad = [finding.check for finding in findings if finding.needed and finding.result == "fails"]
    if bad:
        return f"The demo cannot run here: see {', '.join(bad)} above."
    rest = [finding.check for finding in findings if finding.result in ("warning", "fails")]
    return "The demo can run here: make demo." + (f" Worth a look: {', '.join(rest)}." if rest else "")


COMMANDS = (
    Command(
        "doctor",
        doctor,
        "This machine",
        examples=(
            "hpc-train doctor",
            "hpc-train doctor --job-dir /scratch/me/runs",
            "hpc-train doctor --site --out site.yaml",
        ),
    ),
)
