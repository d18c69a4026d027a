"""What a step of one rank is made of, and how ranks exchange their gradients. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from scale_model.costs import ALGORITHMS, Algorithm
from scale_model.fit import StepTimes


@dataclass(frozen=True)
class StepProfile:
    """What a step of one rank is made of, measured. An exchange begins when all gradients are there.

    Attributes:
        compute: Forward and backward pass, with their spread; fixed_secs: input, applying, and what else there is.
        gradient_bytes: That each rank sends. examples: Of a step of one rank.
        apply_secs_per_byte: That a parameter server takes to apply gradients.

    Raises:
        ValueError: A number is out of range.
    """

    compute: StepTimes
    gradient_bytes: float
    examples: float = 1.0
    fixed_secs: float = 0.0
    apply_secs_per_byte: float = 0.0

    def __post_init__(self) -> None:
        for name in ("gradient_bytes", "fixed_secs", "apply_secs_per_byte"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"StepProfile.{name} is {getattr(self, name)}: give a number from 0 on")
        if not self.examples > 0:
            raise ValueError(f"StepProfile.examples is {self.examples}: give a number above 0")

    @property
    def single_secs(self) -> float:
        """A step of one rank that exchanges nothing, on average."""
        return self.compute.mean_secs + self.fixed_secs

    def with_batch(self, share: float) -> StepProfile:
        """The same with a batch that is `share` times as large; what is fixed stays."""
        return replace(self, compute=self.compute.scaled(share), examples=self.examples * share)


@dataclass(frozen=True)
class Strategy:
    """How gradients are exchanged.

    Attributes:
        way: An algorithm of allreduce; or through parameter servers, which train nothing themselves, asynchronously.
        servers: So many of the ranks; 0 with an allreduce.

    Raises:
        ValueError: A way with the wrong number of servers, or an unknown one.
    """

    way: Algorithm | Literal["parameter server"]
    servers: int = 0

    def __post_init__(self) -> None:
        if self.way not in (*ALGORITHMS, "parameter server"):
            ways = ", ".join((*ALGORITHMS, "parameter server"))
            raise ValueError(f"{self.way!r} is no way to exchange gradients; there are: {ways}")
        if (self.servers > 0) != (self.way == "parameter server") or self.servers < 0:
            raise ValueError(f"{self.way} with {self.servers} servers: only a parameter server has them, one at least")

    def __str__(self) -> str:
        if not self.servers:
            return f"{self.way} allreduce"
        return f"{'parameter server' if self.servers == 1 else f'{self.servers} parameter servers'}, asynchronous"
