from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train.distributed.parameter_server.clocks import NOBODY
from hpc_train.distributed.parameter_server.server import Applied, Server
from hpc_train.distributed.parameter_server.window_layout import (
    APPLIED,
    GPU,
    HEAD,
    OUT_OF_ROUNDS,
    PUBLICATION,
    RELEASED,
    SLOWEST,
    SPENT,
    STATE_READY,
    STATE_WANTED,
    STOP,
    Mailbox,
    Rows,
    ServerLayout,
    control_words,
    server_layout,
)
from hpc_train.distributed.parameter_server.worker import Prefetch, Worker
from hpc_train.distributed.partition import Partition, VariableSpec, partition
from hpc_train.distributed.tensors import aligned_zeros
from tests.support import examples

CARRIED = 8
PLAN = partition([VariableSpec((40,), np.dtype(np.float64)), VariableSpec((20, 8), np.dtype(np.float64), rows=True)], 1)


class Memory:
    """Stands in for the window of a single server in this process: what is asked for is done at once."""

    shared = True

    def __init__(self, nbytes: int) -> None:
        self.memory = aligned_zeros(nbytes)
        self.at_sync: Callable[[], None] = lambda: None
        self.half_way: Callable[[], None] = lambda: None

    def sync(self) -> None:
        self.at_sync()

    def put(self, array: np.ndarray, rank: int, offset: int) -> None:
        self.memory[offset : offset + array.size] = array

    def get(self, array: np.ndarray, rank: int, offset: int) -> None:
        half = array.size // 2 // 8 * 8
        array[:half] = self.memory[offset : offset + half]
        if array.size > HEAD:
            self.half_way()
        array[half:] = self.memory[offset + half : offset + array.size]

    def flush(self, rank: int) -> None:
        pass

    def add(self, rank: int, offset: int, value: int) -> int:
        word = self.memory[offset : offset + 8].view(np.int64)
        before = int(word[0])
        word[0] += value
        return before

    def replace(self, rank: int, offset: int, value: int) -> int:
        before = self.add(rank, offset, 0)
        self.memory[offset : offset + 8].view(np.int64)[0] = value
        return before

    def words(self, rank: int, offset: int, count: int = 1) -> np.ndarray:
        return self.memory[offset : offset + 8 * count].view(np.int64).copy()


class Sums:
    """Parameters from which the mean of the gradients is taken away, times a rate."""

    def __init__(self, plan: Partition) -> None:
        self.pieces = plan.pieces(0)
        self.arrays = [np.zeros(piece.shape, piece.dtype) for piece in self.pieces]
        self.calls: list[tuple[tuple[int, ...], float]] = []

    def bind(self, boxes: Sequence[Mailbox]) -> None:
        self.bound = list(boxes)

    def apply(self, boxes: Sequence[Mailbox], rate: float) -> None:
        self.calls.append((tuple(box.worker for box in boxes), rate))
        for box in boxes:
            for array, gradient in zip(self.arrays, box.gradients, strict=True):
                if isinstance(gradient, Rows):
                    n = int(gradient.count[0])
                    np.subtract.at(array, gradient.numbers[:n], rate / len(boxes) * gradient.values[:n])
                else:
                    array -= rate / len(boxes) * gradient

    def write_parameters(self, into: np.ndarray) -> None:
        for array, piece in zip(self.arrays, self.pieces, strict=True):
            piece.view(into)[...] = array

    def write_state(self, into: np.ndarray) -> None:
        into[:] = 7


class Quiet(Exception):
    """The server has nothing to do."""


class Log:
    """What a server tells."""

    def __init__(self) -> None:
        self.updates: list[Applied] = []

    def applying(self):
        pass

    def applied(self, update: Applied) -> None:
        self.updates.append(update)

    def idle(self) -> None:
        raise Quiet


def spent_of(worker: int) -> dict[str, float]:
    """What a worker tells of its time, and of a GPU if it has one."""
    names = [*SPENT, *(GPU if worker else ())]
    return {name: (worker + number) / 10 for number, name in enumerate(names)}


class Scene:
    """A server and its workers, in one process and in any order."""

    def __init__(self, workers: int, bound: int | None = None, scale: bool = False) -> None:
        self.layout: ServerLayout = server_layout(PLAN, 0, workers, CARRIED, 0)
        self.memory, self.shard, self.log = Memory(self.layout.nbytes), Sums(PLAN), Log()
        self.server = Server(self.memory, self.layout, PLAN, 0, self.shard, CARRIED, bound, scale)  # type: ignore[arg-type]
        self.workers = [Worker(self.memory, [self.layout], PLAN, w) for w in range(workers)]  # type: ignore[arg-type]
        self.control = control_words(self.memory.memory, self.layout)

    def serve(self) -> None:
        """Until there is nothing to do."""
        with contextlib.suppress(Quiet):
            self.server.serve(self.log)

    def pull(self, worker: int) -> list[np.ndarray]:
        self.workers[worker].versions = self.workers[worker].pull()
        return [piece.view(self.workers[worker].arena) for piece in PLAN.pieces(0)]

    def push(self, worker: int, value: float, rows: Sequence[int] = (), loss: float = 1.0, examples: int = 4) -> None:
        gradients = [np.full(40, value), (np.array(rows, np.int64), np.full((len(rows), 8), value))]
        self.workers[worker].push(
            gradients, [np.full(CARRIED, worker + 10, np.uint8)], loss, examples, spent_of(worker)
        )

    def taken(self, worker: int) -> bool:
        return bool(self.control[APPLIED + worker] == self.workers[worker].pushed)


@settings(max_examples=examples(60))
@given(st.integers(1, 4), st.data())
def test_parameters_are_the_sum_of_all_gradients(workers: int, data: st.DataObject) -> None:
    scene = Scene(workers)
    dense, rows, pushes, pulled = 0.0, np.zeros((20, 8)), [0] * workers, [0] * workers
    staleness = []
    for _ in range(data.draw(st.integers(0, 12))):
        for worker in sorted(data.draw(st.sets(st.integers(0, workers - 1)))):
            if data.draw(st.booleans()):
                scene.pull(worker)
                pulled[worker] = scene.workers[worker].versions[0]
            value = float(data.draw(st.integers(-9, 9)))
            touched = data.draw(st.lists(st.integers(0, 19), max_size=20, unique=True))
            scene.push(worker, value, touched)
            dense -= value
            rows[touched] -= value
            pushes[worker] += 1
        scene.serve()
        for update in scene.log.updates[len(staleness) :]:
            staleness.append(len(staleness) - pulled[update.workers[0]])
        arrays = scene.pull(0)
        pulled[0] = scene.workers[0].versions[0]
        assert (arrays[0] == dense).all()
        assert (arrays[1] == rows).all()
        assert scene.server.version == scene.workers[0].versions[0] == sum(pushes)
        assert all(scene.taken(worker) for worker in range(workers))
    assert scene.server.clocks.applied == pushes
    assert [update.staleness for update in scene.log.updates] == staleness
    assert all(rate == 1 for _, rate in scene.shard.calls)


def test_workers_are_served_in_turn() -> None:
    scene = Scene(3)
    for worker in range(3):
        scene.pull(worker)
    for pushes in ([1], [0, 1, 2], [0, 2], [0, 1, 2]):
        for worker in pushes:
            scene.push(worker, 1.0)
        scene.serve()
    order = [workers[0] for workers, _ in scene.shard.calls]
    assert order == [1, 2, 0, 1, 2, 0, 1, 2, 0]


def test_what_an_update_tells() -> None:
    scene = Scene(2)
    scene.pull(1)
    scene.push(1, 2.0, loss=0.25, examples=32)
    scene.serve()
    assert scene.log.updates == [Applied((1,), 0, 0.25, 32, (spent_of(1),), ())]
    assert scene.server.carried[0] is None
    assert scene.server.carried[1].tolist() == [11] * CARRIED  # type: ignore[union-attr]
    assert scene.control[SLOWEST] == 0
    scene.workers[1].leave()
    scene.serve()
    assert scene.server.clocks.training == {0}
    scene.workers[0].leave()
    scene.server.serve(scene.log)  # comes back: all have left
    assert scene.control[SLOWEST] == NOBODY
    assert scene.taken(0) and scene.taken(1)
    assert scene.server.version == 1


def test_tickets_and_stopping() -> None:
    scene = Scene(2)
    assert [scene.workers[w].take_ticket() for w in (0, 1, 1, 0)] == [0, 1, 2, 3]
    assert not scene.server.signalled
    assert not scene.workers[1].state().stop
    scene.workers[0].ask_to_stop()
    assert scene.server.signalled
    assert scene.workers[1].state().stop


def test_bound_0_averages_a_gradient_of_each_worker() -> None:
    scene = Scene(3, bound=0)
    for round_ in range(4):
        for worker in range(3):
            assert scene.pull(worker)[0][0] == -2.0 * round_
        for worker in (2, 0):
            scene.push(worker, worker + 1.0, loss=worker, examples=worker + 1)
            scene.serve()
            assert scene.server.version == round_, "the round is not over"
            assert not scene.taken(worker)
        scene.push(1, 2.0, loss=1, examples=2)
        scene.serve()
        assert all(scene.taken(worker) for worker in range(3))
        assert scene.log.updates[-1] == Applied((0, 1, 2), 0, 1.0, 6, tuple(map(spent_of, range(3))), ())
    assert scene.shard.calls == [((0, 1, 2), 1.0)] * 4
    assert scene.server.clocks.applied == [4, 4, 4]
    assert scene.server.clocks.histogram == {0: 12}
    assert scene.control[SLOWEST] == 4


@pytest.mark.parametrize("leaves_first", [False, True])
def test_a_round_that_nobody_can_complete_is_dismissed(leaves_first: bool) -> None:
    scene = Scene(3, bound=0)
    acts = [lambda: scene.workers[2].leave(), lambda: scene.push(0, 5.0)]
    for act in acts if leaves_first else acts[::-1]:
        act()
        scene.serve()
    assert scene.taken(0), "it waits no longer"
    assert scene.taken(2)
    assert scene.control[STOP] == OUT_OF_ROUNDS
    assert not scene.server.signalled
    assert scene.shard.calls == scene.log.updates == []
    assert scene.server.version == 0
    assert scene.server.clocks.applied == [0, 0, 0]
    assert scene.server.carried == [None] * 3
    # The third one finds out when it comes.
    scene.push(1, 5.0)
    scene.serve()
    assert scene.taken(1)
    for worker in (0, 1):
        scene.workers[worker].leave()
    scene.server.serve(scene.log)
    assert (scene.pull(0)[0] == 0).all()


def test_bound_0_goes_on_while_leaving_workers_have_no_open_round() -> None:
    scene = Scene(2, bound=0)
    scene.push(0, 1.0)
    scene.push(1, 3.0)
    scene.serve()
    for worker in range(2):
        scene.workers[worker].leave()
    scene.server.serve(scene.log)
    assert not scene.control[STOP]
    assert (scene.pull(0)[0] == -2).all()


def test_bad_gradients_are_counted_and_not_applied() -> None:
    scene = Scene(2)
    scene.push(0, 1.0)
    scene.serve()
    scene.workers[1].push_bad(math.inf, 8, spent_of(5))
    scene.serve()
    assert scene.shard.calls == [((0,), 1.0)]
    assert scene.log.updates[1] == Applied((1,), 1, math.inf, 8, (spent_of(5),), (1,))
    assert scene.server.version == 2
    assert scene.server.clocks.applied == [1, 1]
    assert scene.server.carried[1] is None
    assert scene.taken(1)
    assert (scene.pull(1)[0] == -1).all()
    assert scene.workers[1].versions == [2]
    scene.push(1, 1.0)
    scene.serve()
    assert (scene.pull(1)[0] == -2).all()


def test_a_round_with_a_bad_gradient_is_left_out() -> None:
    scene = Scene(3, bound=0)
    scene.push(0, 1.0)
    scene.workers[1].push_bad(math.nan, 4, None)
    scene.push(2, 1.0)
    scene.serve()
    assert scene.shard.calls == []
    (update,) = scene.log.updates
    assert (update.workers, update.bad, update.examples) == ((0, 1, 2), (1,), 12)
    assert scene.server.version == 1
    assert scene.server.clocks.applied == [1, 1, 1]
    assert all(scene.taken(worker) for worker in range(3))


@pytest.mark.parametrize("scale", [False, True])
def test_the_rate_is_divided_by_the_staleness(scale: bool) -> None:
    scene = Scene(5, scale=scale)
    for worker in range(5):
        scene.pull(worker)
    for worker in range(5):
        scene.push(worker, 12.0)
        scene.serve()
    assert [update.staleness for update in scene.log.updates] == [0, 1, 2, 3, 4]
    rates = [1, 1, 1 / 2, 1 / 3, 1 / 4] if scale else [1] * 5
    assert [rate for _, rate in scene.shard.calls] == rates
    np.testing.assert_allclose(scene.pull(0)[0], -12 * sum(rates))


def test_publication_alternates_between_two_copies_and_marks_the_one_it_writes_first() -> None:
    scene = Scene(1)
    seen: list[tuple[int, list[int], list[int], list[float]]] = []

    def look() -> None:
        heads = [scene.memory.memory[start : start + HEAD].view(np.int64) for start in scene.layout.parameters]
        copies = [
            scene.memory.memory[start + HEAD : start + HEAD + 40 * 8].view(np.float64)
            for start in scene.layout.parameters
        ]
        assert all((copy == copy[0]).all() for copy in copies)
        seen.append(
            (
                int(scene.control[PUBLICATION]),
                [int(h[0]) for h in heads],
                [int(h[1]) for h in heads],
                [c[0] for c in copies],
            )
        )

    look()
    assert seen == [(1, [0, 1], [0, 0], [0, 0])]
    for value in (-1.0, -1.0):
        scene.push(0, value)
        scene.memory.at_sync = lambda: None
        published = int(scene.control[PUBLICATION])
        seen.clear()
        scene.memory.at_sync = look
        scene.serve()
        scene.memory.at_sync = lambda: None
        steps = [step for number, step in enumerate(seen) if number == 0 or step != seen[number - 1]]
        old, new = published % 2, (published + 1) % 2
        before, marked, written, shown = steps[:4]
        assert before[0] == marked[0] == written[0] == published
        assert shown[0] == published + 1
        assert (before[1][new], marked[1][new]) == (published - 1, published + 1), "marked first"
        assert marked[3] == before[3], "nothing is written before"
        assert (written[2][new], written[3][new]) == (published, published), "version and parameters"
        assert shown[1:] == written[1:]
        for step in steps:  # who reads the copy that is published is not disturbed
            assert (step[1][old], step[2][old], step[3][old]) == (published, published - 1, published - 1)


@pytest.mark.parametrize("publications", [0, 1, 2, 3])
def test_a_reader_that_copies_slowly_is_never_torn(publications: int) -> None:
    scene = Scene(2)
    scene.pull(0)
    interruptions = 0

    def interrupt() -> None:
        nonlocal interruptions
        interruptions += 1
        if interruptions <= 2:
            for _ in range(publications):
                scene.push(1, 1.0, range(20))
                scene.serve()

    scene.memory.half_way = interrupt
    arrays = scene.pull(0)
    version = scene.workers[0].versions[0]
    assert all((array == -version).all() for array in arrays)
    # The second of two publications goes where the reader is: it has to read again.
    assert interruptions == (1 if publications < 2 else 3)
    assert version == (0 if publications < 2 else 2 * publications)


def test_a_reader_meets_a_copy_that_is_just_being_written() -> None:
    scene = Scene(2)
    found: list[np.ndarray] = []

    def read() -> None:
        scene.memory.at_sync = lambda: None
        found.append(scene.pull(0)[0].copy())
        scene.memory.at_sync = read

    scene.push(1, 1.0)
    scene.memory.at_sync = read
    scene.serve()
    assert [array[0] for array in found] == sorted([array[0] for array in found], reverse=True)
    assert {array[0] for array in found} == {0.0, -1.0}
    assert all((array == array[0]).all() for array in found)


def test_prefetched_parameters_come_with_their_version() -> None:
    scene = Scene(2)
    scene.pull(0)
    scene.push(1, 1.0)
    scene.serve()
    ahead = Prefetch(scene.workers[0])
    ahead.begin()
    ahead.wait()
    assert scene.workers[0].versions == [0], "those that it computes with"
    ahead.take()
    assert scene.workers[0].versions == [1]
    assert (PLAN.pieces(0)[0].view(scene.workers[0].arena) == -1).all()


def test_a_failure_while_prefetching_is_raised_where_it_is_waited_for() -> None:
    scene = Scene(1)

    def fail() -> None:
        raise RuntimeError("the network is gone")

    scene.memory.half_way = fail
    ahead = Prefetch(scene.workers[0])
    ahead.begin()
    with pytest.raises(RuntimeError, match="the network is gone"):
        ahead.wait()


def test_another_server_hands_over_its_state_and_leaves_once_it_is_released_and_all_workers_have_left() -> None:
    plan = partition([VariableSpec((64,), np.dtype(np.float64), whole=True)] * 2, 2)
    layout = server_layout(plan, 1, 1, CARRIED, 100)
    memory = Memory(layout.nbytes)
    shard = Sums(partition([plan.variables[1]], 1))
    server = Server(memory, layout, plan, 1, shard)  # type: ignore[arg-type]
    control = control_words(memory.memory, layout)
    state = memory.memory[layout.state : layout.state + 100]
    told: list[tuple[int, int]] = []

    class Peer(Log):
        def idle(self) -> None:
            told.append((int(control[STATE_READY]), int(state.max())))
            if len(told) in (2, 5):
                state[:] = 0
                control[STATE_WANTED] += 1
            if len(told) == 7:
                control[RELEASED] = 1
            if len(told) == 9:  # its last word may come after the first server has heard it
                server.clocks.leave(0)

    server.serve(Peer(), until_released=True)
    assert told == [(0, 0), (0, 0), (1, 7), (1, 7), (1, 7), *[(2, 7)] * 4]
    assert control[STOP] == 0
