"""What a fork tries: the values of its parent, each changed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from hpc_train.config.tune.exploration import explored
from hpc_train.config.tune.parameter import Parameter
from hpc_train.config.tune.population import Population
from hpc_train.config.tune.space import Space

PARAMETERS = TypeAdapter(dict[str, Parameter])
SPACE = Space(
    PARAMETERS.validate_python(
        {
            "rate": {"log": [1e-4, 1]},
            "share": {"uniform": [-1, 1]},
            "width": {"int": [1, 64], "scale": "log"},
            "kind": {"choice": ["a", "b", "c"]},
            "of_a": {"uniform": [0, 1], "when": {"kind": "a"}},
        }
    )
)
SEEDS, NUMBERS = st.integers(0, 2**63 - 1), st.integers(0, 99_999)
POPULATIONS = st.builds(
    Population,
    factors=st.lists(st.floats(0.01, 100).filter(lambda factor: factor != 1), min_size=1, max_size=4).map(tuple),
    resample=st.floats(0, 1),
)


@given(SEEDS, NUMBERS, NUMBERS, POPULATIONS)
def test_a_fork_has_a_point_of_the_space(seed: int, parent: int, trial: int, population: Population) -> None:
    before = SPACE.drawn(seed, parent)
    point = explored(SPACE, before, population, seed, trial)
    assert SPACE.mistake_in(point) is None
    assert set(point) == {key for key in SPACE.order if SPACE.matters(key, point)}
    assert point == explored(SPACE, before, population, seed, trial)


@given(
    SEEDS, NUMBERS, NUMBERS, st.lists(st.floats(0.01, 100).filter(lambda factor: factor != 1), min_size=1, max_size=4)
)
def test_each_value_changes_by_a_factor_or_to_a_neighbour(
    seed: int, parent: int, trial: int, factors: list[float]
) -> None:
    population = Population(factors=tuple(factors), resample=0)
    before = SPACE.drawn(seed, parent)
    point = explored(SPACE, before, population, seed, trial)
    kinds = ("a", "b", "c")
    assert abs(kinds.index(point["kind"]) - kinds.index(before["kind"])) == 1
    rates = {SPACE.parameters["rate"].rounded(before["rate"] * factor) for factor in factors} - {before["rate"]}
    assert point["rate"] in rates or not rates


def fork(parameter: dict[str, Any], value: Any, factor: float) -> Any:
    space = Space(PARAMETERS.validate_python({"key": parameter}))
    return explored(space, {"key": value}, Population(factors=(factor,), resample=0), 0, 1)["key"]


@pytest.mark.parametrize(
    ("value", "factor", "becomes"), [(1, 1.2, 2), (4, 0.9, 3), (4, 2, 8), (60, 2, 64), (2, 0.5, 1), (-2, 1.1, -3)]
)
def test_a_whole_number_moves_by_one_at_least_and_stays_in_its_range(value: int, factor: float, becomes: int) -> None:
    assert fork({"int": [-9, 64]}, value, factor) == becomes


def test_a_value_that_no_factor_changes_is_drawn_anew() -> None:
    assert fork({"uniform": [0, 1]}, 0.0, 2) > 0
    assert fork({"log": [0.1, 1]}, 1.0, 2) < 1
    assert fork({"choice": ["only"]}, "only", 2) == "only"


def test_another_key_changes_nothing_for_the_others() -> None:
    fewer = Space({key: SPACE.parameters[key] for key in ("rate", "width")})
    before = SPACE.drawn(3, 1)
    point = explored(SPACE, before, Population(), 3, 9)
    assert explored(fewer, before, Population(), 3, 9) == {key: point[key] for key in ("rate", "width")}


def test_values_are_drawn_anew_as_often_as_asked_for() -> None:
    before = {"rate": 0.01}
    space = Space({"rate": SPACE.parameters["rate"]})
    near = {0.008, 0.0125}
    found = [explored(space, before, Population(resample=0.25), 0, trial)["rate"] for trial in range(2000)]
    assert 0.2 < sum(rate not in near for rate in found) / len(found) < 0.3
