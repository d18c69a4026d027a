"""One key of a study's space: which values it may have, and when it matters. Pure.

params.learning_rate: {log: [1e-4, 1e-1]}
params.width: {int: [16, 1024], scale: log}
params.dropout: {uniform: [0, 0.5], when: {params.width: [512, 1024]}}
model.builtin: {choice: [linear, dnn]}
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic.dataclasses import dataclass

from hpc_train.arguments import shown
from hpc_train.config.types import STRICT, Count

KINDS = ("uniform", "log", "int", "choice")
SIGNIFICANT_DIGITS = 6
"""Of numbers that are drawn, so that people can read them."""
MOST_CHOICES = 1_000
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
"""Characters that JSON may hold as they are, and that YAML takes for others or none."""

Value = Any
"""Of plain JSON."""


def _two(value: Any) -> Any:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"{shown(value)} is not allowed; allowed: [lowest, highest]")
    return value


def _range(bounds: tuple[Any, Any]) -> tuple[Any, Any]:
    low, high = bounds
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"[{low}, {high}] is not allowed; allowed: two finite numbers, [lowest, highest]")
    if low == high:
        raise ValueError(f"[{low}, {high}] has one value alone; set it in the job file, or give a larger range")
    if low > high:
        raise ValueError(f"[{low}, {high}] is the wrong way round; allowed: [lowest, highest], as [{high}, {low}]")
    return bounds


def _positive(bounds: tuple[Any, Any]) -> tuple[Any, Any]:
    if bounds[0] <= 0:
        raise ValueError(f"[{bounds[0]}, {bounds[1]}] begins at 0 or below, which has no logarithm; begin above 0")
    return bounds


def _choices(values: tuple[Any, ...]) -> tuple[Any, ...]:
    for value in values:
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise ValueError(
                f"{shown(value)} is not allowed; allowed: what JSON can hold, with finite numbers"
            ) from None
    keys = [key_of(value) for value in values]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} is there more than once; give each choice once")
    return values


Number = Annotated[float, Field(strict=False)]
Whole = Annotated[int, Field(strict=True, ge=-(2**63), lt=2**63)]
Range = Annotated[tuple[Number, Number], BeforeValidator(_two), AfterValidator(_range)]
Wholes = Annotated[tuple[Whole, Whole], BeforeValidator(_two), AfterValidator(_range)]
Choices = Annotated[tuple[Any, ...], Field(min_length=1, max_length=MOST_CHOICES), AfterValidator(_choices)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Parameter:
    """The values that a key of the job file may have: one of `uniform`, `log`, `int` and `choice`.

    Args:
        uniform: [lowest, highest] of a number that is drawn evenly.
        log: The same of one whose logarithm is drawn evenly.
        int: [lowest, highest] of a whole number; both are among its values.
        choice: A list of values.
        scale: Of `int`: "log" draws its logarithm evenly.
        points: How many values a grid has of a range, both ends among them.
        when: Other keys of the space, and the value or the values of each with which this key matters.

    Attributes:
        kind: Which of the four.
    """

    retired: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("loguniform", "log_uniform", "float", "categorical", "values", "min", "max", "range", "type"),
        "the ranges are called `uniform`, `log`, `int` and `choice`",
    )

    uniform: Range | None = None
    log: Annotated[Range, AfterValidator(_positive)] | None = None
    int: Wholes | None = None
    choice: Choices | None = None
    scale: Literal["linear", "log"] = "linear"
    points: Annotated[Count, Field(ge=2)] | None = None
    when: dict[str, Any] = field(default_factory=dict)

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Parameter:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"a key of the space has one of {', '.join(KINDS)}; here is {found}")
        if self.scale == "log" and self.int is None:
            raise ValueError("`scale: log` is for `int`; a number that is no whole one has `log: [lowest, highest]`")
        if self.scale == "log" and self.int is not None:
            _positive(self.int)
        if self.points is not None and self.choice is not None:
            raise ValueError("`points` is for a range; a grid has all values of a `choice`")
        return self

    @property
    def kind(self) -> str:
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def bounds(self) -> tuple[Any, Any] | None:
        """Of a range; None of a choice."""
        return self.uniform or self.log or self.int

    @property
    def is_logarithmic(self) -> bool:
        return self.log is not None or self.scale == "log"

    @property
    def is_continuous(self) -> bool:
        """Whether it has more values than can be told apart by `when`."""
        return self.choice is None and self.int is None and self.points is None

    def at(self, share: float) -> Value:
        """The value below which the `share` of all is, from 0 to below 1."""
        if self.choice is not None:
            return self.choice[min(len(self.choice) - 1, math.floor(share * len(self.choice)))]
        if self.int is not None:
            low, high = self.int
            if self.is_logarithmic:
                first, last = math.log(low), math.log(high + 1)
                return max(low, min(high, math.floor(math.exp(first + share * (last - first)))))
            return min(high, low + math.floor(share * (high - low + 1)))
        return self._between(share)

    def _between(self, share: float) -> float:
        bounds = self.uniform or self.log
        assert bounds is not None, "the only kinds left"
        low, high = bounds
        if self.log is not None:
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low * (1 - share) + high * share  # the difference of two numbers may be none
        return self.rounded(value)

    def rounded(self, value: float) -> float:
        """A number of its range with SIGNIFICANT_DIGITS, in the range."""
        assert self.bounds is not None, "a range"
        return float(min(max(float(f"{value:.{SIGNIFICANT_DIGITS}g}"), self.bounds[0]), self.bounds[1]))

    def grid(self) -> tuple[Value, ...]:
        """All its values, or `points` of a range; ValueError where it has no end of them."""
        if self.choice is not None:
            return self.choice
        if self.points is not None and self.bounds is not None:
            low, high = self.bounds
            shares = [number / (self.points - 1) for number in range(1, self.points - 1)]
            if self.int is not None:
                inner = [low * (high / low) ** s if self.is_logarithmic else low + s * (high - low) for s in shares]
                return tuple(dict.fromkeys((low, *(min(max(round(value), low), high) for value in inner), high)))
            return tuple(dict.fromkeys((low, *map(self._between, shares), high)))
        if self.int is not None and self.int[1] - self.int[0] < MOST_CHOICES:
            return tuple(range(self.int[0], self.int[1] + 1))
        raise ValueError("a grid needs to know how many values of this range it has; give `points: 5`, or a `choice`")

    def samples(self) -> tuple[Value, ...]:
        """The values that all others are between: both ends, or each choice."""
        return self.choice if self.choice is not None else (self.bounds or ())

    def allows(self, value: Value) -> bool:
        """Whether it is one of its values."""
        if self.choice is not None:
            return key_of(value) in map(key_of, self.choice)
        assert self.bounds is not None, "a range"
        kinds: tuple[type, ...] = (int,) if self.int is not None else (int, float)
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        return is_number and self.bounds[0] <= value <= self.bounds[1]

    def describe(self) -> str:
        """Its values in words."""
        if self.choice is not None:
            return f"one of {', '.join(map(key_of, self.choice))}"
        assert self.bounds is not None, "a range"
        what = "a whole number" if self.int is not None else "a number"
        return f"{what} from {self.bounds[0]} to {self.bounds[1]}"


def key_of(value: Value) -> str:
    """`value` as text that no other value has, for JSON and YAML: 1, 1.0 and true are three."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return _NOT_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
