"""hpc-train migrate: what becomes of programs with tf.estimator or Horovod."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpc_train.cli.command import Command
from hpc_train.cli.terminal import answer, console, errors, say
from hpc_train.errors import UserError

if TYPE_CHECKING:
    from hpc_train.migration.source import Source

REPORT_WIDTH = 80
"""Of the report: no line is longer, however wide the terminal is."""
REPORT_FILE = "report.md"


def migrate(
    programs: Annotated[
        list[Path],
        typer.Argument(metavar="FILES...", help="Python programs, notebooks (.ipynb), or folders of programs."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write job.yaml, model.py and report.md there; it is made."),
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Of the job. [default: the first file's]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Report what replaces each call of tf.estimator, TensorFlow 1 and Horovod, and begin the job file and the model.

    Programs are read, never run or imported; TensorFlow is not needed.
    """
    with errors():
        files = _files(programs, out, force)
        sources = _read(files)
        found = [source for source in sources if source.findings]
        written = _write(found, out, name or found[0].program.path.stem, force) if out is not None and found else []
        _print(found or sources[:1], len(sources) - len(found), written, as_json)


def _files(programs: Sequence[Path], out: Path | None, force: bool) -> list[Path]:
    """The files to be read; UserError where an option is not allowed."""
    from hpc_train.migration.program import files_of
    from hpc_train.migration.skeleton.job_file import JOB_FILE
    from hpc_train.migration.skeleton.model_file import MODEL_FILE

    if out is not None and not out.absolute().parent.is_dir():
        raise UserError(f"--out {out}: {out.absolute().parent}: no such folder")
    for each in (JOB_FILE, MODEL_FILE, REPORT_FILE) if out is not None and not force else ():
        if out is not None and (out / each).exists():
            raise UserError(f"{out / each}: is there already; --force replaces it, --out names another folder")
    return files_of(programs)


def _read(files: Sequence[Path]) -> list[Source]:
    """The programs; UserError with the mistakes of all."""
    from hpc_train.migration.source import read_source

    sources, mistakes = [], []
    for path in files:
        try:
            sources.append(read_source(path))
        except UserError as error:
            mistakes.append(str(error))
    if mistakes:
        raise UserError("\n".join(mistakes))
    return sources


def _write(sources: Sequence[Source], out: Path, name: str, force: bool) -> list[Path]:
    """Writes the files, each by a rename; returns them."""
    from hpc_train.files import replace_text
    from hpc_train.folders import make_folder
    from hpc_train.migration.report import report_markdown
    from hpc_train.migration.skeleton.job_file import JOB_FILE, job_file
    from hpc_train.migration.skeleton.model_file import MODEL_FILE, model_file, model_in

    model = model_in(sources)
    texts = {
        JOB_FILE: job_file(sources, name, model),
        MODEL_FILE: model_file(model, sources[0].program.path.name),
        REPORT_FILE: report_markdown(sources),
    }
    try:
        make_folder(out, follow=True)
        for each, text in texts.items():
            replace_text(out / each, text)
    except OSError as error:
        raise UserError(f"{error.filename or out}: cannot be written: {error.strerror}") from None
    return [out / each for each in texts]


@answer()
def _print(sources: Sequence[Source], others: int, written: Sequence[Path], as_json: bool) -> None:
    from hpc_train.migration.report import report_json, report_text
    from hpc_train.telemetry.units import counted

    if as_json:
        print(json.dumps({**report_json(sources), "written": list(map(str, written))}))
        return
    width = min(REPORT_WIDTH, console().width if sys.stdout.isatty() else REPORT_WIDTH)
    say(report_text(sources, width))
    if others and sources[0].findings:
        say(f"\n{counted(others, 'file')} without anything to migrate")
    if written:
        say("")
    for path in written:
        say(str(path))


COMMANDS = (
    Command(
        "migrate",
        migrate,
        "Train",
        place=9,
        examples=(
            "hpc-train migrate train.py",
            "hpc-train migrate train.py --out migrated",
            "hpc-train migrate project/ --json",
        ),
    ),
)
