"""hpc-train tune: studies of hyper-parameters."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from hpc_train.cli.command import Command, Settings, examples
from hpc_train.cli.terminal import answer, console, errors, say, show, warn
from hpc_train.errors import UserError, did_you_mean
from hpc_train.lazy import importing

if TYPE_CHECKING:
    from hpc_train.tuning.search.folder import StudySettings
    from hpc_train.tuning.search.study import Study

RUN = "run"
"""What is meant where the first word is no command of this group."""
StudyPath = Annotated[Path, typer.Argument(metavar="STUDY", help="The folder of the study.")]


class _Words(TyperGroup):
    """`hpc-train tune JOB.yaml` is `hpc-train tune run JOB.yaml`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts RUN before words that begin with none of the commands."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            if (hint := did_you_mean(args[0], self.commands)) and not os.path.lexists(args[0]):
                ctx.fail(f"{args[0]!r} is no command, and no file or folder; {hint.rstrip('; ')}")
            args = [RUN, *args]
        return super().parse_args(ctx, args)


tune = typer.Typer(
    cls=_Words,
    no_args_is_help=True,
    epilog=examples(
        "hpc-train tune job.yaml", "hpc-train tune runs/mine_study", "hpc-train tune status runs/mine_study"
    ),
)


@tune.callback()
def about() -> None:
    """Search for the best settings of a job: `hpc-train tune JOB.yaml`, whose `tune` says what varies.

    A study is a folder of ordinary jobs, its trials. One that was stopped, or killed, goes on by
    `hpc-train tune STUDY`. The options of both: `hpc-train tune run --help`.
    """


@tune.command(RUN, epilog=examples("hpc-train tune run job.yaml --study runs/mine --parallel 2"))
def run(
    what: Annotated[Path, typer.Argument(metavar="JOB.yaml|STUDY", help="A job file with `tune`, or a study.")],
    study: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where all is kept. \\[default: runs/<name>_study]")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option("--ranks", "-n", min=1, help="Of each trial. \\[default: as `resources` says]")
    ] = None,
    parallel: Annotated[
        int | None, typer.Option(metavar="P", min=1, help="Trials at once. \\[default: tune.parallel_trials]")
    ] = None,
    fresh_ranks: Annotated[
        bool, typer.Option("--fresh-ranks", help="Start ranks for each trial, in place of keeping those of a slot.")
    ] = False,
    as_jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Submit N Slurm jobs, each of which runs trials.")
    ] = None,
    settings: Settings = None,
) -> None:
    """Begin a study, or go on with one; the word `run` may be left out."""
    with importing():
        from hpc_train.distributed.launcher import launched_ranks
        from hpc_train.jobs.site.site import adopt
        from hpc_train.tuning.begin import StudyRequest, begin_study, open_study
        from hpc_train.tuning.drive import DriveRequest, drive, submit_drivers
        from hpc_train.tuning.live import study_listeners
        from hpc_train.tuning.search.folder import StudyFolder

    with errors():
        if launched_ranks() > 1:
            raise UserError("hpc-train tune starts the ranks of its trials by itself; start it without mpirun")
        adopt(os.environ)
        folder, is_new = StudyFolder(what.absolute()), False
        if not what.is_dir():
            folder, is_new = begin_study(StudyRequest(what, study, tuple(settings or ()), ranks))
        elif given := next((name for name, value in _given(study, ranks, settings) if value), None):
            raise UserError(f"{given}: a study that goes on is as it was begun; leave it out")
        found, known = open_study(folder)
        if as_jobs is not None:
            submit_drivers(found, as_jobs, warn, is_new)
            return
        request = DriveRequest(parallel, not fresh_ranks, is_new)
        with study_listeners(found, console, say) as listeners:
            code = drive(found, known, request, listeners)
    _say_best(found)
    sys.exit(code)


def _given(study: Path | None, ranks: int | None, settings: list[str] | None) -> list[tuple[str, Any]]:
    return [("--study", study), ("--ranks", ranks), ("--set", settings)]


def _say_best(study: Study) -> None:
    from hpc_train.jobdir.paths import CODE
    from hpc_train.tuning.search.folder import BEST_FILE
    from hpc_train.tuning.search.words import OF_ENSEMBLE, shown, story

    best = study.state.best
    if best is None or best.value is None:
        return
    point = ", ".join(f"{key}={shown(value)}" for key, value in best.point.items())
    say(f"best: {study.nouns.trial} {best.name}, {study.goal.metric} {best.value:.6g}: {point}")
    for line in story(study.state, best):
        say(line)
    say(f"its job-dir:  {_near(study.folder.job_dir(best).path)}")
    say(f"its job file: {_near(study.folder.path / CODE / BEST_FILE)}")
    if study.nouns is OF_ENSEMBLE:
        say(f"to combine them: hpc-train {study.nouns.command} {_near(study.folder.path)}")


def _near(path: Path) -> str:
    """A path as short as it can be typed here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


@tune.command("stop", epilog=examples("hpc-train tune stop runs/mine_study"))
@answer()
def stop(study: StudyPath) -> None:
    """Have the trials of a study save and stop, whoever runs them; `hpc-train tune resume` lets it go on."""
    with errors():
        found = _open(study)
        if found.halt("hpc-train tune stop"):
            nouns = found.nouns
            say(f"the drivers of the {nouns.study} will see it within seconds; its {nouns.trial}s save and stop")
        else:
            say(f"the {found.nouns.study} is stopped already")


@tune.command("resume", epilog=examples("hpc-train tune resume runs/mine_study"))
def resume(
    study: StudyPath,
    max_hours: Annotated[
        float | None, typer.Option(metavar="H", min=0.001, help="In which trials may run, in all, from now on.")
    ] = None,
) -> None:
    """Go on with a study: as `hpc-train tune STUDY`."""
    with errors():
        found = _open(study)
        if max_hours is not None:
            found.allow_hours(max_hours)
    run(study)


@tune.command("add-trials", epilog=examples("hpc-train tune add-trials runs/mine_study 20"))
@answer()
def add_trials(
    study: StudyPath, count: Annotated[int, typer.Argument(metavar="N", min=1, help="How many more.")]
) -> None:
    """Allow a study N trials more."""
    with errors():
        found = _open(study)
        found.add_trials(count)
        say(
            f"the study may have {found.state.max_trials} trials now; hpc-train tune {_near(found.folder.path)} goes on"
        )


@tune.command("status", epilog=examples("hpc-train tune status runs/mine_study"))
@answer()
def status(
    study: StudyPath,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of text: an object a line.")] = False,
) -> None:
    """Show the trials of a study, best first."""
    with errors():
        from hpc_train.tuning.overview import as_objects, overview

        found = _open(study)
        if as_json:
            import json

            for one in as_objects(found):
                print(json.dumps(one))
        else:
            screen = console()
            show(screen, *overview(found, screen.width))


@tune.command("report", epilog=examples("hpc-train tune report runs/mine_study"))
def report(study: StudyPath) -> None:
    """Write STUDY/report.html: how the trials went, and which keys matter."""
    with errors():
        from hpc_train.tuning.report.page import write_study_report

        found, known = _opened(study)
        try:
            say(_near(write_study_report(found, known.name)))
        except OSError as error:
            raise UserError(f"{error.filename or study}: cannot be written: {error.strerror}") from None


@tune.command("export", epilog=examples("hpc-train tune export runs/mine_study --optuna study.journal"))
def export(
    study: StudyPath,
    optuna: Annotated[Path, typer.Option(metavar="FILE", help="A journal for Optuna and optuna-dashboard.")],
) -> None:
    """Write the trials of a study for other programs."""
    with errors():
        from hpc_train.tuning.optuna_journal import write_journal

        found, known = _opened(study)
        write_journal(found, known.name, optuna.absolute())
        say(f"{_near(optuna)}: for optuna-dashboard {_near(optuna)}, and optuna.storages.journal.JournalFileBackend")


def _open(path: Path) -> Study:
    return _opened(path)[0]


def _opened(path: Path) -> tuple[Study, StudySettings]:
    from hpc_train.tuning.begin import open_study
    from hpc_train.tuning.search.folder import StudyFolder

    return open_study(StudyFolder(path.absolute()))


COMMANDS = (Command("tune", tune, "Train", place=3, help="Search for the best settings of a job."),)
