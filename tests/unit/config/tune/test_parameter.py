"""One key of a study's space: its values, at random and of a grid."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from hpc_train.config.overrides import overridden
from hpc_train.config.tune.parameter import MOST_CHOICES, Parameter, key_of
from hpc_train.config.tune.trial_settings import point_settings
from hpc_train.config.yaml_loader import read_yaml

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
WHOLES = st.integers(-(2**63), 2**63 - 1)
SCALARS = st.none() | st.booleans() | WHOLES | NUMBERS | st.text(max_size=10)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=2)
)
SHARES = st.floats(0, 1, exclude_max=True)


@st.composite
def parameters(draw: st.DrawFn, points: int | None = None) -> Parameter:
    """Any key of a space; a range with so many `points`."""
    kind = draw(st.sampled_from(["uniform", "log", "int", "int of a logarithm", "choice"]))
    if kind == "choice":
        return Parameter(choice=tuple(draw(st.lists(VALUES, min_size=1, max_size=6, unique_by=key_of))))
    numbers = {"uniform": NUMBERS, "log": POSITIVE, "int": WHOLES}.get(kind, st.integers(1, 2**63 - 1))
    low, high = sorted(draw(st.tuples(numbers, numbers)))
    assume(low < high)
    if kind == "int of a logarithm":
        return Parameter(int=(low, high), scale="log", points=points)
    return Parameter(**{kind: (low, high)}, points=points)


@given(parameters(), SHARES)
def test_each_share_has_a_value_that_is_allowed(parameter: Parameter, share: float) -> None:
    value = parameter.at(share)
    assert parameter.allows(value)
    assert json.loads(key_of(value)) == value


@given(parameters(), SHARES, SHARES)
def test_a_larger_share_has_no_smaller_value(parameter: Parameter, one: float, other: float) -> None:
    if parameter.choice is None:
        low, high = sorted((one, other))
        assert parameter.at(low) <= parameter.at(high)


@given(st.integers(1, 50), st.integers(-9, 9))
def test_each_whole_number_has_the_same_share(count: int, low: int) -> None:
    if count > 1:
        parameter = Parameter(int=(low, low + count - 1))
        assert [parameter.at((number + 0.5) / count) for number in range(count)] == list(range(low, low + count))
    choices = Parameter(choice=tuple(range(count)))
    assert [choices.at((number + 0.5) / count) for number in range(count)] == list(range(count))


def test_the_logarithm_is_drawn_evenly() -> None:
    assert Parameter(log=(1e-4, 1.0)).at(0.5) == 0.01
    assert Parameter(uniform=(0.0, 1.0)).at(0.5) == 0.5
    wholes = [Parameter(int=(1, 1023), scale="log").at(number / 10 + 0.05) for number in range(10)]
    assert wholes == [math.floor(2 ** (number + 0.5)) for number in range(10)]


def test_numbers_can_be_read() -> None:
    assert Parameter(uniform=(0.0, 1.0)).at(1 / 3) == 0.333333


@given(parameters(points=7))
def test_a_grid_has_both_ends_and_values_that_are_allowed(parameter: Parameter) -> None:
    grid = parameter.grid()
    assert all(map(parameter.allows, grid))
    assert len(set(map(key_of, grid))) == len(grid)
    if parameter.choice is None:
        assert (grid[0], grid[-1]) == parameter.bounds
        assert len(grid) <= 7
    else:
        assert grid == parameter.choice


def test_grids() -> None:
    assert Parameter(uniform=(0, 1), points=3).grid() == (0.0, 0.5, 1.0)
    assert Parameter(log=(0.01, 1), points=3).grid() == (0.01, 0.1, 1.0)
    assert Parameter(int=(16, 1024), scale="log", points=4).grid() == (16, 64, 256, 1024)
    assert Parameter(int=(1, 3), points=9).grid() == (1, 2, 3), "no value twice"
    assert Parameter(int=(-1, 2)).grid() == (-1, 0, 1, 2)
    for endless in (Parameter(uniform=(0, 1)), Parameter(log=(1, 2)), Parameter(int=(0, MOST_CHOICES))):
        with pytest.raises(ValueError, match="points: 5"):
            endless.grid()


def test_what_is_allowed() -> None:
    whole, number, choice = Parameter(int=(1, 3)), Parameter(uniform=(1, 3)), Parameter(choice=(1, "a", None, [1]))
    assert [value for value in (0, 1, 3, 4, 2.0, True, "2", None) if whole.allows(value)] == [1, 3]
    assert [value for value in (0.9, 1, 2.5, 3, True, math.nan, math.inf, "2") if number.allows(value)] == [1, 2.5, 3]
    assert [value for value in (1.0, True, "a", None, [1], (1,), [2], "None") if choice.allows(value)] == [
        "a",
        None,
        [1],
        (1,),
    ]
    assert (whole.describe(), choice.describe()) == ("a whole number from 1 to 3", 'one of 1, "a", null, [1]')


@given(parameters(), st.none() | VALUES)
def test_a_parameter_travels_as_json(parameter: Parameter, wanted: Any) -> None:
    kind = TypeAdapter(Parameter)
    parameter = kind.validate_python({parameter.kind: getattr(parameter, parameter.kind), "when": {"params.a": wanted}})
    sent = json.dumps(kind.dump_python(parameter, mode="json"))
    assert kind.validate_python(json.loads(sent)) == parameter


@given(VALUES)
def test_a_trials_settings_are_read_as_its_values(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "values.yaml"
    path.write_text("params: {}")
    document = overridden(read_yaml(path), point_settings({"params.value": value}))
    assert key_of(document.value["params"]["value"]) == key_of(value)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "here is none"),
    ({"int": [1, 2], "uniform": [1, 2]}, "here is uniform and int"),
    ({"uniform": [1, 1]}, "one value alone"),
    ({"uniform": [2, 1]}, "wrong way round"),
    ({"uniform": [1]}, "[lowest, highest]"),
    ({"uniform": 1}, "[lowest, highest]"),
    ({"uniform": [0, math.inf]}, "two finite numbers"),
    ({"uniform": [math.nan, 1]}, "two finite numbers"),
    ({"log": [0, 1]}, "no logarithm"),
    ({"log": [-1, 1]}, "no logarithm"),
    ({"int": [0, 8], "scale": "log"}, "no logarithm"),
    ({"int": [1, 2.5]}, "integer"),
    ({"int": [0, 10**400]}, "9223372036854775808"),
    ({"uniform": [0, 1], "scale": "log"}, "`scale: log` is for `int`"),
    ({"choice": []}, "at least 1"),
    ({"choice": [1, 2, 1]}, "1 is there more than once"),
    ({"choice": [math.nan]}, "finite numbers"),
    ({"choice": [[{"a": math.inf}]]}, "finite numbers"),
    ({"choice": [object()]}, "JSON"),
    ({"choice": [1], "points": 3}, "`points` is for a range"),
    ({"uniform": [0, 1], "points": 1}, "greater than or equal to 2"),
]


@pytest.mark.parametrize(("given", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_what_is_wrong_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Parameter).validate_python(given)
    assert words in str(caught.value)
