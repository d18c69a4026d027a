"""hpc-train ensemble: several models of one job, and one that gives the mean of theirs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpc_train.cli.command import Command, Settings
from hpc_train.cli.terminal import console, errors, say, show, warn
from hpc_train.errors import UserError
from hpc_train.lazy import importing

if TYPE_CHECKING:
    from hpc_train.ensembles.begin import Ensemble
    from hpc_train.ensembles.combine import Results


def ensemble(
    what: Annotated[
        Path, typer.Argument(metavar="JOB.yaml|FOLDER", help="A job file with `ensemble`, or an ensemble.")
    ],
    folder: Annotated[
        Path | None,
        typer.Option("--ensemble", metavar="FOLDER", help="Where all is kept. \\[default: runs/<name>_ensemble]"),
    ] = None,
    ranks: Annotated[
        int | None, typer.Option("--ranks", "-n", min=1, help="Of each member. \\[default: as `resources` says]")
    ] = None,
    parallel: Annotated[
        int | None, typer.Option(metavar="P", min=1, help="Members at once. \\[default: as many as there is room for]")
    ] = None,
    fresh_ranks: Annotated[
        bool, typer.Option("--fresh-ranks", help="Start ranks for each member, in place of keeping those of a slot.")
    ] = False,
    as_jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Submit N Slurm jobs, each of which trains members.")
    ] = None,
    settings: Settings = None,
) -> None:
    """Train several models of a job, and export one: of the mean of what they give, or of their weights.

    One that was stopped, or killed, goes on by the same command: what is there is not trained again.
    """
    with importing():
        from hpc_train.distributed.excepthook import report_error
        from hpc_train.distributed.launcher import launched_ranks
        from hpc_train.distributed.world import World
        from hpc_train.ensembles.begin import begin_ensemble, open_ensemble
        from hpc_train.ensembles.combine import results_of
        from hpc_train.ensembles.train import train_members
        from hpc_train.tuning.begin import StudyRequest
        from hpc_train.tuning.drive import DriveRequest, submit_drivers
        from hpc_train.tuning.live import study_listeners
        from hpc_train.tuning.search.folder import StudyFolder

    with errors():
        if launched_ranks() > 1:
            raise UserError("hpc-train ensemble starts the ranks of its members by itself; start it without mpirun")
        place, is_new = StudyFolder(what.absolute()), False
        if not what.is_dir():
            place, is_new = begin_ensemble(StudyRequest(what, folder, tuple(settings or ()), ranks))
        elif given := next(
            (name for name, value in (("--ensemble", folder), ("--ranks", ranks), ("--set", settings)) if value), None
        ):
            raise UserError(f"{given}: an ensemble that goes on is as it was begun; leave it out")
        opened = open_ensemble(place)
        if as_jobs is not None:
            submit_drivers(opened.study, as_jobs, warn, is_new)
            return
        request = DriveRequest(parallel, not fresh_ranks, is_new)
        with study_listeners(opened.study, console, say) as listeners:
            code = train_members(opened, request, listeners)
        if code != 0:
            sys.exit(code)
    try:
        found = results_of(opened, say)
    except Exception as error:
        sys.exit(report_error(World.alone(), error))
    _say(opened, found)


def _say(opened: Ensemble, found: Results) -> None:
    from rich.text import Text

    from hpc_train.ensembles.combine import best_member
    from hpc_train.jobs.layout import Column, text_table

    def number(value: float | None) -> str:
        return "–" if value is None else f"{value:.5g}"

    names = ["ensemble", *(f"member {member.trial:04d}" for member in found.members)]
    steps = ["–", *(str(member.step) for member in found.members)]
    columns = [Column("model", tuple(map(Text, names))), Column("step", tuple(map(Text, steps)), True)]
    for metric in found.mean:
        values = (number(metrics[metric]) for metrics in (found.mean, *found.each))
        columns.append(Column(metric, tuple(map(Text, values)), True))
    screen = console()
    show(screen, f"{found.evaluation}, {found.rows:,} rows:", text_table(columns, screen.width))
    place, which = best_member(found), "best member's"
    if opened.section.combine == "weights":
        place, which = -1, "last checkpoint's"
    one, own = found.members[place], number(found.each[place]["loss"])
    say(f"loss {number(found.mean['loss'])}; the {which}, {one.trial:04d} at step {one.step}: {own}")
    path = opened.path / found.export
    relative = os.path.relpath(path)
    say(f"export: {path if relative.startswith('..') else relative}")


COMMANDS = (
    Command(
        "ensemble",
        ensemble,
        "Train",
        place=4,
        examples=("hpc-train ensemble job.yaml", "hpc-train ensemble runs/mine_ensemble"),
    ),
)
