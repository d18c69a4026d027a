"""The best evaluation of a job so far, as best.json and checkpoints have it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter


@dataclass(frozen=True)
class Best:
    """The best evaluation so far: the `metric` that was compared, its value, and the checkpoint's step."""

    metric: str
    mode: Literal["min", "max"]
    value: float
    step: Annotated[int, Field(ge=0, lt=1 << 60)]

    def beaten_by(self, value: float) -> bool:
        """Whether `value` is strictly better. NaN never is."""
        return value < self.value if self.mode == "min" else value > self.value


_BEST = TypeAdapter(Best)


def best_in(fields: Mapping[str, Any]) -> Best:
    """The one that `fields` of JSON hold; ValueError where they hold none."""
    best = _BEST.validate_python(fields)
    if math.isnan(best.value):
        raise ValueError("its value is no number")
    return best
