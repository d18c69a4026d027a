from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train.distributed.parameter_server.clocks import NOBODY, Clocks, may_begin, mean_of
from tests.support import examples, largest_staleness


class Simulated:
    """Workers and one server, whose next event somebody else chooses: any order that real ones could come to.

    A worker waits for the gate, pulls, and pushes; the server applies later. With prefetching, it begins with the
    parameters that were pulled while the gradient before was computed; with a depth, it begins so many gradients before
    it pushes one, where the gate lets it.
    """

    def __init__(self, workers: int, bound: int | None, prefetch: bool = False, depth: int = 0) -> None:
        self.clocks, self.bound, self.prefetch = Clocks(workers), bound, prefetch
        self.depth = depth
        self.version = 0
        self.workers = [self._working(worker) for worker in range(workers)]
        self.begun, self.pushed = [0] * workers, [0] * workers
        self.mailboxes: list[int | None] = [None] * workers

    def _working(self, worker: int) -> Iterator[None]:
        if self.depth:
            yield from self._working_ahead(worker)
        mine = self.version
        while True:
            while not may_begin(self.pushed[worker], self.clocks.slowest, self.bound):
                yield
            self.begun[worker] += 1
            while self.mailboxes[worker] is not None:
                yield
            pulled = self.version
            yield
            self.mailboxes[worker] = mine if self.prefetch else pulled
            self.pushed[worker] += 1
            mine = pulled
            yield
            while not self.prefetch and self.mailboxes[worker] is not None:
                yield

    def _working_ahead(self, worker: int) -> Iterator[None]:
        in_flight: list[int] = []
        while True:
            while len(in_flight) <= self.depth and may_begin(self.begun[worker], self.clocks.slowest, self.bound):
                self.begun[worker] += 1
                yield
                in_flight.append(self.version)
                yield
            if in_flight:
                self.mailboxes[worker] = in_flight.pop(0)
                self.pushed[worker] += 1
            yield
            while self.mailboxes[worker] is not None:
                yield

    def work(self, worker: int) -> None:
        """Lets a worker go on to its next event, if it may."""
        next(self.workers[worker])

    def apply(self, worker: int) -> None:
        """Lets the server apply what the worker has pushed, if it has."""
        pulled = self.mailboxes[worker]
        if pulled is not None:
            self.mailboxes[worker] = None
            self.clocks.tick(worker, self.version - pulled)
            self.version += 1

    def train(self, worker: int, gradients: int) -> None:
        """Lets one worker alone go on until so many of its gradients are applied."""
        for _ in range(100 * gradients):
            if self.clocks.applied[worker] < gradients:
                self.work(worker)
                self.apply(worker)


@settings(max_examples=examples(300))
@given(st.integers(1, 5), st.integers(0, 4), st.booleans() | st.integers(1, 4), st.data())
def test_staleness_is_bounded_whatever_the_workers_do(
    workers: int, bound: int, ahead: bool | int, data: st.DataObject
) -> None:
    prefetch, depth = ahead is True, 0 if isinstance(ahead, bool) else ahead
    simulated = Simulated(workers, bound, prefetch, depth)
    # Runs of one worker alone, so that it comes as far ahead as it may, between single events.
    events = st.tuples(st.integers(0, workers - 1), st.sampled_from([1, 1, 3, 60]), st.booleans())
    for worker, times, applies in data.draw(st.lists(events, max_size=60)):
        for _ in range(times):
            simulated.work(worker)
            if applies or times > 1:
                simulated.apply(worker)
            assert max(simulated.pushed) - simulated.clocks.slowest <= bound + 1
    assert max(simulated.clocks.histogram, default=0) <= largest_staleness(workers, bound, prefetch, depth)
    assert sum(simulated.clocks.histogram.values()) == simulated.version == sum(simulated.clocks.applied)


@settings(max_examples=examples(50))
@given(st.lists(st.integers(1, 50), min_size=2, max_size=5), st.integers(0, 4), st.booleans(), st.integers(0, 4))
def test_the_slowest_sets_the_pace_within_the_bound(paces: list[int], bound: int, prefetch: bool, depth: int) -> None:
    depth = 0 if prefetch else depth
    simulated = Simulated(len(paces), bound, prefetch, depth)
    for now in range(2000):
        for worker, pace in enumerate(paces):
            if now % pace == 0:
                simulated.work(worker)
                simulated.apply(worker)
    applied = simulated.clocks.applied
    assert max(applied) - min(applied) <= bound + 1
    assert min(applied) >= 2000 // max(paces) // 3 - 1 - depth, "nobody waits for ever"
    assert max(simulated.clocks.histogram) <= largest_staleness(len(paces), bound, prefetch, depth)


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("bound", [0, 1, 4])
def test_the_bound_is_reached(workers: int, bound: int) -> None:
    simulated = Simulated(workers, bound)
    simulated.train(0, bound)
    simulated.work(0)  # begins, at parameters to which nobody else has added anything
    for worker in range(1, workers):
        simulated.train(worker, 10 * bound + 10)
    for _ in range(10):  # those who waited for one another
        for worker in range(1, workers):
            simulated.train(worker, simulated.clocks.applied[worker] + 1)
    simulated.work(0)
    simulated.apply(0)
    assert max(simulated.clocks.histogram) == largest_staleness(workers, bound) == (workers - 1) * (2 * bound + 1)


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=300))
def test_bound_0_is_in_rounds(workers: int, events: list[tuple[int, bool]]) -> None:
    simulated = Simulated(workers, 0)
    for worker, applies in events:
        (simulated.apply if applies else simulated.work)(worker % workers)
        # Whoever computes its gradient of a round has seen the whole round before.
        assert max(simulated.begun) <= simulated.clocks.slowest + 1
    assert max(simulated.clocks.histogram, default=0) <= workers - 1


def test_without_a_bound_one_worker_may_leave_the_others_behind() -> None:
    simulated = Simulated(3, None)
    simulated.work(0)
    simulated.train(1, 50)
    simulated.work(0)
    simulated.apply(0)
    assert simulated.clocks.applied == [1, 50, 0]
    assert simulated.clocks.histogram == {0: 50, 50: 1}


def test_who_leaves_is_not_waited_for() -> None:
    clocks = Clocks(3)
    assert clocks.slowest == 0
    for worker in (0, 0, 1):
        clocks.tick(worker, 2)
    assert (clocks.applied, clocks.slowest) == ([2, 1, 0], 0)
    clocks.leave(2)
    assert (clocks.training, clocks.slowest) == ({0, 1}, 1)
    clocks.leave(1)
    clocks.leave(1)
    assert clocks.slowest == 2
    clocks.leave(0)
    assert clocks.slowest == NOBODY
    assert clocks.training == frozenset()
    assert clocks.histogram == {2: 3}
    assert may_begin(10**9, clocks.slowest, 0)


@given(st.integers(0, 100), st.integers(0, 100), st.none() | st.integers(0, 100))
def test_may_begin(clock: int, slowest: int, bound: int | None) -> None:
    assert may_begin(clock, slowest, bound) == (bound is None or slowest >= clock - bound)


def test_one_worker_is_never_stale_but_by_its_own_prefetching() -> None:
    assert largest_staleness(1, 7) == 0
    assert largest_staleness(1, 7, prefetch=True) == 1


@pytest.mark.parametrize(("bound", "depth"), [(7, 2), (1, 3), (0, 1), (None, 4)])
def test_one_worker_is_as_stale_as_gradients_of_its_own_are_in_flight(bound: int | None, depth: int) -> None:
    simulated = Simulated(1, bound, depth=depth)
    simulated.train(0, 20)
    largest = depth if bound is None else largest_staleness(1, bound, depth=depth)
    assert largest == min(depth, depth if bound is None else bound)
    assert simulated.clocks.histogram == {**dict.fromkeys(range(largest), 1), largest: 20 - largest}


def test_mean_staleness() -> None:
    assert mean_of(Counter()) == 0
    assert mean_of(Counter({0: 2, 3: 1, 5: 1})) == 2
