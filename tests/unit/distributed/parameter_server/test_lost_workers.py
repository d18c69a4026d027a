"""Tickets of workers that are lost: whoever dies when, exactly as many steps are made as were asked for."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.distributed.parameter_server import window_layout as at
from hpc_train.distributed.parameter_server.clocks import may_begin
from hpc_train.distributed.parameter_server.lost_workers import Deals, LostWorkers
from hpc_train.distributed.parameter_server.window_layout import server_layout
from hpc_train.distributed.partition import VariableSpec, partition


class Job:
    """Workers and a server that move one action at a time, in any order, some of which die."""

    def __init__(self, workers: int, tickets: int, bound: int | None) -> None:
        self.control, self.waits = np.zeros(at.APPLIED + workers, np.int64), np.zeros(workers, np.int64)
        self.deals, self.bound, self.applied = Deals(self.control, self.waits, tickets), bound, [0] * workers
        self.dead: set[int] = set()
        self.training = set(range(workers))
        self.state: list[tuple[str, int]] = [("draws", 0)] * workers

    def slowest(self) -> int:
        return min((self.applied[w] for w in self.training if not self.waits[w]), default=2**62)

    def move(self, worker: int) -> None:
        state, ticket = self.state[worker]
        if state == "draws":
            self.state[worker] = ("has", int(self.control[at.TICKETS]))
            self.control[at.TICKETS] += 1
        elif state == "computes":
            self.applied[worker] += 1
            self.state[worker] = ("draws", 0)
        elif self.control[at.STOP]:
            self.training.discard(worker)
        elif ticket >= self.control[at.LIMIT]:
            self.waits[worker] = ticket + 1
        elif self.waits[worker]:
            self.waits[worker] = 0
        elif may_begin(self.applied[worker], self.slowest(), self.bound):
            self.state[worker] = ("computes", ticket)


@given(st.integers(2, 5), st.integers(0, 30), st.sampled_from([None, 1, 3]), st.integers(0, 10**9))
def test_as_many_steps_as_tickets_whoever_dies(workers: int, tickets: int, bound: int | None, seed: int) -> None:
    """Each worker but one may die, at any moment, and is found out at another."""
    draw, job = random.Random(seed), Job(workers, tickets, bound)
    mortal = draw.sample(range(workers), draw.randrange(workers))
    for _ in range(20_000):
        if not job.training:
            break
        worker = draw.randrange(workers)
        if worker in mortal and draw.random() < 0.02:
            job.dead.add(worker)
        if worker not in job.dead:
            if worker in job.training:
                job.move(worker)
        elif draw.random() < 0.1:
            job.training.discard(worker)
        if draw.random() < 0.3:
            job.deals.deal(sum(job.applied), job.training)
    assert not job.training, "nobody waits for ever"
    assert sum(job.applied) == tickets


class Windows:
    """The memory of several servers."""

    def __init__(self, sizes: list[int], shared: bool) -> None:
        self.memory, self.shared = [np.zeros(size, np.uint8) for size in sizes], shared

    def words(self, rank: int, offset: int, count: int = 1) -> np.ndarray:
        return self.memory[rank][offset : offset + 8 * count].view(np.int64).copy()

    def put(self, array: np.ndarray, rank: int, offset: int) -> None:
        self.memory[rank][offset : offset + array.size] = array

    def replace(self, rank: int, offset: int, value: int) -> None:
        self.memory[rank][offset : offset + 8].view(np.int64)[0] = value

    def flush(self, rank: int) -> None:
        pass


@pytest.mark.parametrize("shared", [True, False])
def test_a_gradient_that_not_all_servers_know_of_is_announced_to_them(shared: bool) -> None:
    """The worker dies between its third push to the first server and that to the second, which it had made wait."""
    plan = partition([VariableSpec((40,), np.dtype(np.float64)), VariableSpec((40,), np.dtype(np.float64))], 2)
    layouts = [server_layout(plan, server, 2, 0, 64) for server in range(2)]
    window, worker = Windows([layout.nbytes for layout in layouts], shared), 1
    for server, flag in ((0, 3), (1, 2)):
        window.replace(server, layouts[server].header(worker), flag)
        window.replace(server, layouts[server].word(at.APPLIED + worker), 2)
    window.replace(1, layouts[1].header(worker) + at.HELD * at.WORD, 1)
    lost = LostWorkers(window, layouts)  # type: ignore[arg-type]
    lost.add(worker)
    found: list[list[tuple[int, int]]] = [[], []]
    for _ in range(4):
        left = lost.go_on()
        for server in range(2):
            header = window.words(server, layouts[server].header(worker), at.HEADER_WORDS)
            assert not header[at.HELD]
            if not found[server] or found[server][-1][0] != header[at.FLAG]:
                found[server].append((int(header[at.FLAG]), int(header[at.KIND])))
            window.replace(server, layouts[server].word(at.APPLIED + worker), int(header[at.FLAG]))  # it takes it
    assert not left
    assert found[0] == [(3, at.GRADIENT), (4, at.LOST)]
    assert found[1] == [(3, at.GRADIENT if shared else at.BAD), (4, at.LOST)]
