"""Times ways in turns on all ranks, A B B A: each rank does the same at the same time. Collective."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

MOST_ITERATIONS = 1000
WARM_UPS = 10
"""Calls before each repeat, or as many as it has: Horovod's first ones, once it has started, are slow."""


class WrongResultError(RuntimeError):
    """An operation gave a wrong result."""


@dataclass(frozen=True)
class Way:
    """One way to do an operation.

    Attributes:
        run: Does it once. check: Does it once more, on data of its own, and returns how many numbers are wrong.
        horovod: Whether Horovod has to run meanwhile; else it must not.
    """

    name: str
    run: Callable[[], object]
    check: Callable[[], int]
    horovod: bool = False


class Switch(Protocol):
    """Starts and ends what some of the ways need."""

    def turn(self, on: bool) -> None:
        """Collective; does nothing where it is so already."""


def take_turns(
    comm: MPI.Intracomm, ways: Sequence[Way], switch: Switch, rounds: int, repeat_secs: float
) -> dict[str, dict[str, object]]:
    """Seconds an operation takes, by way and repeat, as the slowest rank sees it; 2 x `rounds` repeats each.

    Each way is checked before and after.

    Raises:
        WrongResultError: On all ranks alike: a result is wrong on one of them.
    """
    iterations = {}
    for way in ways:
        switch.turn(way.horovod)
        _check(comm, way)
        iterations[way.name] = _iterations(comm, way, repeat_secs)
    names: list[str] = []
    secs: list[float] = []
    gc.disable()
    try:
        for _ in range(rounds):
            for way in [*ways, *reversed(ways)]:
                switch.turn(way.horovod)
                names.append(way.name)
                secs.append(_time(comm, way, iterations[way.name]))
    finally:
        gc.enable()
    slowest = np.array(secs)
    from mpi4py import MPI

    comm.Allreduce(MPI.IN_PLACE, slowest, op=MPI.MAX)
    for way in reversed(ways):
        switch.turn(way.horovod)
        _check(comm, way)
    return {
        way.name: {
            "secs": [float(s) for name, s in zip(names, slowest, strict=True) if name == way.name],
            "iterations": iterations[way.name],
        }
        for way in ways
    }


def _check(comm: MPI.Intracomm, way: Way) -> None:
    wrong = np.array([way.check()], np.int64)
    from mpi4py import MPI

    comm.Allreduce(MPI.IN_PLACE, wrong)
    if wrong[0]:
        raise WrongResultError(f"{way.name}: numbers that are wrong: {wrong[0]}")


def _iterations(comm: MPI.Intracomm, way: Way, repeat_secs: float) -> int:
    from mpi4py import MPI

    took = np.array([min(_time(comm, way, 1), _time(comm, way, 1))])
    comm.Allreduce(MPI.IN_PLACE, took, op=MPI.MAX)
    return int(np.clip(round(repeat_secs / took[0]), 1, MOST_ITERATIONS))


def _time(comm: MPI.Intracomm, way: Way, iterations: int) -> float:
    for _ in range(min(iterations, WARM_UPS)):
        way.run()
    comm.Barrier()
    begin = time.perf_counter()
    for _ in range(iterations):
        way.run()
    return (time.perf_counter() - begin) / iterations
