"""A metric of an evaluation, and which value of it is wanted. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OF_BEST = 0.02
"""A value that is not given lies so far, as a part of it, from the best that one rank reaches."""


@dataclass(frozen=True)
class Wanted:
    """A value to be reached; `mode`: "max" where larger is better, else "min"."""

    metric: str
    mode: str
    value: float

    def __str__(self) -> str:
        return f"{self.metric} {'≥' if self.mode == 'max' else '≤'} {self.value:.4g}"

    def reached(self, value: float) -> bool:
        """Whether that is good enough; NaN never is."""
        return value >= self.value if self.mode == "max" else value <= self.value

    def value_in(self, metrics: Mapping[str, float]) -> float:
        """Of its metric.

        Raises:
            ValueError: There is none of that name.
        """
        return value_of(self.metric, metrics)


def value_of(metric: str, metrics: Mapping[str, float]) -> float:
    """A metric of an evaluation.

    Raises:
        ValueError: There is none of that name.
    """
    if metric not in metrics:
        raise ValueError(
            f"--target-metric: the job's evaluation has no {metric}; it has {', '.join(metrics)}: give one of these"
        )
    return float(metrics[metric])


def best_of(metric: str, mode: str, evaluations: Sequence[Mapping[str, Any]]) -> float:
    """The best value of evaluations, each with its `metrics`.

    Raises:
        ValueError: There is no evaluation; or none has that metric.
    """
    values = [value_of(metric, one["metrics"]) for one in evaluations]
    if not values:
        raise ValueError("the job ended before its first evaluation")
    return max(values) if mode == "max" else min(values)


def derived(metric: str, mode: str, evaluations: Sequence[Mapping[str, Any]]) -> Wanted:
    """OF_BEST worse than the best of these evaluations, which are of one rank.

    Raises:
        ValueError: As best_of.
    """
    best = best_of(metric, mode, evaluations)
    away = OF_BEST * abs(best)
    return Wanted(metric, mode, best - away if mode == "max" else best + away)


def first_reaching(wanted: Wanted, evaluations: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The first evaluation that is good enough; None: none is."""
    return next((one for one in evaluations if wanted.reached(wanted.value_in(one["metrics"]))), None)
