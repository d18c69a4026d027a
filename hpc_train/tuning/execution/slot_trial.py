"""SlotTrial: a trial in a slot, and what becomes of it once its ranks have left."""

from __future__ import annotations

from dataclasses import dataclass

from hpc_train.jobdir.job_dir import JobDir
from hpc_train.outcome import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_NOT_FINITE,
    EXIT_NOT_SAVED,
    STOP_CODES,
    Again,
    outcome_of,
    signal_name,
)
from hpc_train.resilience.job_lock import holder_of
from hpc_train.tuning.execution.slots import Slot
from hpc_train.tuning.execution.trial_run import TrialRun
from hpc_train.tuning.search.decisions import LeftState
from hpc_train.tuning.search.measurements import Measurements, Watch
from hpc_train.tuning.search.state import Trial
from hpc_train.tuning.search.study import Leaving, Study
from hpc_train.tuning.search.words import OF_STUDY

TRIES_WITHOUT_PROGRESS = 2
"""Runs of a trial in a row that end by a crash without a newer checkpoint, after which it has failed."""


@dataclass
class SlotTrial:
    """A trial in a slot.

    Attributes:
        verdict: The state that it goes to once it has left, as decided; None: none is.
    """

    trial: Trial
    slot: Slot
    run: TrialRun
    job_dir: JobDir
    watch: Watch
    verdict: LeftState | None = None

    def leaving(self, study: Study, code: int, stopping: str) -> Leaving:
        """How the trial is whose ranks have left with `code`.

        Args:
            stopping: Why its driver stops; empty where it does not.
        """
        trial, goal, forks = self.trial, study.goal, study.job.tune.population is not None
        step, value = step_of(trial, self.job_dir), Measurements.of(self.job_dir, goal, trial.begun_at).best()
        if code == 0 and (not forks or self.verdict is None):
            return Leaving("completed", step, value, "" if value is not None else f"{goal.metric} was no finite number")
        if code in (0, *STOP_CODES.values()):  # of a population, also one that came to the end before it had stopped
            if self.verdict is not None:
                return Leaving(self.verdict, step, value, trial.judged[max(trial.judged)].why)
            return Leaving("waiting", step, value, stopping or "it was stopped")
        if stopping and signal_name(code) is not None:
            return Leaving("waiting", step, value, "ended at once")  # as by a queue, which ends ranks and driver
        why = self.run.failure(code)
        if code == EXIT_BAD_INPUT and holder_of(self.job_dir.path) is not None:
            return Leaving("waiting", step, value, why)  # another one runs it: ranks of a node that was taken for lost
        if code == EXIT_NOT_SAVED:  # for which no trial is to blame
            return Leaving("waiting", step, value, why)
        others_train = forks or study.state.best is not None
        if code == EXIT_NOT_FINITE and study.nouns is OF_STUDY and others_train:
            return Leaving("stopped", step, value, why)  # its point is a bad one
        if code != EXIT_FAILED and outcome_of(code).again != Again.FINAL:  # it was killed, lost or hung
            crashes = trial.crashes + 1 if step <= trial.step else 0
            if crashes < TRIES_WITHOUT_PROGRESS:
                return Leaving("waiting", step, value, why, crashed=True)
        return Leaving("failed", step, value, why, crashed=True)


def step_of(trial: Trial, job_dir: JobDir) -> int:
    """Of the newest checkpoint; where there is none, that from which the trial begins."""
    return max(job_dir.checkpoints(), default=trial.begun_at)
