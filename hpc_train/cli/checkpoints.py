"""hpc-train checkpoints: what a job-dir holds to go on from."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from hpc_train.cli.command import Command, JobDir, named_job_dir
from hpc_train.cli.terminal import answer, complain, console, say, show
from hpc_train.jobdir.paths import CHECKPOINTS
from hpc_train.outcome import EXIT_FAILED
from hpc_train.text import visible


@dataclass(frozen=True)
class Entry:
    """One checkpoint as it is listed: `time` in seconds since 1970, `bytes` of all its files."""

    step: int
    time: float | None
    bytes: int
    ranks: int | None
    whole: bool
    verified: bool
    best: bool
    why: str | None
    path: str


@answer()
def checkpoints(
    job_dir: JobDir,
    verify: Annotated[bool, typer.Option("--verify", help="Read all of each checkpoint and compare digests.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a checkpoint and line.")] = False,
) -> None:
    """List a job's checkpoints: step, time, size, and whether each is whole.

    Without --verify the manifest and the sizes are looked at. Exit code 1 where one is not whole.
    """
    folder = named_job_dir(job_dir) / CHECKPOINTS
    if not folder.is_dir():
        sys.exit(complain(f"{folder}: no such folder; JOBDIR is where a job keeps everything"))
    entries = list_checkpoints(folder, verify)
    if as_json:
        for entry in entries:
            print(json.dumps(asdict(entry)))
    else:
        _print_table(folder, entries)
    sys.exit(0 if all(entry.whole for entry in entries) else EXIT_FAILED)


def list_checkpoints(folder: Path, verify: bool) -> list[Entry]:
    """The checkpoints in `folder`, oldest first, then those that were set aside as damaged."""
    from hpc_train.checkpoint.manager import CheckpointManager
    from hpc_train.checkpoint.manifest import DamagedError, FormatError
    from hpc_train.checkpoint.names import Retention

    manager = CheckpointManager(folder, Retention())
    best = manager.best()
    entries = []
    for step in manager.steps():
        path, size = manager.path(step), 0
        is_best = best is not None and best.step == step
        try:
            size = sum(file.stat().st_size for file in path.iterdir())
            manifest = manager.check(step, digests=verify)
        except (DamagedError, FormatError, OSError) as error:
            if not path.is_dir():
                continue  # the running job has just removed it
            entries.append(Entry(step, None, size, None, False, verify, is_best, str(error), str(path)))
        else:
            ranks = manifest.world_size
            entries.append(Entry(step, manifest.time, size, ranks, True, verify, is_best, None, str(path)))
    for path in manager.set_aside():
        size, step = sum(file.stat().st_size for file in path.iterdir()), int(path.name.split("-")[1].split(".")[0])
        entries.append(Entry(step, None, size, None, False, False, False, "set aside as damaged", str(path)))
    return entries


def _print_table(folder: Path, entries: list[Entry]) -> None:
    from rich.text import Text

    from hpc_train.jobs.layout import Column, text_table
    from hpc_train.telemetry.units import size

    if not entries:
        say(f"no checkpoints in {folder}")
        return
    rows = []
    for entry in entries:
        time = datetime.fromtimestamp(entry.time).astimezone().isoformat(" ", "seconds") if entry.time else "–"
        whole = ("yes, verified" if entry.verified else "yes") if entry.whole else "no"
        note = entry.why or ("best evaluation" if entry.best else "")
        rows.append((str(entry.step), time, size(entry.bytes), str(entry.ranks or "–"), whole, note))
    columns = [
        Column(title, tuple(Text(visible(row[place])) for row in rows), title in ("step", "size", "ranks"))
        for place, title in enumerate(("step", "time", "size", "ranks", "whole", ""))
    ]
    screen = console()
    shown = columns if any(columns[-1].cells) else columns[:-1]
    show(screen, text_table(shown, screen.width, dispensable=("ranks", "size", "time")))


COMMANDS = (
    Command(
        "checkpoints",
        checkpoints,
        "Models",
        examples=("hpc-train checkpoints runs/mine", "hpc-train checkpoints runs/mine --verify"),
    ),
)
