"""tune: a study from a program of one's own, and what it found."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_train.arguments import check_count, check_path, check_texts, check_type, checked_arguments
from hpc_train.distributed.launcher import launched_ranks
from hpc_train.errors import JobEndedError, UserError
from hpc_train.jobdir.paths import CODE
from hpc_train.outcome import EXIT_FAILED
from hpc_train.text import visible
from hpc_train.tuning.begin import StudyRequest, begin_study, open_study
from hpc_train.tuning.drive import DriveRequest, drive
from hpc_train.tuning.execution.driver import Listeners
from hpc_train.tuning.search.folder import BEST_FILE
from hpc_train.tuning.search.measurements import Measurements
from hpc_train.tuning.search.study import Study
from hpc_train.tuning.search.words import failures


@dataclass(frozen=True)
class TrialResult:
    """One trial of a study.

    Attributes:
        number: Counted from 0.
        state: "completed", "paused" or "stopped" (others were better), "failed", "waiting" (it was interrupted).
        point: The values of the space's keys that matter for it.
        value: The best of the goal; None: it was never a finite number.
        step: Of the evaluation that gave it.
        parent, from_step: Of a fork in a population: the trial whose checkpoint it began with, and its step.
        job_dir: Where it keeps all, as any job does.
    """

    number: int
    state: str
    point: Mapping[str, Any]
    value: float | None
    step: int | None
    job_dir: Path
    parent: int | None = None
    from_step: int = 0


@dataclass(frozen=True)
class StudyResult:
    """What a study has found.

    Attributes:
        folder: Of the study.
        trials: By number.
        best: The one with the best value; None where none has one.
        best_job_file: A job file with its values, which can be submitted as it is.
    """

    folder: Path
    trials: tuple[TrialResult, ...]
    best: TrialResult | None

    @property
    def best_job_file(self) -> Path:
        return self.folder / CODE / BEST_FILE


@checked_arguments
def tune(
    job_file: str | Path,
    study: str | Path | None = None,
    settings: Sequence[str] = (),
    ranks: int | None = None,
    parallel: int | None = None,
    keep_ranks: bool = True,
) -> StudyResult:
    """Runs the study that a job file describes below `tune`; goes on with it where it has begun. Local; starts ranks.

    Args:
        job_file: The job file.
        study: The folder of the study; None: runs/<name of the job>_study.
        settings: `KEY=VALUE` each, laid over the file, as `tune.max_trials=40`.
        ranks: Of each trial; None: as `resources` says.
        parallel: Trials at once; None: `tune.parallel_trials`, or as many as there are cores and GPUs for.
        keep_ranks: Whether the ranks of a slot stay for its next trial; else each trial starts its own.

    Returns:
        `folder`; `trials`, by number, each with `number`, `state`, `point` (values by key), `value` (the best of the
        goal, or None), `step`, `job_dir`, `parent` and `from_step`; `best`, the one with the best value, or None; and
        `best_job_file`, which can be submitted as it is.

    Writes, in the folder: study.json, a copy of the code, the decisions, a job-dir for each trial in trials/, and
    code/best_trial.yaml.

    Raises:
        UserError: With all mistakes of the job file; the goal is not reported; the folder is of another study.
        JobEndedError: Too many trials have failed, or none has come to its end.
        SystemExit: With code 3, 4 or 5, after SIGUSR1, SIGTERM or SIGINT, once all trials have saved.
    """
    request = checked_request("tune", job_file, {"study": study}, settings, ranks, parallel, keep_ranks)
    folder, is_new = begin_study(request)
    found, known = open_study(folder)
    code = drive(found, known, DriveRequest(parallel, keep_ranks, is_new), Listeners(print_line))
    check_end(found, code)
    return result_of(found)


def check_end(study: Study, code: int) -> None:
    """Raises what a function of Python does where the driver of a study, or of an ensemble, has ended with `code`."""
    if code == EXIT_FAILED:
        failed, nouns = list(study.state.of("failed")), study.nouns
        why = failures(failed, study.folder.trials, nouns) if failed else f"no {nouns.trial} has come to its end"
        raise JobEndedError(f"{study.folder.path}: {why}", code)
    if code != 0:
        raise SystemExit(code)


def checked_request(
    function: str,
    job_file: Any,
    folder: Mapping[str, Any],
    settings: Any,
    ranks: Any,
    parallel: Any,
    keep_ranks: Any,
) -> StudyRequest:
    """What `function`, tune or ensemble, is asked for; `folder` by the name of that argument.

    Raises:
        UserError: An argument is not allowed, or the program is one of several ranks.
    """
    check_path(function, "job_file", job_file, "a job file")
    ((name, place),) = folder.items()
    check_path(function, name, place, "a folder", optional=True)
    check_texts(function, "settings", settings)
    for name, count in (("ranks", ranks), ("parallel", parallel)):
        if count is not None:
            check_count(function, name, count)
    check_type(function, "keep_ranks", keep_ranks, bool, "True or False")
    if launched_ranks() > 1:
        raise UserError(f"{function}: starts ranks by itself; start the program without mpirun")
    return StudyRequest(Path(job_file), Path(place) if place is not None else None, tuple(settings), ranks)


def result_of(study: Study) -> StudyResult:
    """What the trials of a study have measured. Local."""
    trials = []
    for trial in study.state.trials:
        job_dir = study.folder.job_dir(trial)
        found = Measurements.of(job_dir, study.goal, trial.begun_at)
        parent = trial.lineage.parent if trial.lineage is not None else None
        known = (trial.number, trial.state, trial.point, found.best(), found.best_step(), job_dir.path)
        trials.append(TrialResult(*known, parent, trial.begun_at))
    best = study.state.best
    return StudyResult(study.folder.path, tuple(trials), trials[best.number] if best is not None else None)


def print_line(text: str) -> None:
    """Prints what a driver reports, on standard error."""
    print(visible(text), file=sys.stderr, flush=True)
