"""What training reaches on more ranks than there are: steps, exchanges and stragglers put together. Pure.

predict(profile, network, [1, 2, …, 1024], Strategy("ring"))
how_many_nodes(profile, network, Strategy("ring"), wanted=0.8)

The same seed gives the same numbers.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from scale.network import Network, allreduce_secs, server_secs

QUARTILES_OF_NORMAL = 1.3489795003921634
"""The quartiles of a normal distribution lie so many standard deviations apart."""
MOST_RANKS = 1024
STEPS, FEWEST_STEPS, MOST_EXCHANGES = 200, 20, 20_000
"""Of a simulation: steps of each rank; of asynchronous workers fewer, so that there are so many exchanges at most."""
WARM_UP = 0.25
"""So many of the exchanges of a simulation come before the counting begins."""


@dataclass(frozen=True)
class StepTimes:
    """How steps of one rank vary: log-normal, as times that several causes multiply are.

    Attributes:
        median_secs: Of one step. sigma: Standard deviation of the logarithm; 0: all steps take the same.
    """

    median_secs: float
    sigma: float = 0.0

    @property
    def mean_secs(self) -> float:
        """Of many steps."""
        return self.median_secs * math.exp(self.sigma**2 / 2)

    def draw(self, seed: int, *shape: int) -> np.ndarray:
        """Times of `shape`, float64."""
        drawn: np.ndarray = self.median_secs * np.exp(self.sigma * np.random.default_rng(seed).standard_normal(shape))
        return drawn


@dataclass(frozen=True)
class StepProfile:
    """What a step of one rank is made of, measured. An exchange begins when all gradients are there.

    Attributes:
        compute: Forward and backward pass, with their spread; fixed_secs: input, applying, and what else there is.
        gradient_bytes: That each rank sends. examples: Of a step of one rank.
        apply_secs_per_byte: That a parameter server takes to apply gradients.
    """

    compute: StepTimes
    gradient_bytes: float
    examples: float = 1.0
    fixed_secs: float = 0.0
    apply_secs_per_byte: float = 0.0

    @property
    def single_secs(self) -> float:
        """A step of one rank that exchanges nothing, on average."""
        return self.compute.mean_secs + self.fixed_secs

    def with_batch(self, share: float) -> StepProfile:
        """The same with a batch that is `share` times as large; what is fixed stays."""
        compute = replace(self.compute, median_secs=self.compute.median_secs * share)
        return replace(self, compute=compute, examples=self.examples * share)


@dataclass(frozen=True)
class Strategy:
    """How gradients are exchanged.

    Attributes:
        way: Of an allreduce; or through parameter servers, which train nothing themselves, asynchronously.
        servers: So many of the ranks; 0 with an allreduce.
    """

    way: Literal["ring", "hierarchical", "parameter server"]
    servers: int = 0

    def __str__(self) -> str:
        if not self.servers:
            return f"{self.way} allreduce"
        return f"{'parameter server' if self.servers == 1 else f'{self.servers} parameter servers'}, asynchronous"


@dataclass(frozen=True)
class Predicted:
    """What so many ranks reach.

    Attributes:
        step_secs: Between two steps of a worker.
        examples_per_sec: Of all ranks. efficiency: That over so many times what one rank alone reaches; parameter
            servers count as ranks.
    """

    ranks: int
    nodes: int
    step_secs: float
    examples_per_sec: float
    efficiency: float

    def __str__(self) -> str:
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        return f"{nodes} ({'1 rank' if self.ranks == 1 else f'{self.ranks} ranks'})"


def predict(
    profile: StepProfile, network: Network, counts: Sequence[int], strategy: Strategy, strong: bool = False
) -> list[Predicted]:
    """What each of `counts` ranks reaches, which leave a worker beside the servers.

    Args:
        strong: The batch of one rank is shared out, and so is computing; what is fixed stays. Else each rank has it.
    """
    times = StepTimes(1.0, profile.compute.sigma)
    relative = slowest_of_each(times, max(counts))
    # Few draws have a mean of their own: what is simulated for one rank is made its known mean.
    slowest = relative / relative[0] * times.mean_secs
    alone = profile.examples / profile.single_secs
    found = []
    for ranks in counts:
        workers = ranks - strategy.servers
        own = profile.with_batch(1 / workers) if strong else profile
        if strategy.servers:
            step = _asynchronous_secs(own, network, ranks, strategy.servers)
        else:
            straggling = max(0.0, own.compute.median_secs * float(slowest[ranks - 1]) - own.compute.mean_secs)
            step = own.single_secs + allreduce_secs(strategy.way, network, ranks, own.gradient_bytes) + straggling
            step = own.single_secs if ranks == 1 else step
        rate = workers * own.examples / step
        found.append(Predicted(ranks, network.nodes(ranks), step, rate, rate / (ranks * alone)))
    return found


def _asynchronous_secs(profile: StepProfile, network: Network, ranks: int, servers: int) -> float:
    workers = ranks - servers
    wire, service = server_secs(network, ranks, servers, profile.gradient_bytes, profile.apply_secs_per_byte)
    # What is fixed does not vary.
    median = profile.compute.median_secs + profile.fixed_secs
    times = StepTimes(median, profile.compute.sigma * profile.compute.median_secs / median)
    steps = max(FEWEST_STEPS, min(STEPS, MOST_EXCHANGES // workers))
    return workers / simulate_async(times, workers, wire, [service] * servers, steps=steps)


def slowest_of_each(times: StepTimes, most: int, seed: int = 0, steps: int = STEPS) -> np.ndarray:
    """What a step takes for the slowest of n ranks, mean of `steps` steps: float64 [most], for n = 1 to `most`.

    Every step ends when its last rank does. All n share the same draws, so a rank more never makes a step shorter.
    """
    means: np.ndarray = np.maximum.accumulate(times.draw(seed, most, steps), axis=0).mean(axis=1)
    return means


def simulate_async(
    times: StepTimes, workers: int, wire_secs: float, service_secs: Sequence[float], seed: int = 0, steps: int = STEPS
) -> float:
    """Exchanges a second of workers that compute, then exchange with all servers, which serve one at a time.

    Args:
        times: Of computing. wire_secs: That the worker's own link takes for its messages to all servers.
        service_secs: That an exchange keeps each of the servers busy, one number a server.
        steps: Of each worker, on average.
    """
    total = workers * steps
    first = int(total * WARM_UP)
    computing = times.draw(seed, total + workers)
    services = np.asarray(service_secs, np.float64)
    free = np.zeros(len(services))
    arrivals = [(float(computing[worker]), worker) for worker in range(workers)]
    heapq.heapify(arrivals)
    ends = np.empty(total)
    for number in range(total):
        now, worker = heapq.heappop(arrivals)
        free = np.maximum(free, now) + services
        ends[number] = max(now + wire_secs, float(free.max()))
        heapq.heappush(arrivals, (ends[number] + float(computing[workers + number]), worker))
    ends.sort()
    return (total - first) / float(ends[-1] - ends[first - 1])


@dataclass(frozen=True)
class Answer:
    """How many nodes are worth asking for.

    Attributes:
        found: The largest count whose efficiency is `wanted` or more; None: there is none.
        at_most: Whether more were not looked at, rather than found to be worse. best: The most efficient count.
    """

    wanted: float
    found: Predicted | None
    at_most: bool
    best: Predicted

    def __str__(self) -> str:
        if self.found is None:
            best = f"the best is {self.best.efficiency:.0%} on {self.best}"
            return f"no number of nodes reaches an efficiency of {self.wanted:.0%}; {best}"
        more = "; more were not looked at" if self.at_most else ""
        return f"{self.found}: efficiency {self.found.efficiency:.0%}, {self.wanted:.0%} wanted{more}"


def how_many_nodes(
    profile: StepProfile, network: Network, strategy: Strategy, wanted: float, most_ranks: int = MOST_RANKS
) -> Answer:
    """The largest number of full nodes that reaches the efficiency `wanted` of an allreduce, in weak scaling."""
    each = network.ranks_per_node
    curve = predict(profile, network, range(each, max(most_ranks, each) + 1, each), strategy)
    found = next((point for point in reversed(curve) if point.efficiency >= wanted), None)
    return Answer(wanted, found, found is curve[-1], max(curve, key=lambda point: point.efficiency))
