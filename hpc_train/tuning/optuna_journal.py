"""A study as a journal of Optuna's, which optuna-dashboard shows. Written with Optuna itself."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from hpc_train.errors import UserError
from hpc_train.files import unforeseen
from hpc_train.folders import make_new_folder, remove_tree, rename
from hpc_train.tuning.report.course import Course, courses_of
from hpc_train.tuning.search.optuna_sampler import distributions_of, encoded, optuna_for
from hpc_train.tuning.search.state import State
from hpc_train.tuning.search.study import Study
from hpc_train.tuning.search.words import lineage

STATES: Mapping[State, str] = {
    "completed": "COMPLETE",
    "paused": "PRUNED",
    "stopped": "PRUNED",
    "failed": "FAIL",
    "running": "RUNNING",
    "waiting": "RUNNING",
}
"""By Optuna's names."""


def write_journal(study: Study, name: str, path: Path) -> None:
    """Replaces `path` by the trials of the study called `name`, for Optuna's JournalStorage(JournalFileBackend).

    Local. The file appears in one rename.

    Raises:
        UserError: Optuna is not installed, or it cannot be written.
    """
    optuna = optuna_for("--optuna")
    if path.is_dir():
        raise UserError(f"--optuna: {path} is a folder; give the name of a file")
    folder = unforeseen(path)
    try:
        make_new_folder(folder, 0o700)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about what Optuna calls experimental
                _write(optuna, study, name, folder / path.name)
            rename(folder / path.name, path)
        finally:
            remove_tree(folder)
    except OSError as error:
        raise UserError(f"--optuna: {path}: cannot be written: {error.strerror}") from None


def _write(optuna: Any, study: Study, name: str, path: Path) -> None:
    journal = optuna.storages.journal
    made = optuna.create_study(
        storage=optuna.storages.JournalStorage(journal.JournalFileBackend(str(path))),
        study_name=name,
        direction="maximize" if study.goal.mode == "max" else "minimize",
    )
    made.set_metric_names([study.goal.metric])
    distributions = distributions_of(study.job.tune.space)
    made.add_trials([_frozen(optuna, study, course, distributions) for course in courses_of(study, time.time())])


def _frozen(optuna: Any, study: Study, course: Course, distributions: Mapping[str, Any]) -> Any:
    trial = course.trial
    state = STATES[course.state]
    if state == "COMPLETE" and course.value is None:
        state = "FAIL"  # the goal was no number, for which Optuna has no other name
    made = optuna.trial.create_trial(
        state=optuna.trial.TrialState[state],
        value=course.value if state in ("COMPLETE", "PRUNED") else None,
        params=encoded(study.job.tune.space, trial.point),
        distributions={key: distributions[key] for key in trial.point},
        user_attrs={
            "trial": trial.name,
            "state": trial.state,
            "why": trial.why,
            "source": trial.source,
            "lineage": lineage(trial),
            "job_dir": str(study.folder.job_dir(trial).path),
        },
        intermediate_values={each.step: each.value for each in course.own if each.value is not None},
    )
    made.datetime_start = datetime.fromtimestamp(course.periods[0][0])
    if made.state.is_finished():
        made.datetime_complete = datetime.fromtimestamp(course.periods[-1][1])
    return made
