"""Who is how far, and how stale a gradient is. Pure.

A worker's clock is the number of its gradients that have been applied. Stale synchronous parallel with bound s: a
worker begins its next gradient when no other that still trains is more than s behind it (Ho et al., "More effective
distributed ML via a stale synchronous parallel parameter server", NIPS 2013).

Staleness is measured in updates: how many were applied between the parameters that a gradient was computed at and
itself (as in Zhang et al., "Staleness-aware async-SGD for distributed deep learning", IJCAI 2016). The bound s keeps it
at or below (workers - 1) x (2 s + 1); with d steps in flight a worker's own count, too: the smaller of d and s more.
"""

from __future__ import annotations

from collections import Counter

NOBODY = 2**62
"""The slowest clock where no worker trains any more."""


class Clocks:
    """The workers' clocks at a server, and a histogram of staleness.

    Attributes:
        histogram: Gradients by staleness, since the run began.
        applied: Gradients by worker.
    """

    def __init__(self, workers: int) -> None:
        self.applied = [0] * workers
        self.histogram: Counter[int] = Counter()
        self._training = set(range(workers))

    def tick(self, worker: int, staleness: int) -> None:
        """A gradient of `worker` was applied (or left out for good)."""
        self.applied[worker] += 1
        self.histogram[staleness] += 1

    def leave(self, worker: int) -> None:
        """`worker` trains no more; nobody waits for it from now on."""
        self._training.discard(worker)

    @property
    def training(self) -> frozenset[int]:
        """The workers that have not left."""
        return frozenset(self._training)

    @property
    def slowest(self) -> int:
        """The smallest clock of those that train."""
        return min((self.applied[worker] for worker in self._training), default=NOBODY)


def may_begin(clock: int, slowest: int, bound: int | None) -> bool:
    """Whether a worker with `clock` gradients behind it may begin another; `bound` None: always."""
    return bound is None or clock - slowest <= bound


def mean_of(histogram: Counter[int]) -> float:
    """The mean staleness; 0 before the first gradient."""
    count = sum(histogram.values())
    return sum(staleness * n for staleness, n in histogram.items()) / count if count else 0.0
