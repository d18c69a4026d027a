"""What forks begin with: the checkpoints of their parents, put in place for them, and kept for as long as it takes."""

from __future__ import annotations

from collections.abc import Set

from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention
from hpc_train.config.run_config import RunConfig
from hpc_train.folders import make_folder
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.tuning.search.folder import StudyFolder
from hpc_train.tuning.search.population_rule import PopulationRule
from hpc_train.tuning.search.state import Trial
from hpc_train.tuning.search.study import Study
from hpc_train.tuning.search.words import lineage


class ParentGoneError(Exception):
    """The checkpoint that a fork is to begin with is not there; the message says which."""


def put_in_place(folder: StudyFolder, trial: Trial) -> None:
    """Gives a fork that has no checkpoint yet its parent's. Without effect for all other trials.

    Raises:
        ParentGoneError: The parent's checkpoint is not there.
        OSError: The fork's cannot be made.
    """
    job_dir = folder.job_dir(trial)
    if trial.lineage is None or job_dir.checkpoints():
        return
    parent = JobDir(folder.trials / f"{trial.lineage.parent:04d}")
    make_folder(job_dir.path, 0o700)
    try:
        _manager(job_dir).adopt(_manager(parent), trial.lineage.step)
    except FileNotFoundError as error:
        raise ParentGoneError(f"it is to go on {lineage(trial)}, and there is no {error.filename or error}") from None


class CheckpointKeeper:
    """Removes those checkpoints of a population's trials that no fork can begin with any more.

    Which stay besides is what `run` of the job file says; trials themselves remove none.
    """

    def __init__(self, study: Study, rule: PopulationRule) -> None:
        self._study, self._rule = study, rule
        self._done: set[int] = set()
        run: RunConfig = study.job.job.run_config(study.folder.trials)
        self._retention = Retention(run.keep_checkpoint_max, run.keep_checkpoint_every_n_hours)

    def thin_out(self) -> None:
        """To be called when a trial has been compared, or has left."""
        needed = self._rule.needed(self._study.state)
        for trial in self._study.state.trials:
            if trial.number not in self._done:
                self._thin_out(trial, needed.get(trial.number, set()))

    def _thin_out(self, trial: Trial, needed: Set[int]) -> None:
        is_over = trial.state in ("stopped", "completed", "failed")
        manager = _manager(self._study.folder.job_dir(trial), self._retention)
        manager.wanted = lambda: [
            step for step in manager.steps() if step in needed or (step > trial.position and not is_over)
        ]
        manager.thin_out()
        if is_over and not needed:
            self._done.add(trial.number)


def _manager(job_dir: JobDir, retention: Retention | None = None) -> CheckpointManager:
    return CheckpointManager(job_dir.checkpoints_path, retention or Retention())
