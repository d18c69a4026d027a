"""The space of a study: which keys matter when, and the points in it."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from hpc_train.config.tune.parameter import Parameter, key_of
from hpc_train.config.tune.space import Space, share, wanted_values

A, B, RATE, WIDTH = "params.a", "params.b", "params.rate", "params.width"
SEEDS, TRIALS = st.integers(0, 2**63 - 1), st.integers(0, 99_999)


TWO = {A: Parameter(choice=(1, 2, 3)), B: Parameter(choice=(0, 1))}


def choice(*values: Any, when: dict[str, Any] | None = None) -> Parameter:
    return Parameter(choice=values, when=when or {})


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    """Spaces of choices and ranges, in any order, each of whose keys may depend on those of smaller numbers."""
    made: dict[str, Parameter] = {}
    for number in range(draw(st.integers(1, 6))):
        chosen = [key for key in made if made[key].choice is not None]
        others = draw(st.lists(st.sampled_from(chosen), max_size=2, unique=True)) if chosen else []
        when = {key: draw(st.sampled_from([0, 1, [0, 1], [1]])) for key in others}
        one = draw(st.sampled_from([{"choice": (0, 1)}, {"uniform": (0, 1), "points": 3}, {"int": (1, 3)}]))
        made[f"params.k{number}"] = Parameter(**one, when=when)
    try:
        return Space(dict(draw(st.permutations(list(made.items())))))
    except ValidationError as error:
        assume("is never true" not in str(error))
        raise


def matters(space: Space, point: dict[str, Any], key: str) -> bool:
    """By its definition."""
    wanted = space.parameters[key].when
    return all(other in point and point[other] in wanted_values(values) for other, values in wanted.items())


@given(spaces(), SEEDS, TRIALS)
def test_a_drawn_point_has_a_value_for_each_key_that_matters_and_no_other(space: Space, seed: int, trial: int) -> None:
    point = space.drawn(seed, trial)
    for key, parameter in space.parameters.items():
        assert (key in point) == matters(space, point, key)
        assert key not in point or parameter.allows(point[key])
    assert space.mistake_in(point) is None
    assert space.drawn(seed, trial) == point, "the same wherever it is drawn"
    assert space.drawn(seed, trial, point) == point


@given(spaces(), SEEDS, TRIALS)
def test_another_key_changes_nothing_about_the_others(space: Space, seed: int, trial: int) -> None:
    more = Space({"params.new": Parameter(uniform=(0, 1)), **space.parameters, "params.last": choice(0, 1)})
    drawn = more.drawn(seed, trial)
    assert {key: drawn[key] for key in drawn if key not in ("params.new", "params.last")} == space.drawn(seed, trial)


@given(SEEDS, TRIALS, st.text(max_size=20))
def test_a_share_is_from_0_to_below_1(seed: int, trial: int, key: str) -> None:
    assert 0 <= share(seed, trial, key) < 1
    assert share(seed, trial, key) == share(seed, trial, key)


def test_shares_are_spread_evenly() -> None:
    """Kolmogorov and Smirnov's distance of 10,000 shares is below its 99.9 % point."""
    shares = sorted(share(0, trial, RATE) for trial in range(10_000))
    assert max(abs(found - place / 10_000) for place, found in enumerate(shares)) < 1.95 / 100
    assert shares != sorted(share(1, trial, RATE) for trial in range(10_000))


def test_values_that_are_given_stay_and_decide_what_matters() -> None:
    space = Space({WIDTH: Parameter(int=(1, 9), when={A: 1}), A: choice(0, 1)})
    assert space.drawn(0, 0, {A: 0}) == {A: 0}
    assert space.drawn(0, 0, {A: 1}) == {A: 1, WIDTH: space.drawn(0, 0, {A: 1})[WIDTH]}
    assert space.drawn(0, 0, {A: 1, WIDTH: 4}) == {A: 1, WIDTH: 4}
    assert space.drawn(0, 0, {A: None or 0, WIDTH: 4}) == {A: 0}


@given(spaces())
def test_a_grid_has_each_point_once(space: Space) -> None:
    found = list(space.grid())
    values = [[*parameter.grid(), None] for parameter in space.parameters.values()]
    every = (dict(zip(space.parameters, combination, strict=True)) for combination in product(*values))
    points = [{key: value for key, value in each.items() if value is not None} for each in every]
    expected = [
        point for point in points if all((key in point) == matters(space, point, key) for key in space.parameters)
    ]
    assert sorted(map(key_of, found)) == sorted(map(key_of, expected))


def test_the_first_key_of_a_grid_changes_last() -> None:
    space = Space(
        {A: choice("x", "y"), B: Parameter(int=(1, 2), when={A: "y"}), RATE: Parameter(uniform=(0, 1), points=2)}
    )
    assert list(space.grid()) == [
        {A: "x", RATE: 0.0},
        {A: "x", RATE: 1.0},
        {A: "y", B: 1, RATE: 0.0},
        {A: "y", B: 1, RATE: 1.0},
        {A: "y", B: 2, RATE: 0.0},
        {A: "y", B: 2, RATE: 1.0},
    ]


@given(spaces())
def test_keys_come_behind_those_that_they_depend_on(space: Space) -> None:
    assert sorted(space.order) == sorted(space.parameters)
    for key, parameter in space.parameters.items():
        assert all(space.order.index(other) < space.order.index(key) for other in parameter.when)


def test_each_value_of_a_choice_and_both_ends_are_tried() -> None:
    """Also of a key that depends on two others, one of which depends on the other."""
    space = Space(
        {
            A: choice(1, 2),
            B: choice("x", when={A: [1, 2]}),
            RATE: Parameter(uniform=(0, 1), when={A: 2, B: "x"}),
            WIDTH: choice(8, 16, when={B: "x", A: 2}),
        }
    )
    tried = list(space.examples())
    assert [point[key] for key, point in tried] == [1, 2, "x", 0.0, 1.0, 8, 16]
    assert all(space.mistake_in(point) is None for _, point in tried)


@given(spaces())
def test_each_key_is_tried_where_it_matters(space: Space) -> None:
    for key, point in space.examples():
        assert key in point
        assert space.mistake_in(point) is None


def test_a_long_chain_of_conditions_takes_no_time_that_doubles_with_each_key() -> None:
    keys = [f"params.k{number}" for number in range(60)]
    space = Space({key: choice(0, 1, when=dict.fromkeys(keys[:place], 1)) for place, key in enumerate(keys)})
    assert space.order == tuple(keys)
    assert sum(1 for _ in space.examples()) == 120
    with pytest.raises(ValidationError, match=r"k0 when params\.k59 when params\.k0"):
        Space({**space.parameters, keys[0]: choice(0, 1, when={keys[-1]: 1})})


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (
            {RATE: choice(1, when={"params.a2": 1}), A: choice(1)},
            r"'params.a2' is no key of the space; did you mean `params.a`",
        ),
        ({RATE: choice(1, when={A: 1})}, "allowed: none; there is no other key"),
        ({RATE: choice(1, when={A: [1, 3]}), A: choice(1, 2)}, "3 is no value of params.a; allowed: one of 1, 2"),
        ({RATE: choice(1, when={A: True}), A: choice(1, 2)}, "true is no value of params.a"),
        ({RATE: choice(1, when={WIDTH: 9}), WIDTH: Parameter(int=(1, 8))}, "allowed: a whole number from 1 to 8"),
        ({RATE: choice(1, when={A: 0.5}), A: Parameter(uniform=(0, 1))}, "params.a is never drawn to be exactly that"),
        ({RATE: choice(1, when={A: []}), A: choice(1)}, "is never true: no value of params.a is left"),
        (
            {RATE: choice(1, when={WIDTH: 2, A: 1}), WIDTH: choice(1, 2, when={B: 0, A: [2, 3]}), **TWO},
            "`params.rate`.when\n  is never true: no value of params.a is left",
        ),
        ({A: choice(1, when={A: 1})}, "params.a when params.a"),
        ({A: choice(1, when={B: 1}), B: choice(1, when={A: 1})}, "params.a when params.b when params.a"),
    ],
)
def test_conditions_that_cannot_be_are_refused(parameters: dict[str, Parameter], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Space(parameters)
    assert words in str(caught.value)


def test_mistakes_in_points() -> None:
    space = Space({A: choice(0, 1), WIDTH: Parameter(int=(1, 9), when={A: 1})})
    assert space.mistake_in({}) is None
    assert space.mistake_in({A: 1, WIDTH: 9}) is None
    for point, key, words in [
        ({"params.widht": 1}, "params.widht", "did you mean `params.width`?"),
        ({A: 2}, A, "2 is not allowed; allowed: one of 0, 1"),
        ({A: 1, WIDTH: 10}, WIDTH, "a whole number from 1 to 9"),
        ({A: 0, WIDTH: 1}, WIDTH, "leave it out, or give params.a a value, too"),
        ({WIDTH: 1}, WIDTH, "does not matter there"),
    ]:
        found = space.mistake_in(point)
        assert found is not None
        assert found[0] == key
        assert words in found[1]
