"""What stragglers cost, by discrete-event simulation. Pure; the same seed gives the same numbers."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scale_model.fit import StepTimes

STEPS = 200


def slowest_of_each(times: StepTimes, most: int, seed: int, steps: int = STEPS) -> np.ndarray:
    """What a step takes for the slowest of n ranks, mean of `steps` steps: float64 [most], for n = 1 to `most`.

    Every step ends when its last rank does. All n share the same draws, so a rank more never makes a step shorter.
    """
    drawn = times.draw(np.random.default_rng(seed), (most, steps))
    means: np.ndarray = np.maximum.accumulate(drawn, axis=0).mean(axis=1)
    return means


@dataclass(frozen=True)
class AsyncRun:
    """What asynchronous workers reached.

    Attributes:
        exchanges_per_sec: Of all workers. waiting_secs: Mean that an exchange took beyond what it takes a worker alone.
    """

    exchanges_per_sec: float
    waiting_secs: float


def simulate_async(
    times: StepTimes,
    workers: int,
    wire_secs: float,
    service_secs: Sequence[float],
    seed: int,
    steps: int = STEPS,
    warm_up: float = 0.25,
) -> AsyncRun:
    """Workers that compute, then exchange with all servers, each of which serves one at a time, first come, first.

    Args:
        times: Of computing. wire_secs: That the worker's own link takes for its messages to all servers.
        service_secs: That an exchange keeps each of the servers busy, one number a server.
        steps: Of each worker, on average. warm_up: This share of all exchanges comes before the counting begins.

    Raises:
        ValueError: There is no worker or no server.
    """
    if workers < 1 or not len(service_secs):
        raise ValueError(f"{workers} workers and {len(service_secs)} servers: there must be one of each at least")
    random = np.random.default_rng(seed)
    total = workers * steps
    first = int(total * warm_up)
    computing = times.draw(random, (total + workers,))
    services = np.asarray(service_secs, np.float64)
    free = np.zeros(len(services))
    alone = max(wire_secs, float(services.max()))
    arrivals = [(float(computing[worker]), worker) for worker in range(workers)]
    heapq.heapify(arrivals)
    waited = 0.0
    ends = np.empty(total)
    for number in range(total):
        now, worker = heapq.heappop(arrivals)
        free = np.maximum(free, now) + services
        end = max(now + wire_secs, float(free.max()))
        ends[number] = end
        if number >= first:
            waited += end - now - alone
        heapq.heappush(arrivals, (end + float(computing[workers + number]), worker))
    ends.sort()
    counted = total - first
    begin = ends[first - 1] if first else 0.0
    return AsyncRun(counted / float(ends[-1] - begin), waited / counted)
