"""hpc-train migrate: what becomes of programs with tf.estimator or Horovod."""

from __future__ import annotations

import json
import os
import re
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
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Of the job. \\[default: the first file's]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Report what replaces each call of tf.estimator, TensorFlow 1 and Horovod, and begin the job file and the model.

    Programs are read, never run or imported; TensorFlow is not needed.
    """
    with errors():
        _check(out, force, name)
        sources, mistakes = _read(programs)
        written = [] if mistakes or out is None else _write(sources, out, name)
        if sources:
            _print(sources, written, as_json)
        if mistakes:
            raise UserError("\n".join(mistakes))


def _check(out: Path | None, force: bool, name: str | None) -> None:
    """UserError where the files cannot be written there, or a job cannot have the name."""
    from hpc_train.config.types import NAME_PATTERN, NAME_WORDS
    from hpc_train.migration.skeleton.job_file import JOB_FILE
    from hpc_train.migration.skeleton.model_file import MODEL_FILE

    if name is not None and not re.match(NAME_PATTERN, name):
        raise UserError(f"--name {name}: allowed: {NAME_WORDS}")
    if out is None:
        return
    if not out.absolute().parent.is_dir():
        raise UserError(f"--out {out}: {out.absolute().parent}: no such folder")
    for each in (JOB_FILE, MODEL_FILE, REPORT_FILE):
        if os.path.lexists(out / each) and not force:
            raise UserError(f"{out / each}: is there already; --force replaces it, --out names another folder")


def _read(programs: Sequence[Path]) -> tuple[list[Source], list[str]]:
    """The programs that can be read, and what is wrong with the others."""
    from hpc_train.migration.program import files_of
    from hpc_train.migration.source import read_source
    from hpc_train.text import DIFFERENT

    sources, mistakes = [], []
    for path in files_of(programs):
        try:
            sources.append(read_source(path))
        except UserError as error:
            mistakes.append(str(error))
    if len(mistakes) > DIFFERENT:
        mistakes[DIFFERENT:] = [f"{len(mistakes) - DIFFERENT:,} more files cannot be read"]
    return sources, mistakes


def _write(sources: Sequence[Source], out: Path, name: str | None) -> list[Path]:
    """Writes the files, each by a rename; returns them: none where nothing is to be migrated."""
    from hpc_train.files import replace_text
    from hpc_train.folders import make_folder
    from hpc_train.migration.report import report_markdown
    from hpc_train.migration.skeleton.job_file import JOB_FILE, job_file, name_of
    from hpc_train.migration.skeleton.model_file import MODEL_FILE, model_file, model_in

    sources = [source for source in sources if source.findings]
    if not sources:
        return []
    first = sources[0].program.path
    model = model_in(sources)
    texts = {
        JOB_FILE: job_file(sources, name or name_of(first.stem), model),
        MODEL_FILE: model_file(model, first.name),
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
def _print(sources: Sequence[Source], written: Sequence[Path], as_json: bool) -> None:
    from hpc_train.migration.report import report_json, report_text

    if as_json:
        print(json.dumps({**report_json(sources), "written": list(map(str, written))}))
        return
    width = min(REPORT_WIDTH, console().width if sys.stdout.isatty() else REPORT_WIDTH)
    say("\n".join([report_text(sources, width), *([""] if written else []), *map(str, written)]))


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
