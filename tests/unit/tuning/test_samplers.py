"""Which point a new trial tries."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from hpc_train import UserError
from hpc_train.config.tune.parameter import key_of
from hpc_train.config.tune.section import TuneSection
from hpc_train.config.tune.space import Point
from hpc_train.tuning.search.samplers import sampler_of
from hpc_train.tuning.search.state import StudyState
from tests.studies import DRIVER, judged, left, quality, suggested

RATE, WIDTH, KIND, DEPTH = "params.learning_rate", "params.width", "params.kind", "params.depth"
RANGES = {RATE: {"log": [1e-4, 1]}, WIDTH: {"int": [1, 64]}}
ALL = {
    **RANGES,
    KIND: {"choice": ["a", None, 1, [1, 2]]},
    DEPTH: {"int": [1, 4], "scale": "log", "when": {KIND: ["a", 1]}},
    "params.dropout": {"uniform": [0, 0.5], "when": {DEPTH: [2, 3]}},
}


def settings(**values: Any) -> TuneSection:
    given = {"goal": {"metric": "accuracy", "mode": "max"}, "space": ALL, "max_trials": 100} | values
    return TypeAdapter(TuneSection).validate_python(given)


def points(tune: TuneSection, count: int, until: StudyState | None = None) -> list[Point]:
    """The points of so many trials, one after the other, each of which comes to what its point is worth."""
    state, sampler = until or StudyState(tune.goal, None, None), sampler_of(tune)
    for number in range(len(state.trials), count):
        found = sampler.suggest(state)
        if found is None:
            break
        state.hear(suggested(number, point=dict(found[0]), source=found[1]))
        if number % 4 == 3:
            state.hear(judged(number, 0, 0.1, "paused"))
            state.hear(left(number, "paused", value=0.1))
        elif number % 7 == 6:
            state.hear(left(number, "failed"))
        else:
            state.hear(left(number, "completed", value=quality(found[0])))
    return [trial.point for trial in state.trials]


@given(st.integers(0, 2**63 - 1), st.integers(0, 50))
def test_a_random_point_is_one_of_seed_and_number_alone(seed: int, number: int) -> None:
    tune = settings(seed=seed)
    state = StudyState(tune.goal, None, None)
    for trial in range(number):
        state.hear(suggested(trial, point={}))
    assert sampler_of(tune).suggest(state) == (tune.points.drawn(seed, number), "random", None)


def test_a_grid_is_tried_in_order_and_ends() -> None:
    tune = settings(space={KIND: {"choice": ["a", "b"]}, WIDTH: {"int": [1, 2], "when": {KIND: "a"}}}, sampler="grid")
    assert points(tune, 9) == [{KIND: "a", WIDTH: 1}, {KIND: "a", WIDTH: 2}, {KIND: "b"}]


@pytest.mark.parametrize("sampler", ["random", "grid", "tpe"])
def test_points_that_are_given_come_first(sampler: str) -> None:
    space = {KIND: {"choice": ["a", "b"]}, WIDTH: {"int": [1, 2], "when": {KIND: "a"}}}
    tune = settings(space=space, sampler=sampler, first=({KIND: "a"}, {KIND: "b"}, {}))
    found = points(tune, 4)
    assert found[0] == tune.points.drawn(0, 0, {KIND: "a"})
    assert found[1] == {KIND: "b"}
    assert found[2] == tune.points.drawn(0, 2)
    if sampler == "grid":
        assert found[3] == {KIND: "a", WIDTH: 1}
    state = StudyState(tune.goal, None, None)
    chosen = sampler_of(tune).suggest(state)
    assert chosen is not None
    assert chosen[1] == "first"


@pytest.mark.parametrize(("sampler", "space"), [("tpe", ALL), ("tpe", RANGES), ("cmaes", RANGES)])
def test_optunas_points_are_those_of_the_space_and_of_what_is_known(sampler: str, space: dict[str, Any]) -> None:
    pytest.importorskip("optuna")
    tune = settings(space=space, sampler=sampler, seed=3)
    found = points(tune, 25)
    assert all(tune.points.mistake_in(point) is None for point in found)
    assert all((key in point) == tune.points.matters(key, point) for point in found for key in tune.space)
    assert len({key_of(dict(point)) for point in found}) > 20
    assert points(tune, 25) == found, "also in another process, which has seen nothing"
    assert points(settings(space=space, sampler=sampler, seed=4), 25) != found


@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
def test_optunas_points_do_not_depend_on_who_asked_before(sampler: str) -> None:
    """A process that goes on with a study suggests what the one before would have."""
    pytest.importorskip("optuna")
    tune = settings(space=RANGES, sampler=sampler)
    found = points(tune, 20)
    state = StudyState(tune.goal, None, None)
    for count in (5, 11, 20):
        assert points(tune, count, state) == found[:count]


@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
def test_optuna_learns(sampler: str) -> None:
    """Half of the later points are better than nine in ten of those at random."""
    pytest.importorskip("optuna")
    at_random = sorted(map(quality, points(settings(space=RANGES), 100)))
    later = sorted(map(quality, points(settings(space=RANGES, sampler=sampler), 80)[40:]))
    assert later[len(later) // 2] > at_random[len(at_random) * 8 // 10]


def test_trials_that_run_are_known_to_optuna() -> None:
    """None of them has a value, and several drivers ask at once."""
    pytest.importorskip("optuna")
    for sampler in ("tpe", "cmaes"):
        tune = settings(space=RANGES, sampler=sampler)
        state = StudyState(tune.goal, None, None)
        for number in range(15):
            found = sampler_of(tune).suggest(state)
            assert found is not None
            state.hear(suggested(number, point=dict(found[0]), driver=DRIVER))
        assert len({key_of(dict(trial.point)) for trial in state.trials}) == 15


@pytest.mark.parametrize(("sampler", "package"), [("tpe", "optuna"), ("cmaes", "optuna"), ("cmaes", "cmaes")])
def test_a_package_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch, sampler: str, package: str) -> None:
    if package != "optuna":
        pytest.importorskip("optuna")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"tune\.sampler: {sampler} needs Optuna.*take random or grid"):
        sampler_of(settings(space=RANGES, sampler=sampler))
