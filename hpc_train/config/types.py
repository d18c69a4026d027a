"""Types of values that several parts of the configuration share. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from hpc_train.arguments import shown
from hpc_train.config.functions import check_arguments

FUNCTION_PATTERN = r"^([^:\n]*[^:\s/]\.py|[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*):[A-Za-z_][A-Za-z0-9_]*$"
"""`file.py:function` or `package.module:function`."""
NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9_]{0,127}$"
NAME_WORDS = "a letter, then letters, digits and underscores, 128 characters at most"

STRATEGIES = {
    "sync": "hpc_train.strategies.synchronous",
    "async": "hpc_train.strategies.asynchronous",
}
"""What `run.strategy` may be, and the package of each."""

STRICT = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
"""How the dataclasses of the configuration are validated."""


def is_function(value: Any) -> Any:
    """`value`; ValueError where it is neither None, a function, nor a job file's name of one."""
    named = isinstance(value, str) and re.fullmatch(FUNCTION_PATTERN[1:-1], value)
    if value is not None and not callable(value) and not named:
        raise ValueError(f"{shown(value)} is not allowed; allowed: a function, in a job file as file.py:function")
    return value


def function_of(*allowed: tuple[str, ...]) -> AfterValidator:
    """Has a field take a function of one of the `allowed` arguments, or None; in a job file `file.py:function`."""

    def check(value: Any) -> Any:
        if callable(is_function(value)):
            check_arguments(value, *allowed)
        return value

    return AfterValidator(check)


def _is_strategy(value: str) -> str:
    if value not in STRATEGIES:
        expected = " or ".join(repr(name) for name in STRATEGIES)
        raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": expected})
    return value


def as_tuple(value: Any) -> Any:
    """A single text or path as a tuple."""
    return (value,) if isinstance(value, str | Path) else value


Datasets = tuple[str, ...] | dict[str, str] | None
"""Names of datasets, or the dataset of each input or output of the model."""


def are_datasets(value: Any) -> Any:
    """`value` as Datasets; ValueError where it is neither a name, nor a list of names, nor a mapping to them."""
    value = as_tuple(value)
    if value is None:
        return None
    names = [*value, *value.values()] if isinstance(value, dict) else value
    if not isinstance(value, dict | list | tuple) or not all(isinstance(n, str) and n for n in names):
        raise ValueError(
            f"{shown(value)} is not allowed; allowed: a dataset's name, a list of names, or a mapping of the model's "
            "names to those of datasets, as in {image: x_test}"
        )
    return value if isinstance(value, dict) else tuple(value)


def are_features(value: Any) -> Any:
    """As are_datasets; ValueError where there are none."""
    found = are_datasets(value)
    if found is not None and not found:
        raise ValueError(f"{shown(value)} is not allowed; allowed: one dataset at least, or none given for all")
    return found


def are_paddings(value: dict[str, Any]) -> dict[str, Any]:
    """`value`, what each dataset is padded with; ValueError where it is neither a number nor `{value, length}`."""
    for name, given in value.items():
        padding = given if isinstance(given, dict) else {"value": given}
        number, length = padding.get("value", 0), padding.get("length", 1)
        wrong = isinstance(length, bool) or not isinstance(length, int) or length < 1
        if set(padding) - {"value", "length"} or not isinstance(number, int | float) or wrong:
            raise ValueError(
                f"{shown(given)} is not allowed for {name!r}; allowed: a number, or a mapping with `value` (a number) "
                "and `length` (1 or more), as in {tokens: {value: 0, length: 128}}"
            )
    return value


def padding_of(given: Any) -> tuple[float, int | None]:
    """The value that rows are padded with, and to which length; None: to the longest of each batch."""
    return (given.get("value", 0), given.get("length")) if isinstance(given, dict) else (given, None)


def datasets_of(names: Datasets) -> tuple[str, ...]:
    """The datasets alone."""
    return tuple(names.values()) if isinstance(names, dict) else names or ()


def _is_given(value: Any) -> Any:
    return is_function(value or "") if isinstance(value, str) or value is None else value


def as_sequence(value: Any) -> Any:
    """A single object as a tuple, and None, which Estimator took for none, as an empty one."""
    return value if isinstance(value, list | tuple) else () if value is None else (value,)


def _are_class_weights(value: Any) -> Any:
    """`value` with numbers as keys; ValueError where it is no mapping of classes to weights."""
    allowed = "allowed: a mapping of classes, counted from 0, to numbers from 0 on, as in {0: 1.0, 1: 5.0}"
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"{shown(value)} is not allowed; {allowed}")
    found = {}
    for key, weight in value.items():
        number = int(key) if isinstance(key, str) and key.isdecimal() else key
        is_class = isinstance(number, Integral) and not isinstance(number, bool) and 0 <= int(number) < MAX_CLASSES
        is_weight = isinstance(weight, Real) and not isinstance(weight, bool)
        if not is_class or not is_weight or not math.isfinite(weight) or weight < 0:
            raise ValueError(f"{shown(key)}: {shown(weight)} is not allowed; {allowed}")
        found[int(number)] = float(weight)
    return found


MAX_CLASSES = 1 << 24
MOST_UNITS = 1 << 20
"""Of a layer."""
MOST_BUCKETS = 2**31 - 1
"""Into which values are hashed."""
ClassWeight = Annotated[dict[int, float], BeforeValidator(_are_class_weights)]
ClassWeightOption = Annotated[
    dict[int, float] | Literal["balanced"],
    BeforeValidator(lambda value: value if value == "balanced" else _are_class_weights(value)),
]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
StrategyName = Annotated[str, AfterValidator(_is_strategy)]
Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple), Field(min_length=1)]
Count = Annotated[int, Field(gt=0, strict=True)]
Seconds = Annotated[float, Field(ge=0)]
Functions = Annotated[tuple[Annotated[Any, AfterValidator(_is_given)], ...], BeforeValidator(as_sequence)]
"""Objects that are called; in a job file, functions that make them."""
