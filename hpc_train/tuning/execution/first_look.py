"""What is found out before the first trial of a study, by building its model: what trials alone would show too late."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from hpc_train.config.tune.parameter import key_of
from hpc_train.config.tune.trial_settings import point_settings
from hpc_train.errors import UserError, did_you_mean
from hpc_train.folders import remove_tree
from hpc_train.outcome import EXIT_LOST_NODE, signal_name
from hpc_train.tuning.execution.assignments import ModelFacts
from hpc_train.tuning.execution.kept_ranks import KeptRanks
from hpc_train.tuning.execution.trial_run import TrialCommand
from hpc_train.tuning.search.folder import StudySettings
from hpc_train.tuning.search.study import Study

POLL_SECS = 0.05
OF_THE_VARIABLES = ("params", "model", "data.train.features", "run.mixed_precision")
"""Keys of a job file that can change which variables a model has."""


class GoalError(UserError):
    """The model cannot be built, or its evaluation does not report what the study looks for, or cannot be forked."""


@dataclass(frozen=True)
class FirstLook:
    """Builds models of a study's job on kept ranks, and trains none.

    Attributes:
        command: What trains the job in a folder of no trial, with these settings.
        stopped: Whether somebody has asked the driver to stop.
    """

    study: Study
    settings: StudySettings
    ranks: KeptRanks
    command: Callable[[Path, list[str]], TrialCommand]
    stopped: Callable[[], bool]

    def check(self, where: Path) -> None:
        """Looks whether the evaluation reports the goal, and whether the trials of a population can be forked.

        Args:
            where: A folder for what is printed meanwhile; it goes again.

        Raises:
            GoalError: It does not, they cannot, or the job cannot be started.
        """
        with ExitStack() as stack:
            stack.callback(remove_tree, where)
            facts = self._facts(where, [], "the job cannot be started")
            if facts is None:
                return
            self._check_goal(facts)
            if self.study.job.tune.population is not None:
                self._check_variables(where)

    def _facts(self, where: Path, more: list[str], otherwise: str) -> ModelFacts | None:
        """What the job with `more` settings is like; None: nothing was found out, which says nothing of the job."""
        run = self.ranks.facts(self.command(where, [*self.settings.settings, "tune=null", *more]))
        while (code := run.code()) is None:
            if self.stopped():
                run.end_at_once()
            time.sleep(POLL_SECS)
        if self.stopped() or signal_name(code) is not None or code == EXIT_LOST_NODE or run.never_began():
            return None
        if code != 0:
            raise GoalError(f"{self.settings.job_file}: {otherwise}: {run.failure(code)}")
        return run.facts()

    def _check_goal(self, facts: ModelFacts) -> None:
        goal, names = self.study.goal, facts.names
        reported = names.get(goal.kind, names[next(iter(names))])
        if goal.metric not in reported:
            raise GoalError(
                f"{self._where('goal', 'metric')}: tune.goal.metric: no evaluation reports {goal.metric!r}; "
                f"{did_you_mean(goal.metric, reported)}allowed: {', '.join(reported)}"
            )

    def _check_variables(self, where: Path) -> None:
        """A fork has the variables of its parent, whatever the values of the two are."""
        tune = self.study.job.tune
        seen: dict[str, tuple[object, ModelFacts]] = {}
        for key, point in tune.points.examples():
            if not f"{key}.".startswith(tuple(f"{name}." for name in OF_THE_VARIABLES)):
                continue
            told = f"tune.space: {key}: with {key_of(point[key])}"
            facts = self._facts(where, point_settings(point), f"{told} the job cannot be started")
            if facts is None:
                return
            value, other = seen.setdefault(key, (point[key], facts))
            differing = sorted(set(facts.variables) ^ set(other.variables))
            if differing:
                raise GoalError(
                    f"{self._where('space', key)}: {told} the model has other variables than with {key_of(value)} "
                    f"({differing[0]}), so a fork could not go on from a trial with another value; set it in the job "
                    "file, or take `early_stopping` in place of `population`"
                )

    def _where(self, *keys: str) -> str:
        """A place in the job file, as the user knows it."""
        document = self.study.job.document
        return document.where(("tune", *keys)).replace(str(document.path), self.settings.job_file)
