"""From what was measured here to what 1,024 ranks would reach. Pure; the model is scale_model/."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from scale_model.fit import QUARTILES_OF_NORMAL, StepTimes
from scale_model.measured import FittedNetwork
from scale_model.prediction import MOST_RANKS, Answer, Predicted, Validated, how_many_nodes, predict, validate
from scale_model.prediction import Measured as Point
from scale_model.profile import StepProfile, Strategy
from support.records import Record

from scale.found import Measured
from scale.settings import ASYNC, DEDICATED, STRONG, SYNC, WEAK

COUNTS = tuple(1 << power for power in range(11))
STRATEGIES = (
    Strategy("ring"),
    Strategy("hierarchical"),
    Strategy("parameter server", servers=1),
    Strategy("parameter server", servers=8),
)


@dataclass(frozen=True)
class Forecast:
    """What the model says of one workload.

    Attributes:
        curves: Predictions by strategy. checked: each measured point beside what would have been predicted.
        answers: The largest number of nodes that reaches the wanted efficiency, for each allreduce.
        link: What was measured, or stands, for the link between nodes.
    """

    curve: Measured
    curves: tuple[tuple[Strategy, tuple[Predicted, ...]], ...]
    checked: tuple[tuple[str, tuple[Validated, ...]], ...]
    answers: tuple[tuple[Strategy, Answer], ...]
    link: str

    @property
    def median_error(self) -> float | None:
        """Of all checked points."""
        errors = [abs(point.relative_error) for _, points in self.checked for point in points]
        return median(errors) if errors else None


def profile_of(alone: Record, served: bool = False) -> StepProfile:
    """What a step of one rank is made of, from the record of one that trained alone.

    The spread of its steps is taken for that of computing. `served`: parameter servers apply the gradients.
    """
    config = alone.config
    step = float(config["step_secs"]["0.5"])
    spread = math.log(config["step_secs"]["0.75"] / config["step_secs"]["0.25"]) / QUARTILES_OF_NORMAL
    shares, nbytes = config["shares"], float(config["gradient_bytes"])
    share = float(shares.get("compute", 1.0))
    applied = float(shares.get("apply", 0.0)) if served else 0.0
    return StepProfile(
        StepTimes(share * step, spread / share),
        gradient_bytes=nbytes,
        examples=float(alone.value * step),
        fixed_secs=max(0.0, 1 - share - applied) * step,
        apply_secs_per_byte=applied * step / nbytes,
    )


def forecast(curve: Measured, fitted: FittedNetwork, wanted: float, nodes: int = 1) -> Forecast:
    """What the model says of `curve`, which was measured on so many nodes and whose ranks talk over `fitted`.

    Points are checked with as many ranks a node as they had, which may be more than a node has cores.
    """
    profile, served, network = profile_of(curve.alone), profile_of(curve.alone, served=True), fitted.network
    most = max(record.ranks for record in curve.records)
    there = network.with_ranks_per_node(max(network.ranks_per_node, -(-most // nodes)))
    scaling = "strong" if curve.kind == STRONG else "weak"
    curves = tuple(
        (
            strategy,
            tuple(predict(served if strategy.servers else profile, network, _counts(strategy), strategy, scaling)),
        )
        for strategy in STRATEGIES
    )
    checked = []
    for way, strategy in ((SYNC, STRATEGIES[0]), (DEDICATED, STRATEGIES[0]), (ASYNC, STRATEGIES[2])):
        points = [
            Point(r.ranks if way == ASYNC else r.config["workers"], r.value)
            for r in curve.of(way)
            if way == ASYNC or r.config["workers"] > 1
        ]
        if points:
            own = served if strategy.servers else profile
            checked.append((way, tuple(validate(own, there, points, strategy, scaling))))
    answers = tuple(
        (strategy, how_many_nodes(profile, network, strategy, wanted, MOST_RANKS, scaling))
        for strategy in STRATEGIES[:2]
        if curve.kind == WEAK
    )
    return Forecast(curve, curves, tuple(checked), answers, fitted.between_words)


def _counts(strategy: Strategy) -> Sequence[int]:
    return [count for count in COUNTS if count > strategy.servers]
