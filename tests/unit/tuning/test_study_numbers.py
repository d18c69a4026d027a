"""What the page of a study comes down to, by property."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.config.tune.parameter import Parameter
from hpc_train.config.tune.section import Goal
from hpc_train.tuning.report.course import Course, Evaluation
from hpc_train.tuning.report.numbers import (
    Comparable,
    chosen,
    comparable,
    importance,
    merged,
    moments,
    place_of,
    ranked,
    rung_counts,
    saving,
    secs_until,
)
from hpc_train.tuning.search.decisions import Judged
from hpc_train.tuning.search.state import StudyState, Trial

MAX, MIN = Goal(metric="accuracy", mode="max"), Goal(metric="loss", mode="min")
DRIVER = "0" * 16
SPACE = {
    "rate": Parameter(log=(1e-4, 1.0)),
    "kind": Parameter(choice=("a", "b", [1, 2])),
    "momentum": Parameter(uniform=(0.0, 1.0), when={"kind": "a"}),
}

seconds = st.integers(0, 1000).map(float)
periods = st.lists(st.tuples(seconds, seconds).map(lambda pair: (min(pair), max(pair))), max_size=12)
values = st.one_of(st.none(), st.floats(-1e6, 1e6))


def course(number, found=(), state="completed", goal=MAX, point=None, begin=0.0, judged=None):
    """A trial with these values at steps 10, 20, ..., ten seconds each."""
    trial = Trial(number, point or {}, "random", DRIVER, state, judged=judged or {})
    evaluations = tuple(Evaluation(10 * k, begin + 10 * k, value) for k, value in enumerate(found, start=1))
    best = None
    for each in evaluations:
        if each.value is not None and goal.is_better(each.value, best.value if best else None):
            best = each
    return Course(trial, state, evaluations, best, 10 * len(found), ((begin, begin + 10.0 * len(found)),))


def judged(number, rung, value, verdict):
    return Judged(time=0.0, trial=number, rung=rung, step=10 * (rung + 1), value=value, verdict=verdict, why="")


courses = st.lists(st.tuples(st.lists(values, max_size=6), seconds), max_size=15).map(
    lambda found: [course(number, *each[:1], begin=each[1]) for number, each in enumerate(found)]
)


@given(periods, st.lists(seconds, max_size=8))
def test_seconds_are_those_that_one_would_count(periods, times):
    counted = [sum(max(0.0, min(end, at) - begin) for begin, end in periods if at > begin) for at in times]
    assert secs_until(periods, times) == pytest.approx(counted, abs=1e-6)


@given(periods)
def test_merged_periods_do_not_touch_and_last_as_long_as_the_study_says(periods):
    found = merged(periods)
    assert all(before[1] < after[0] for before, after in pairwise(found))
    state = StudyState(MAX, None, None)
    state.trials = [Trial(n, {}, "", DRIVER, periods=[each]) for n, each in enumerate(periods)]
    assert sum(end - begin for begin, end in found) == pytest.approx(state.secs(0.0))


@given(courses)
def test_the_study_only_comes_further(courses):
    found = moments(courses, MAX)
    assert len(found) == sum(len(each.evaluations) for each in courses)
    for name in ("secs", "trial_secs", "steps"):
        amounts = [getattr(moment, name) for moment in found]
        assert amounts == sorted(amounts)
    assert all(moment.secs <= moment.trial_secs + 1e-6 for moment in found)
    assert (found[-1].steps if found else 0) == sum(each.step for each in courses)
    line = [moment.value for moment in found if moment.improves]
    assert line == sorted(set(line))
    known = [each.value for each in courses if each.value is not None]
    assert line[-1:] == ([max(known)] if known else [])


@given(courses, st.integers(3, 12))
def test_those_that_are_drawn_are_the_best_and_some_of_the_others(courses, most):
    order = ranked(courses, MAX)
    known = [each.value for each in order]
    assert known == sorted(known, reverse=True) and len(order) == sum(c.value is not None for c in courses)
    drawn = chosen(order, most)
    assert len(drawn) == min(most, len(order)) and drawn[: most // 3] == order[: most // 3]
    places = [order.index(each) for each in drawn]
    assert places == sorted(set(places))


def points(count, seed=1):
    noise = random.Random(seed)
    found = []
    for _ in range(count):
        point = {"rate": SPACE["rate"].at(noise.random()), "kind": SPACE["kind"].at(noise.random())}
        if point["kind"] == "a":
            point["momentum"] = noise.random()
        found.append(point)
    return tuple(found)


@given(st.lists(values, min_size=2, max_size=60), st.sampled_from([MAX, MIN]))
def test_importance_is_a_share_and_a_matter_of_ranks_alone(values, goal):
    tried = points(len(values))
    found = importance(SPACE, Comparable(tried, tuple(values)), goal)
    assert set(found) == set(SPACE) and all(0 <= share <= 1 + 1e-9 for share in found.values())
    assert list(found.values()) == sorted(found.values(), reverse=True)
    stretched = tuple(None if value is None else 3 * value + 7 for value in values)
    if len(set(stretched)) == len(set(values)):
        assert importance(SPACE, Comparable(tried, stretched), goal) == pytest.approx(found)
    backwards = importance(SPACE, Comparable(tried[::-1], tuple(values[::-1])), goal)
    assert backwards == pytest.approx(found)


def test_the_key_that_decides_is_the_important_one():
    tried = points(80)
    by_rate = importance(SPACE, Comparable(tried, tuple(math.log(p["rate"]) for p in tried)), MAX)
    assert next(iter(by_rate)) == "rate" and by_rate["rate"] > 0.9 and by_rate["kind"] < 0.1
    by_kind = importance(SPACE, Comparable(tried, tuple(None if p["kind"] == "b" else 0.5 for p in tried)), MAX)
    assert by_kind["kind"] == pytest.approx(1) and by_kind["rate"] < 0.1
    assert by_kind["momentum"] == 0  # which is there where kind is a, and has no say in it
    assert set(importance(SPACE, Comparable(tried, (0.5,) * 80), MAX).values()) == {0.0}


def test_trials_are_compared_where_nearly_all_have_come():
    whole = [course(n, [0.1, 0.2]) for n in range(12)]
    assert comparable(whole, ()) == Comparable(({},) * 12, (0.2,) * 12)
    assert comparable(whole[:9], ()) is None
    paused = [
        course(n, [0.1], "paused", judged={0: judged(n, 0, 0.1, "paused")}) for n in range(12, 40)
    ]  # of 40, a dozen was chosen to go on
    both = [replace(c, trial=replace(c.trial, judged={0: judged(c.trial.number, 0, 0.1, "promoted")})) for c in whole]
    found = comparable([*both, *paused], (10,))
    assert found is not None and found.step == 10 and len(found.values) == 40
    assert comparable([course(0, [None], goal=MAX) for _ in range(10)], ()) == Comparable(({},) * 10, (None,) * 10)


def test_what_was_decided_at_rungs_and_saved():
    ends = {0: judged(1, 0, 0.2, "paused")}
    later = {0: judged(2, 0, 0.3, "paused"), 1: judged(2, 1, 0.4, "promoted")}
    found = [
        course(0, [0.5] * 4, judged={0: judged(0, 0, 0.5, "promoted"), 1: judged(0, 1, 0.6, "promoted")}),
        course(1, [0.2], "paused", judged=ends),
        course(2, [0.3] * 4, judged=later),
        course(3, [None], "stopped", judged={0: judged(3, 0, None, "stopped")}),
    ]
    first, second = rung_counts(found, (10, 20, 30), MAX)
    assert (first.step, first.came, first.at_once, first.later, first.not_yet) == (10, 4, 1, 1, 2)
    assert (first.best, first.middle) == (0.5, 0.3)
    assert (second.came, second.at_once, second.later, second.not_yet) == (2, 2, 0, 0)
    saved = saving(found, 40)
    assert (saved.trained, saved.whole, saved.ended_early, saved.not_trained) == (100, 160, 2, 60)
    assert saved.trained + saved.not_trained == saved.whole


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True), st.sampled_from(["rate", "momentum"]))
def test_places_on_an_axis_are_in_order(one, other, key):
    parameter = SPACE[key]
    low, high = sorted(place_of(parameter, parameter.at(share)) for share in (one, other))
    assert -1e-9 <= low <= high <= 1 + 1e-9
    assert abs(place_of(parameter, parameter.at(one)) - one) < 1e-4


def test_choices_are_at_even_distances():
    assert [place_of(SPACE["kind"], value) for value in ("a", "b", [1, 2])] == [0, 0.5, 1]
    assert place_of(Parameter(choice=(True,)), True) == 0.5
