"""What the courses of trials come down to: progress, order, which keys matter, what early stopping saved. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from hpc_train.config.tune.parameter import Parameter, Value, key_of
from hpc_train.config.tune.section import Goal
from hpc_train.config.tune.space import Point
from hpc_train.tuning.report.course import Course

ENOUGH = 10
"""Trials, for the importance of keys."""
NEARLY_ALL = 0.75
MOST_BINS = 8
TRIALS_A_BIN = 5
Period = tuple[float, float]


@dataclass(frozen=True)
class Moment:
    """An evaluation of a trial, and how far the study had come by then.

    Attributes:
        secs, trial_secs: In which one trial at least ran; of all trials together.
        steps: Of all trials together.
        improves: Whether no value before is as good.
        own_best: Whether it is its trial's best.
    """

    course: Course
    value: float | None
    secs: float
    trial_secs: float
    steps: int
    improves: bool
    own_best: bool


def moments(courses: Sequence[Course], goal: Goal) -> list[Moment]:
    """All evaluations in the order of their times."""
    found = sorted(
        ((evaluation, course) for course in courses for evaluation in course.own),
        key=lambda one: (one[0].time, one[1].trial.number, one[0].step),
    )
    times = [evaluation.time for evaluation, _ in found]
    periods = [period for course in courses for period in course.periods]
    clock, together = secs_until(merged(periods), times), secs_until(periods, times)
    reached: dict[int, int] = {}
    steps, best, out = 0, None, []
    for (evaluation, course), secs, trial_secs in zip(found, clock, together, strict=True):
        before = reached.get(course.trial.number, course.trial.begun_at)
        reached[course.trial.number] = max(before, evaluation.step)
        steps += max(0, evaluation.step - before)
        value = evaluation.value
        improves = value is not None and goal.is_better(value, best)
        best = value if improves else best
        out.append(Moment(course, value, secs, trial_secs, steps, improves, evaluation is course.best))
    return out


def merged(periods: Sequence[Period]) -> list[Period]:
    """The times in which there is one at least."""
    found: list[Period] = []
    for begin, end in sorted(periods):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def secs_until(periods: Sequence[Period], times: Sequence[float]) -> list[float]:
    """How long all `periods` together had lasted by each of `times`."""
    if not periods:
        return [0.0] * len(times)
    zero = min(begin for begin, _ in periods)
    at = np.asarray(times, float) - zero

    def since(moments: np.ndarray) -> np.ndarray:
        moments = np.sort(moments)
        sums, count = np.concatenate([[0.0], np.cumsum(moments)]), np.searchsorted(moments, at)
        return np.asarray(count * at - sums[count])

    begins, ends = np.asarray(periods, float).T - zero
    return [max(0.0, float(secs)) for secs in since(begins) - since(ends)]


def ranked(courses: Sequence[Course], goal: Goal) -> list[Course]:
    """Those with a value, best first; of equals the first one."""
    sign = -1.0 if goal.mode == "max" else 1.0
    known = [(course.value, course) for course in courses if course.value is not None]
    return [course for _, course in sorted(known, key=lambda one: (sign * one[0], one[1].trial.number))]


def chosen(order: Sequence[Course], most: int) -> list[Course]:
    """At most so many of trials, best first: the best third of these, and of the others one in so many."""
    if len(order) <= most:
        return list(order)
    first, rest = order[: most // 3], order[most // 3 :]
    more = most - len(first)
    return [*first, *(rest[place * len(rest) // more] for place in range(more))]


@dataclass(frozen=True)
class Comparable:
    """Trials that were measured at one and the same point of training.

    Attributes:
        values: Of the goal; None: it was no number, which is worse than all.
        step: At which; None: at the end.
    """

    points: tuple[Point, ...]
    values: tuple[float | None, ...]
    step: int | None = None


def comparable(courses: Sequence[Course], rungs: Sequence[int]) -> Comparable | None:
    """The trials at the farthest point to which nearly all came, at least ENOUGH; None: there is no such point.

    Of those alone that early stopping has left, no key that it has chosen them by would look important.
    """
    came = [course for course in courses if course.whole or course.trial.judged or course.evaluations]
    least = max(ENOUGH, math.ceil(NEARLY_ALL * len(came)))
    whole = [course for course in courses if course.whole]
    if len(whole) >= least:
        return Comparable(tuple(course.trial.point for course in whole), tuple(course.value for course in whole))
    judged = [[course.trial for course in courses if rung in course.trial.judged] for rung in range(len(rungs))]
    found = max((rung for rung, there in enumerate(judged) if len(there) >= least), default=0)
    if not rungs or len(judged[found]) < ENOUGH:
        return None
    points = tuple(trial.point for trial in judged[found])
    return Comparable(points, tuple(trial.judged[found].value for trial in judged[found]), rungs[found])


def importance(space: Mapping[str, Parameter], of: Comparable, goal: Goal) -> dict[str, float]:
    """The share of the variance of the goal's ranks that each key explains by itself, most important first.

    The first order of functional ANOVA (Hutter et al., 2014), of bins in place of a forest's leaves: a key's values are
    put into bins of as many trials each, of the trials in which it matters. What bins would explain by chance is taken
    off (epsilon squared, Kelley 1935).
    """
    ranks = _ranks(of.values, goal)
    total = _squares(ranks)
    found = {}
    for key, parameter in space.items():
        there = np.array([key in point for point in of.points])
        bins = _bins(parameter, [point[key] for point in of.points if key in point])
        found[key] = _explained(ranks[there], bins) / total if total else 0.0
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def _ranks(values: Sequence[float | None], goal: Goal) -> np.ndarray:
    """From 0, the best; equals share the mean of theirs."""
    sign = -1.0 if goal.mode == "max" else 1.0
    _, place, count = np.unique(
        [math.inf if value is None else sign * value for value in values], return_inverse=True, return_counts=True
    )
    return np.asarray((np.cumsum(count) - (count + 1) / 2)[place])


def _bins(parameter: Parameter, values: Sequence[Value]) -> np.ndarray:
    """The number of each value's bin."""
    if parameter.choice is not None:
        places = {key_of(value): place for place, value in enumerate(parameter.choice)}
        return np.array([places[key_of(value)] for value in values], int)
    if not values:
        return np.empty(0, int)
    count = max(2, min(MOST_BINS, len(values) // TRIALS_A_BIN))
    inner = np.quantile(values, np.linspace(0, 1, count + 1)[1:-1], method="inverted_cdf")
    return np.searchsorted(inner, values, side="left")


def _explained(ranks: np.ndarray, bins: np.ndarray) -> float:
    """The sum of squares between bins, less what chance makes of it."""
    groups = [ranks[bins == number] for number in np.unique(bins)]
    freedom = len(ranks) - len(groups)
    if freedom <= 0:
        return 0.0
    within = sum(map(_squares, groups))
    return max(0.0, _squares(ranks) - within - (len(groups) - 1) * within / freedom)


def _squares(ranks: np.ndarray) -> float:
    return float(((ranks - ranks.mean()) ** 2).sum()) if len(ranks) else 0.0


@dataclass(frozen=True)
class RungCount:
    """What was decided at a rung.

    Attributes:
        at_once, later, not_yet: How many trials went on, and how many did not.
        best, middle: Of the values there.
    """

    step: int
    came: int
    at_once: int
    later: int
    not_yet: int
    best: float | None
    middle: float | None


def rung_counts(courses: Sequence[Course], rungs: Sequence[int], goal: Goal) -> list[RungCount]:
    """Of each rung that a trial has come to."""
    found = []
    for rung, step in enumerate(rungs):
        there = [(course.trial.judged[rung], course) for course in courses if rung in course.trial.judged]
        if not there:
            continue
        at_once = sum(judged.verdict == "promoted" for judged, _ in there)
        later = sum(judged.verdict != "promoted" and _went_on(course, rung) for judged, course in there)
        values = [judged.value for judged, _ in there if judged.value is not None]
        best = (max if goal.mode == "max" else min)(values, default=None)
        middle = median(values) if values else None
        found.append(RungCount(step, len(there), at_once, later, len(there) - at_once - later, best, middle))
    return found


def _went_on(course: Course, rung: int) -> bool:
    trial = course.trial
    goes_on = trial.verdict is None and course.state in ("running", "waiting")
    return max(trial.judged) > rung or trial.to_the_end or goes_on or course.whole


@dataclass(frozen=True)
class Saving:
    """Steps that were trained, those of as many whole trials, and how many trials ended before their time."""

    trained: int
    whole: int
    ended_early: int
    not_trained: int


def saving(courses: Sequence[Course], max_steps: int) -> Saving:
    """What early stopping has saved."""
    early = [course for course in courses if course.state in ("paused", "stopped")]
    return Saving(
        sum(course.trained for course in courses),
        len(courses) * max_steps,
        len(early),
        sum(max(0, max_steps - course.step) for course in early),
    )


def place_of(parameter: Parameter, value: Value) -> float:
    """Where a value lies between the ends of its axis, from 0 to 1: choices at even distances."""
    if parameter.choice is not None:
        last = len(parameter.choice) - 1
        return [key_of(one) for one in parameter.choice].index(key_of(value)) / last if last else 0.5
    low, high = parameter.bounds or (0, 1)
    if parameter.is_logarithmic:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return float((value - low) / (high - low))
