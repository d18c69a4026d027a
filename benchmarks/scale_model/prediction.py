"""What training reaches on more ranks than there are: steps, exchanges and stragglers put together. Pure.

predict(profile, network, [1, 2, …, 1024], Strategy("ring"))
how_many_nodes(profile, network, Strategy("ring"), wanted=0.8)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from scale_model.costs import Network, allreduce_secs, parameter_server_exchange
from scale_model.fit import StepTimes
from scale_model.profile import StepProfile, Strategy
from scale_model.simulation import STEPS, simulate_async, slowest_of_each

Scaling = Literal["weak", "strong"]
MOST_RANKS = 1024
MOST_EXCHANGES, FEWEST_STEPS = 20_000, 20
"""Of a simulation of asynchronous workers: so many exchanges, but so many steps a worker at least."""


@dataclass(frozen=True)
class Predicted:
    """What so many ranks reach.

    Attributes:
        step_secs: Between two steps of a worker. exchange_secs: Of one exchange alone; exposed_secs: of that, and of
            waiting at servers. straggler_secs: Waiting for the slowest.
        examples_per_sec: Of all ranks. efficiency: That over so many times what one rank alone reaches; parameter
            servers count as ranks.
    """

    ranks: int
    nodes: int
    step_secs: float
    exchange_secs: float
    exposed_secs: float
    straggler_secs: float
    examples_per_sec: float
    efficiency: float


def predict(
    profile: StepProfile,
    network: Network,
    counts: Sequence[int],
    strategy: Strategy,
    scaling: Scaling = "weak",
    seed: int = 0,
) -> list[Predicted]:
    """What each of `counts` ranks reaches.

    Args:
        scaling: weak: each rank has the batch that one has; strong: that batch is shared out, and so is computing;
            what is fixed stays.

    Raises:
        ValueError: A count is below 1, or leaves no worker beside the servers.
    """
    if not counts:
        return []
    if min(counts) < 1:
        raise ValueError(f"{min(counts)} ranks: give numbers from 1 on")
    most = max(counts)
    relative = slowest_of_each(StepTimes(1.0, profile.compute.sigma), most, seed)
    # Few draws have a mean of their own: what is simulated for one rank is made its known mean.
    slowest = relative / relative[0] * StepTimes(1.0, profile.compute.sigma).mean_secs
    return [_one(profile, network, ranks, strategy, scaling, seed, slowest) for ranks in counts]


def _one(
    profile: StepProfile,
    network: Network,
    ranks: int,
    strategy: Strategy,
    scaling: Scaling,
    seed: int,
    slowest: np.ndarray,
) -> Predicted:
    workers = ranks - strategy.servers
    if workers < 1:
        raise ValueError(f"{strategy}: {ranks} ranks leave no worker beside {strategy.servers} servers")
    if ranks == 1 and not strategy.servers:
        secs = profile.single_secs
        return Predicted(1, 1, secs, 0.0, 0.0, 0.0, profile.examples / secs, 1.0)
    own = profile if scaling == "weak" else profile.with_batch(1 / workers)
    if strategy.way == "parameter server":
        exchange, waiting, step = _asynchronous(own, network, ranks, strategy, seed)
        straggling = 0.0
    else:
        exchange = waiting = allreduce_secs(strategy.way, network, ranks, own.gradient_bytes)
        straggling = max(0.0, own.compute.median_secs * float(slowest[ranks - 1]) - own.compute.mean_secs)
        step = own.single_secs + exchange + straggling
    rate = workers * own.examples / step
    alone = profile.examples / profile.single_secs
    return Predicted(ranks, network.nodes(ranks), step, exchange, waiting, straggling, rate, rate / (ranks * alone))


def _asynchronous(
    profile: StepProfile, network: Network, ranks: int, strategy: Strategy, seed: int
) -> tuple[float, float, float]:
    workers = ranks - strategy.servers
    exchange = parameter_server_exchange(
        network, ranks, strategy.servers, profile.gradient_bytes, profile.apply_secs_per_byte
    )
    steps = max(FEWEST_STEPS, min(STEPS, MOST_EXCHANGES // workers))
    # What is fixed does not vary.
    median = profile.compute.median_secs + profile.fixed_secs
    times = StepTimes(median, profile.compute.sigma * profile.compute.median_secs / median)
    found = simulate_async(times, workers, exchange.wire_secs, [exchange.service_secs] * strategy.servers, seed, steps)
    return exchange.alone_secs, exchange.alone_secs + found.waiting_secs, workers / found.exchanges_per_sec


@dataclass(frozen=True)
class Measured:
    """What was measured on so many ranks."""

    ranks: int
    examples_per_sec: float


@dataclass(frozen=True)
class Validated:
    """A prediction beside what was measured.

    Attributes:
        relative_error: Of the prediction, (predicted - measured) / measured.
    """

    measured: Measured
    predicted: Predicted
    relative_error: float


def validate(
    profile: StepProfile,
    network: Network,
    measured: Sequence[Measured],
    strategy: Strategy,
    scaling: Scaling = "weak",
    seed: int = 0,
) -> list[Validated]:
    """Each measured point with what would have been predicted for it.

    Raises:
        ValueError: A rate is not above 0; or as `predict`.
    """
    if any(not point.examples_per_sec > 0 for point in measured):
        raise ValueError("a measured rate is not above 0")
    predicted = predict(profile, network, [point.ranks for point in measured], strategy, scaling, seed)
    return [
        Validated(point, found, found.examples_per_sec / point.examples_per_sec - 1)
        for point, found in zip(measured, predicted, strict=True)
    ]


@dataclass(frozen=True)
class Answer:
    """How many nodes are worth asking for.

    Attributes:
        found: The largest count whose efficiency is `wanted` or more; None: there is none.
        at_most: Whether more were not looked at, rather than found to be worse. curve: By ranks.
    """

    wanted: float
    found: Predicted | None
    at_most: bool
    curve: tuple[Predicted, ...]

    def __str__(self) -> str:
        if self.found is None:
            best = max(self.curve, key=lambda point: point.efficiency, default=None)
            told = f"; the best is {best.efficiency:.0%} on {_count(best)}" if best else ""
            return f"no number of nodes reaches an efficiency of {self.wanted:.0%}{told}"
        more = "; more were not looked at" if self.at_most else ""
        return f"{_count(self.found)}: efficiency {self.found.efficiency:.0%}, {self.wanted:.0%} wanted{more}"


def _count(point: Predicted) -> str:
    nodes = "1 node" if point.nodes == 1 else f"{point.nodes} nodes"
    return f"{nodes} ({'1 rank' if point.ranks == 1 else f'{point.ranks} ranks'})"


def how_many_nodes(
    profile: StepProfile,
    network: Network,
    strategy: Strategy,
    wanted: float,
    most_ranks: int = MOST_RANKS,
    scaling: Scaling = "weak",
    seed: int = 0,
) -> Answer:
    """The largest number of full nodes that reaches the efficiency `wanted`.

    Raises:
        ValueError: `wanted` is not above 0 and at most 1, or no full node has a place.
    """
    if not 0 < wanted <= 1:
        raise ValueError(f"an efficiency of {wanted} is wanted: give a number above 0 and at most 1")
    most = most_ranks // network.ranks_per_node
    least = -(-(strategy.servers + 1) // network.ranks_per_node)
    if most < least:
        raise ValueError(f"{most_ranks} ranks do not fill {least} nodes of {network.ranks_per_node} ranks")

    def at(nodes: Sequence[int]) -> list[Predicted]:
        return predict(profile, network, [n * network.ranks_per_node for n in nodes], strategy, scaling, seed)

    known = {point.nodes: point for point in at(_spread_out(least, most))}
    good = [nodes for nodes, point in known.items() if point.efficiency >= wanted]
    if good and max(good) < most:
        low = max(good)
        _bisect(low, min(nodes for nodes in known if nodes > low), wanted, lambda nodes: at([nodes])[0], known)
        good = [nodes for nodes, point in known.items() if point.efficiency >= wanted]
    best = max(good, default=None)
    curve = tuple(known[nodes] for nodes in sorted(known))
    return Answer(wanted, None if best is None else known[best], best == most, curve)


def _spread_out(least: int, most: int) -> list[int]:
    """All of the first numbers, then powers of two and some between them, and the last."""
    found = {least, most, *range(least, min(most, least + 8))}
    found |= {n for power in range(most.bit_length()) for n in (1 << power, 3 << power >> 1) if least <= n <= most}
    return sorted(found)


def _bisect(low: int, high: int, wanted: float, at: Callable[[int], Predicted], known: dict[int, Predicted]) -> None:
    """Adds what lies between a number of nodes that reaches `wanted` and one that does not."""
    while high - low > 1:
        middle = (low + high) // 2
        known[middle] = at(middle)
        low, high = (middle, high) if known[middle].efficiency >= wanted else (low, middle)
