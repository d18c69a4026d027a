"""Types of values that several parts of the configuration share. Pure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

FUNCTION_PATTERN = r"^([^:\n]*[^:\s/]\.py|[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*):[A-Za-z_][A-Za-z0-9_]*$"
"""`file.py:function` or `package.module:function`."""
NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9_]{0,127}$"

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
        raise ValueError(f"{value!r} is not allowed; allowed: a function, in a job file as file.py:function")
    return value


def _is_strategy(value: str) -> str:
    if value not in STRATEGIES:
        expected = " or ".join(repr(name) for name in STRATEGIES)
        raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": expected})
    return value


def as_tuple(value: Any) -> Any:
    """A single text or path as a tuple."""
    return (value,) if isinstance(value, str | Path) else value


def _is_given(value: Any) -> Any:
    return is_function(value or "") if isinstance(value, str) or value is None else value


def _as_sequence(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


Name = Annotated[str, Field(pattern=NAME_PATTERN)]
StrategyName = Annotated[str, AfterValidator(_is_strategy)]
Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple), Field(min_length=1)]
Count = Annotated[int, Field(gt=0, strict=True)]
Seconds = Annotated[float, Field(ge=0)]
Function = Annotated[Any, AfterValidator(is_function)]
"""A function, or None; in a job file `file.py:function`."""
Functions = Annotated[tuple[Annotated[Any, AfterValidator(_is_given)], ...], BeforeValidator(_as_sequence)]
"""Objects that are called; in a job file, functions that make them."""
