"""Population: how trials of a study are forked from each other while they train. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, model_validator
from pydantic.dataclasses import dataclass

from hpc_train.config.tune.parameter import Number
from hpc_train.config.types import STRICT, Count


def multiples(every_steps: int | None, max_steps: int) -> range:
    """The multiples of `every_steps` below `max_steps`; None: of a tenth of that."""
    every = every_steps or max(1, max_steps // 10)
    return range(every, max_steps, every)


def _factors(factors: tuple[float, ...]) -> tuple[float, ...]:
    for factor in factors:
        if not 0 < factor < float("inf"):
            raise ValueError(f"{factor} is not allowed; allowed: numbers above 0, by which values are multiplied")
    if not any(factor != 1 for factor in factors):
        raise ValueError("factors of 1 change no value; give others, as in [0.8, 1.25]")
    return factors


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Population:
    """Population-based training (Jaderberg et al., "Population Based Training of Neural Networks", 2017).

    A trial that is among the worst at a rung ends, and a fork of one of the best goes on in its place: from that one's
    checkpoint, with its values changed.

    Args:
        size: How many trials train beside each other.
        every_steps: How often trials are compared; None: ten times.
        quantile: Which share of the trials are the worst, and which the best.
        factors: A number of a fork is its parent's, multiplied by one of these.
        resample: The probability that a value of a fork is drawn anew.
    """

    retired: ClassVar[Mapping[str, str]] = {
        "perturbation_interval": "`every_steps` says how often trials are compared",
        "quantile_fraction": "it is called `quantile`",
        "perturbation_factors": "they are called `factors`",
        "resample_probability": "it is called `resample`",
    }

    size: Annotated[Count, Field(ge=2, le=10_000)] = 8
    every_steps: Count | None = None
    quantile: Annotated[float, Field(gt=0, le=0.5)] = 0.25
    factors: Annotated[tuple[Number, ...], Field(min_length=1, max_length=100), AfterValidator(_factors)] = (0.8, 1.25)
    resample: Annotated[Number, Field(ge=0, le=1)] = 0.25

    @model_validator(mode="after")
    def _replaces(self) -> Population:
        if self.worst_of(self.size) < 1:
            least = math.ceil(1e4 / self.size) / 1e4
            text = f"quantile {self.quantile:g} of {self.size} trials is less than one, so none would ever be replaced"
            raise ValueError(f"{text}; give a larger `size`, or a `quantile` of {least:g}")
        return self

    def worst_of(self, trials: int) -> int:
        """How many of so many trials are the worst, and the best."""
        return math.floor(trials * self.quantile)

    def rungs(self, max_steps: int) -> tuple[int, ...]:
        """The steps at which trials are compared, below `max_steps`, lowest first."""
        return tuple(multiples(self.every_steps, max_steps))
