"""Trains what is missing of an ensemble's members, as the trials of its study."""

from __future__ import annotations

from hpc_train.ensembles.begin import Ensemble
from hpc_train.errors import UserError
from hpc_train.outcome import EXIT_FAILED
from hpc_train.tuning.drive import DriveRequest, drive
from hpc_train.tuning.execution.driver import Listeners
from hpc_train.tuning.execution.first_look import GoalError


def train_members(ensemble: Ensemble, request: DriveRequest, listeners: Listeners) -> int:
    """Trains members until there are as many as there are to be, or a signal comes; the exit code. Starts MPI ranks.

    A member that has failed is replaced by one of other seeds, as far as max_failed_trials allows.

    Raises:
        UserError: The members cannot be trained here.
    """
    study = ensemble.study
    while missing := ensemble.missing():
        try:
            code = drive(study, ensemble.settings, request, listeners)
        except GoalError as error:
            words = str(error).removeprefix("--set tune: ").replace("tune.goal.metric", "run.best_metric")
            raise UserError(words) from None
        failed = len(list(study.state.of("failed")))
        if code not in (0, EXIT_FAILED) or failed > study.job.tune.max_failed_trials:
            return code
        if ensemble.missing() == missing and not failed:
            return EXIT_FAILED  # none was trained, and none is there to be replaced
        study.allow_trials(ensemble.section.runs + failed)
    return 0
