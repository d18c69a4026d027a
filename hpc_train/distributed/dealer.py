"""Blocks of work are dealt to ranks while they work: one that is slow takes fewer of them."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hpc_train.distributed.roles import CHIEF_RANK
from hpc_train.distributed.world import World

QUESTION, ANSWER = 4711, 4712
"""Tags of messages."""
PART = 8
"""A rank is given an eighth of its share at a time: few messages for many blocks, and small runs towards the end."""
IDLE_SECS = 0.0005
"""Between two looks for a message: who waits for it in MPI takes a core from the others."""
WAIT_SECS = 1.0
Run = tuple[int, int]
"""Blocks from a first one up to an end, which is not one of them."""
DONE: Run = (0, 0)


class Shares:
    """Which blocks each rank takes next. Threads may share it.

    Each rank begins with an even share of blocks that lie together, and takes them in order. One that has none left
    takes half of those of the rank that has most, from their end.

    Args:
        blocks: How many there are. ranks: how many take some.
    """

    def __init__(self, blocks: int, ranks: int) -> None:
        bounds = [blocks * rank // ranks for rank in range(ranks + 1)]
        self._left: list[Run] = list(itertools.pairwise(bounds))
        self._lock = threading.Lock()

    def take(self, rank: int) -> Run:
        """The next run of blocks for a rank; DONE where there are no more."""
        with self._lock:
            return self._take(rank)

    def _take(self, rank: int) -> Run:
        first, end = self._left[rank]
        if first == end:
            most = max(range(len(self._left)), key=lambda other: self._left[other][1] - self._left[other][0])
            begin, end = self._left[most]
            first = (begin + end) // 2
            self._left[most] = (begin, first)
        cut = first - (first - end) // PART
        self._left[rank] = (cut, end)
        return (first, cut) if first < cut else DONE

    def end(self) -> None:
        """There are no more."""
        with self._lock:
            self._left = [DONE for _ in self._left]


def deal(world: World, blocks: int, work: Callable[[int], None]) -> None:
    """Has `work` called with the number of each block on one of the ranks. Collective; `work` does not call MPI.

    The chief works too; a thread of it answers the others, and is the only one that calls MPI there meanwhile. They ask
    for their next run before they work on the last block of the one that they have.

    Raises:
        As World.each, where `work` raises on a rank; the others are given no more then.
    """
    shares = Shares(blocks, world.size)
    world.each(lambda: _deal(world, shares, work) if world.is_chief else _take(world, work))


def _deal(world: World, shares: Shares, work: Callable[[int], None]) -> None:
    """The chief's part."""
    with _Answers(world, shares) as answers:
        while (run := shares.take(CHIEF_RANK)) != DONE:
            for block in range(*run):
                if answers.failed:
                    break
                work(block)


class _Answers:
    """Gives other ranks what they ask for, their next run of blocks, in a thread. A context manager.

    Leaving it waits until all of them know that there are no more; where the block inside raises, that is at once.

    Attributes:
        failed: Whether one of them has raised.
    """

    def __init__(self, world: World, shares: Shares) -> None:
        self._comm: Any = world.comm
        self._shares, self._asking, self.failed = shares, world.size - 1, False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="hpc_train-dealer", daemon=True)

    def __enter__(self) -> _Answers:
        if self._asking:
            self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        error: BaseException | None = None
        if kind is not None:
            self._shares.end()
        while self._asking and self._error is None:
            try:
                self._thread.join(WAIT_SECS)
            except BaseException as interrupt:  # the others are to hear of it, too
                self._shares.end()
                error = interrupt
        if (error := error or self._error) is not None and kind is None:
            raise error

    def _run(self) -> None:
        try:
            while self._asking:
                if not self._answer():
                    time.sleep(IDLE_SECS)
        except BaseException as error:  # raised where the chief waits for this thread
            self._error = error

    def _answer(self) -> bool:
        """Answers a question; False where there is none."""
        if not self._comm.Iprobe(tag=QUESTION):
            return False
        question = np.empty(2, np.int64)
        self._comm.Recv(question, tag=QUESTION)
        asker, has_failed = int(question[0]), bool(question[1])
        if has_failed:
            self.failed = True
            self._shares.end()
        run = self._shares.take(asker)
        if not has_failed:
            self._comm.Send(np.array(run, np.int64), dest=asker, tag=ANSWER)
        self._asking -= run == DONE
        return True


def _take(world: World, work: Callable[[int], None]) -> None:
    """The part of all others."""
    comm: Any = world.comm

    def ask(failed: bool = False) -> None:
        comm.Send(np.array([world.rank, failed], np.int64), dest=CHIEF_RANK, tag=QUESTION)

    def answer() -> Run:
        run = np.empty(2, np.int64)
        world.on_wait(True)
        while not comm.Iprobe(source=CHIEF_RANK, tag=ANSWER):
            time.sleep(IDLE_SECS)
        comm.Recv(run, source=CHIEF_RANK, tag=ANSWER)
        world.on_wait(False)
        return int(run[0]), int(run[1])

    ask()
    asked = True
    try:
        while (run := answer()) != DONE:
            asked = False
            for block in range(*run):
                if block == run[1] - 1:
                    ask()
                    asked = True
                work(block)
    except BaseException:
        if not asked or answer() != DONE:
            ask(failed=True)
        raise
