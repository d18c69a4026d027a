"""What each trial of a study has come to, read from its job-dir."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpc_train.jobdir.history import with_runs
from hpc_train.tuning.search.state import State, Trial
from hpc_train.tuning.search.study import Study, living

StudyWord = Literal["running", "stopped", "succeeded", "failed"]


@dataclass(frozen=True)
class Evaluation:
    """A measurement of the goal; `value` is None where it was no finite number. `time`: seconds since 1970."""

    step: int
    time: float
    value: float | None


@dataclass(frozen=True)
class Course:
    """A trial, and how it went.

    Attributes:
        evaluations: That hold, by step; of a fork, first that of the checkpoint which it began with.
        best: The first of its own with the best value; None: there is no number.
        step: The last one that is known to be done.
        periods: When it ran, in seconds since 1970.
        state: The trial's; "waiting", too, where its driver has died.
    """

    trial: Trial
    state: State
    evaluations: tuple[Evaluation, ...] = ()
    best: Evaluation | None = None
    step: int = 0
    periods: tuple[tuple[float, float], ...] = ()

    @property
    def own(self) -> tuple[Evaluation, ...]:
        """The evaluations of what it has trained itself."""
        begun_at = self.trial.begun_at
        return tuple(evaluation for evaluation in self.evaluations if evaluation.step > begun_at or not begun_at)

    @property
    def trained(self) -> int:
        """The steps that it has trained itself."""
        return max(0, self.step - self.trial.begun_at)

    @property
    def value(self) -> float | None:
        """The best value."""
        return self.best.value if self.best is not None else None

    @property
    def whole(self) -> bool:
        """Whether it came to the end."""
        return self.state == "completed"


def courses_of(study: Study, now: float) -> list[Course]:
    """The trials of a study by number. Local; reads their metrics."""
    alive = living(study)
    return [_course(study, trial, now if trial.driver in alive else None) for trial in study.state.trials]


def _course(study: Study, trial: Trial, now: float | None) -> Course:
    goal = study.goal
    kinds = ("start", "checkpoint", goal.kind)
    records = [r for r in with_runs(study.folder.job_dir(trial).records(kinds.__contains__))[0] if not r.superseded]
    by_step = {r.step: Evaluation(r.step, r.time, r.number(goal.metric)) for r in records if r.kind == goal.kind}
    best: Evaluation | None = None
    for step in sorted(step for step in by_step if step > trial.begun_at or not trial.begun_at):
        value = by_step[step].value
        if value is not None and goal.is_better(value, best.value if best is not None else None):
            best = by_step[step]
    last = now if now is not None else max((record.time for record in records), default=0.0)
    return Course(
        trial,
        "waiting" if trial.state == "running" and now is None else trial.state,
        tuple(by_step[step] for step in sorted(by_step)),
        best,
        max([trial.step, *(record.step for record in records)]),
        tuple((begin, max(begin, last if end is None else end)) for begin, end in trial.periods),
    )


def state_of(study: Study, most: int | None) -> StudyWord:
    """A study's state as that of a job: "stopped" is one that goes on when somebody says so.

    Args:
        most: How many trials it may have.
    """
    state, tune = study.state, study.job.tune
    if living(study):
        return "running"
    if len(list(state.of("failed"))) > tune.max_failed_trials:
        return "failed"
    if tune.population is not None:
        left = not study.is_done()
    else:
        left = most is None or len(state.trials) < most or any(state.of("running", "waiting"))
    if state.halted is not None or (left and study.hours_left() != 0):
        return "stopped"
    return "succeeded" if any(state.of("completed")) else "failed"
