"""Rule: what compares the trials of a study at a rung. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from hpc_train.config.tune.section import Goal
from hpc_train.tuning.search.decisions import Verdict
from hpc_train.tuning.search.measurements import Measurements
from hpc_train.tuning.search.state import StudyState, Trial


class Finding(NamedTuple):
    """What is decided, and why in words; `parent`: the number of the trial of which a fork takes this one's place."""

    verdict: Verdict
    why: str
    parent: int | None = None


class Rule(ABC):
    """One that compares trials at `rungs`, which are global steps, lowest first."""

    def __init__(self, rungs: Sequence[int], goal: Goal) -> None:
        self.rungs, self._goal = tuple(rungs), goal

    @abstractmethod
    def judge(self, state: StudyState, trial: Trial, rung: int, value: float | None) -> Finding:
        """What becomes of a trial that has come to `rung` (counted from 0) with `value`, as `value_of` gives it.

        None is worse than all numbers: the goal was none.
        """

    def value_of(self, found: Measurements, step: int) -> float | None:
        """By what a trial is compared at `step`: its best value so far."""
        return found.best(step)

    def promotable(self, state: StudyState) -> tuple[Trial, str] | None:
        """A paused trial that may go on now, and why; the one that has come farthest first."""
        return None

    def overtaken(self, state: StudyState) -> tuple[Trial, int, Finding] | None:
        """One that nobody runs and that turns out to be worse than others; at which rung, and what becomes of it."""
        return None

    def last_of_all(self, state: StudyState) -> tuple[Trial, str] | None:
        """A paused trial that goes on because nothing else is left to be done, and why."""
        return None

    def _values(self, state: StudyState, rung: int) -> dict[int, float | None]:
        """Of the trials that have come to a rung, by number."""
        return {trial.number: trial.judged[rung].value for trial in state.trials if rung in trial.judged}

    def _order(self, value: float | None) -> float:
        """Smaller is better."""
        if value is None:
            return float("inf")
        return -value if self._goal.mode == "max" else value
