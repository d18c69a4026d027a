"""What a trial has measured so far, read from its job-dir."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpc_train.config.tune.section import Goal
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.telemetry.files import METRICS_FILE


@dataclass(frozen=True)
class Measurements:
    """The goal of a trial by step.

    Attributes:
        values: (step, value) of each evaluation, by step; None: it was not a finite number, or not there.
    """

    goal: Goal
    values: tuple[tuple[int, float | None], ...]

    @classmethod
    def of(cls, job_dir: JobDir, goal: Goal, after: int = 0) -> Measurements:
        """Those in a job-dir; of a fork, those `after` the step that it began from, where it was another trial."""
        found = job_dir.evaluations().get(goal.kind, {})
        steps = sorted(step for step in found if step > after or not after)
        return cls(goal, tuple((step, _finite(found[step].get(goal.metric))) for step in steps))

    def best(self, until: int | None = None) -> float | None:
        """The best value so far, or of evaluations up to the step `until`; None: there is no number."""
        best: float | None = None
        for step, value in self.values:
            if value is not None and (until is None or step <= until) and self.goal.is_better(value, best):
                best = value
        return best

    def best_step(self) -> int | None:
        """The step of the best value."""
        best = self.best()
        return next((step for step, value in self.values if best is not None and value == best), None)

    def value_at(self, step: int) -> float | None:
        """The value of a step; None: there is no number."""
        return dict(self.values).get(step)

    def at(self, rung_step: int) -> int | None:
        """The step of the evaluation by which a trial is compared at a rung: the first one there; None: none yet."""
        return next((step for step, _ in self.values if step >= rung_step), None)


class Watch:
    """Reads the measurements of a running trial again when there may be more."""

    def __init__(self, job_dir: JobDir, goal: Goal, after: int = 0) -> None:
        self._job_dir, self._goal, self._after = job_dir, goal, after
        self._seen: tuple[int, int] | None = None
        self._found = Measurements(goal, ())

    def look(self) -> Measurements:
        """Those of now."""
        try:
            status = (self._job_dir.path / METRICS_FILE).lstat()
        except OSError:
            return self._found
        seen = (status.st_size, status.st_mtime_ns)
        if seen != self._seen:
            self._seen, self._found = seen, Measurements.of(self._job_dir, self._goal, self._after)
        return self._found


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
