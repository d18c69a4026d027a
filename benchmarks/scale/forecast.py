"""What was measured, found again in the records, and what 1,024 ranks would reach. Pure; the model is model.py."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from support.records import Found, Record

from scale.jobs import ASYNC, DEDICATED, STRONG, SYNC, WEAK
from scale.model import (
    MOST_RANKS,
    QUARTILES_OF_NORMAL,
    Answer,
    Predicted,
    StepProfile,
    StepTimes,
    Strategy,
    how_many_nodes,
    predict,
)
from scale.network import Network

RING, SERVER = Strategy("ring"), Strategy("parameter server", servers=1)
STRATEGIES = (RING, Strategy("hierarchical"), SERVER, Strategy("parameter server", servers=8))


class Measured(Found):
    """All records of a curve."""

    def __init__(self, unit: str, records: Iterable[Record]) -> None:
        super().__init__(records)
        self.unit, about = unit, self.records[0].config
        self.title = unit[0].upper() + unit[1:]
        self.kind: str = about["kind"]
        self.workload: str = about["workload"]
        self.emulated_step_ms: float | None = about["emulated_step_ms"]
        self.ways: list[str] = self.each("way")

    def of(self, way: str) -> list[Record]:
        """Those of a way, by the number of workers."""
        return sorted(self.where(way=way), key=lambda record: record.config["workers"])

    @property
    def alone(self) -> Record:
        """One rank, which exchanges nothing."""
        found = self.one(way=SYNC, workers=1)
        assert found is not None, "measured in each curve"
        return found


def efficiency(record: Record) -> float:
    """Examples a second over as many times those of one rank alone, whose own record has no ratio."""
    return 1.0 if record.ratio is None else record.ratio


def curves_in(records: Iterable[Record]) -> list[Measured]:
    """All curves, in the order in which they were measured."""
    found = Found(records)
    return [Measured(unit, found.where(unit=unit)) for unit in found.each("unit")]


@dataclass(frozen=True)
class Checked:
    """A measured point, and what would have been predicted for it."""

    way: str
    ranks: int
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative, of the prediction."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Forecast:
    """What the model says of one workload.

    Attributes:
        curves: Predictions by strategy. checked: each measured point beside what would have been predicted.
        answers: The largest number of nodes that reaches the wanted efficiency, for each allreduce.
        link: What was measured, or stands, for the link between nodes.
    """

    curve: Measured
    curves: tuple[tuple[Strategy, list[Predicted]], ...]
    checked: tuple[Checked, ...]
    answers: tuple[tuple[Strategy, Answer], ...]
    link: str

    @property
    def median_error(self) -> float | None:
        """Of all checked points."""
        return median(abs(point.error) for point in self.checked) if self.checked else None


LEAST_SHARE, MOST_SIGMA = 0.01, 2.0
"""Of computing in a step, and of its spread: on a busy machine other things can take nearly all of a step."""


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
        StepTimes(share * step, min(spread / max(share, LEAST_SHARE), MOST_SIGMA)),
        gradient_bytes=nbytes,
        examples=float(alone.value * step),
        fixed_secs=max(0.0, 1 - share - applied) * step,
        apply_secs_per_byte=applied * step / nbytes,
    )


def forecast(curve: Measured, network: Network, wanted: float, nodes: int = 1) -> Forecast:
    """What the model says of `curve`, which was measured on so many nodes and whose ranks talk over `network`.

    Points are checked with as many ranks a node as they had, which may be more than a node has cores.
    """
    strong = curve.kind == STRONG
    most = max(record.ranks for record in curve.records)
    there = network.with_ranks_per_node(max(network.ranks_per_node, -(-most // nodes)))

    def predicted(strategy: Strategy, counts: list[int], over: Network) -> list[Predicted]:
        return predict(profile_of(curve.alone, strategy.servers > 0), over, counts, strategy, strong)

    counts = [1 << power for power in range(MOST_RANKS.bit_length())]
    curves = [(one, predicted(one, [n for n in counts if n > one.servers], network)) for one in STRATEGIES]
    checked = []
    for way, strategy in ((SYNC, RING), (DEDICATED, RING), (ASYNC, SERVER)):
        for record in curve.of(way):
            if way == ASYNC or record.config["workers"] > 1:
                ranks = record.ranks if way == ASYNC else record.config["workers"]
                [point] = predicted(strategy, [ranks], there)
                checked.append(Checked(way, ranks, record.value, point.examples_per_sec))
    answers = [
        (one, how_many_nodes(profile_of(curve.alone), network, one, wanted))
        for one in STRATEGIES
        if curve.kind == WEAK and not one.servers
    ]
    return Forecast(curve, tuple(curves), tuple(checked), tuple(answers), network.between_words)
