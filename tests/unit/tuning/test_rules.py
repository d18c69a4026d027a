"""How trials are compared: successive halving and the median, on values alone."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import median
from types import NoneType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.config.tune.section import Asha, Goal, Median, TuneSection
from hpc_train.tuning.search.population_rule import PopulationRule
from hpc_train.tuning.search.rule import Rule
from hpc_train.tuning.search.rules import HalvingRule, MedianRule, rule_of
from hpc_train.tuning.search.state import StudyState
from tests.studies import judged, left, state_of, suggested, taken

MODES = st.sampled_from(["min", "max"])
VALUES = st.none() | st.floats(-9, 9)
RUNGS = (1, 3, 9)


def goal(mode: str) -> Goal:
    return Goal(metric="accuracy", mode=mode)


def ranked(values: dict[int, float | None], mode: str) -> list[int]:
    """Those with a number, best first; of equal ones, the first."""
    sign = -1 if mode == "max" else 1
    return sorted((n for n, value in values.items() if value is not None), key=lambda n: (sign * values[n], n))


def values_at(state: StudyState, rung: int) -> dict[int, float | None]:
    return {trial.number: trial.judged[rung].value for trial in state.trials if rung in trial.judged}


class Halving:
    """Trials of one study under the rule, `running` and otherwise, and which have gone on from which rung."""

    def __init__(self, factor: int, mode: str, values: Sequence[Sequence[float | None]]) -> None:
        self.factor, self.mode, self.values = factor, mode, values
        self.rule: Rule = HalvingRule(Asha(factor=factor), RUNGS, goal(mode))
        self.state, self.promoted = state_of(mode=mode), [set[int]() for _ in RUNGS]

    def among_best(self, number: int, rung: int) -> bool:
        values = values_at(self.state, rung)
        return number in ranked(values, self.mode)[: len(values) // self.factor]

    def begin(self) -> None:
        self.state.hear(suggested(len(self.state.trials)))

    def come(self, number: int) -> None:
        """A running trial comes to its next rung, or to the end."""
        trial = self.state.trials[number]
        rung = max(trial.judged, default=-1) + 1
        if rung == len(RUNGS) or trial.to_the_end:
            self.state.hear(left(number, "completed", step=27, value=0.0))
            return
        value = self.values[number][rung]
        verdict, why, _ = self.rule.judge(self.state, trial, rung, value)
        self.state.hear(judged(number, rung, value, verdict))
        assert f"step {RUNGS[rung]}" in why
        assert (verdict == "promoted") == self.among_best(number, rung)
        if verdict == "promoted":
            self.promoted[rung].add(number)
        else:
            assert verdict == "paused"
            self.state.hear(left(number, "paused", step=RUNGS[rung], value=value))

    def promote(self) -> bool:
        """A paused trial goes on, where one may."""
        if (found := self.rule.promotable(self.state)) is None:
            return False
        trial, _ = found
        rung = max(trial.judged)
        assert trial.state == "paused"
        assert trial.number not in self.promoted[rung], "once from each rung"
        assert self.among_best(trial.number, rung)
        self.promoted[rung].add(trial.number)
        self.state.hear(taken(trial.number))
        return True

    def last(self) -> bool:
        if (found := self.rule.last_of_all(self.state)) is None:
            return False
        self.state.hear(taken(found[0].number, to_the_end=True))
        return True

    def running(self) -> list[int]:
        return [trial.number for trial in self.state.of("running")]


@given(
    st.integers(2, 4),
    MODES,
    st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
)
def test_halving_in_any_order(
    factor: int, mode: str, values: list[tuple[float | None, ...]], chance: random.Random
) -> None:
    """Whatever the order in which trials come: nobody goes on who is not among the best of those that have come, each
    that is goes on in the end, and one at least comes to the end."""
    halving = Halving(factor, mode, values)
    while True:
        begins = len(halving.state.trials) < len(values)
        if (running := halving.running()) and (not begins or chance.random() < 0.6):
            halving.come(chance.choice(running))
        elif not halving.promote():
            if not begins:
                break
            halving.begin()
    for rung, promoted in enumerate(halving.promoted):
        come = values_at(halving.state, rung)
        best = ranked(come, mode)[: len(come) // factor]
        assert set(best) <= promoted <= set(come)
        if rung:
            assert set(come) <= halving.promoted[rung - 1]
    completed = list(halving.state.of("completed"))
    assert {trial.number for trial in completed} == halving.promoted[-1]

    assert halving.last() == (not completed)
    for number in halving.running():
        halving.come(number)
    assert len(list(halving.state.of("completed"))) == max(1, len(completed))
    assert not halving.last(), "one is enough"
    assert not halving.promote()


@given(st.integers(2, 4), MODES, st.lists(st.floats(-9, 9), min_size=1, max_size=30))
def test_trials_that_come_worse_and_worse_go_on_as_in_synchronous_halving(
    factor: int, mode: str, values: list[float]
) -> None:
    """So no more than n // factor of n do."""
    ordered = sorted(values, reverse=mode == "max")
    halving = Halving(factor, mode, [(value,) * 3 for value in ordered])
    for number in range(len(ordered)):
        halving.begin()
        halving.come(number)
        while halving.promote():
            assert len(halving.promoted[0]) <= (number + 1) // factor
    assert halving.promoted[0] == set(range(len(ordered) // factor))


def test_a_paused_trial_goes_on_once_enough_others_were_worse() -> None:
    halving = Halving(3, "max", [(0.9, 0.9, 0.9), (0.5,) * 3, (0.4,) * 3, (0.3,) * 3])
    for number in range(3):
        halving.begin()
        halving.come(number)
        assert (halving.rule.promotable(halving.state) is not None) == (number == 2)
    found = halving.rule.promotable(halving.state)
    assert found is not None
    assert (found[0].number, found[1]) == (0, "among the best 1 of 3 at step 1 by now")


def test_the_one_that_has_come_farthest_goes_on_first() -> None:
    state = state_of(*map(suggested, range(6)))
    for number, value in enumerate((0.1, 0.2, 0.3, 0.4, 0.5, 0.6)):
        state.hear(judged(number, 0, value, "paused"))
        if number in (2, 3):
            state.hear(judged(number, 1, value, "paused"))
        state.hear(left(number, "paused"))
    rule = HalvingRule(Asha(factor=2), RUNGS, goal("max"))
    assert [trial.number for trial, _ in [rule.promotable(state)] if trial] == [3]
    state.hear(taken(3))
    assert [trial.number for trial, _ in [rule.promotable(state)] if trial] == [4], "2 is past that rung"


def test_of_no_numbers_none_goes_on_but_the_last_of_all() -> None:
    halving = Halving(2, "min", [(None,) * 3] * 4)
    for number in range(4):
        halving.begin()
        halving.come(number)
    assert not halving.promote()
    assert halving.last()
    assert halving.running() == [0]


@given(MODES, st.integers(1, 4), st.lists(VALUES, max_size=8), VALUES)
def test_the_median_rule_is_that_of_the_median(
    mode: str, least: int, others: list[float | None], value: float | None
) -> None:
    rule = MedianRule(Median(least_trials=least), RUNGS, goal(mode))
    state = state_of(*map(suggested, range(len(others) + 1)), mode=mode)
    for number, other in enumerate(others):
        state.hear(judged(number, 1, other))
        state.hear(judged(number, 0, 0.0))
    verdict, why, _ = rule.judge(state, state.trials[-1], 1, value)
    worst = -math.inf if mode == "max" else math.inf
    numbers = [worst if other is None else other for other in others]
    mine = worst if value is None else value
    if len(others) < least:
        assert verdict == "promoted"
    elif mode == "max":
        assert verdict == ("stopped" if mine < median(numbers) else "promoted")
    else:
        assert verdict == ("stopped" if mine > median(numbers) else "promoted")
    assert "step 3" in why
    assert rule.promotable(state) is None
    assert rule.last_of_all(state) is None


@pytest.mark.parametrize(
    ("asked", "made"),
    [
        ({"early_stopping": "asha"}, HalvingRule),
        ({"early_stopping": "median"}, MedianRule),
        ({"population": {}}, PopulationRule),
        ({}, NoneType),
    ],
)
def test_the_rule_is_as_asked_for(asked: dict[str, Any], made: type) -> None:
    tune = TuneSection(goal=goal("max"), space={"params.rate": {"log": [0.1, 1]}}, max_trials=9, **asked)
    found = rule_of(tune, list(RUNGS), goal("max"))
    assert isinstance(found, made)
    assert found is None or found.rungs == RUNGS


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_trial_is_not_compared_with_itself(mode: str) -> None:
    rule = MedianRule(Median(least_trials=1), RUNGS, goal(mode))
    state = state_of(suggested(0), judged(0, 0, 0.5), mode=mode)
    assert rule.judge(state, state.trials[0], 0, None)[0] == "promoted"
