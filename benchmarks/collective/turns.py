"""Times ways in turns, A B B A: on all ranks, each of which does the same at the same time, or on one alone."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from support.timing import there_and_back

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


Turn = Callable[[bool], None]
"""Starts or ends Horovod; does nothing where it runs, or does not, already. Collective."""


def take_turns(
    comm: MPI.Intracomm | None, ways: Sequence[Way], turn: Turn, rounds: int, repeat_secs: float
) -> dict[str, dict[str, object]]:
    """Seconds an operation takes, by way and repeat, as the slowest rank sees it; 2 x `rounds` repeats each.

    Each way is checked before and after. Collective, but for `comm` None: by this rank alone.

    Raises:
        WrongResultError: On all ranks alike: a result is wrong on one of them.
    """
    iterations = {}
    for way in ways:
        turn(way.horovod)
        _check(comm, way)
        took = _highest(comm, min(_time(comm, way, 1), _time(comm, way, 1)))
        iterations[way.name] = int(np.clip(round(repeat_secs / max(took, 1e-9)), 1, MOST_ITERATIONS))
    secs: dict[str, list[float]] = {way.name: [] for way in ways}
    gc.disable()
    try:
        for _ in range(rounds):
            for way in there_and_back(ways, 2):
                turn(way.horovod)
                secs[way.name].append(_time(comm, way, iterations[way.name]))
    finally:
        gc.enable()
    slowest = {name: [_highest(comm, one) for one in own] for name, own in secs.items()}
    for way in reversed(ways):
        turn(way.horovod)
        _check(comm, way)
    return {name: {"secs": own, "iterations": iterations[name]} for name, own in slowest.items()}


def _check(comm: MPI.Intracomm | None, way: Way) -> None:
    wrong = _highest(comm, float(way.check()))
    if wrong:
        raise WrongResultError(f"{way.name}: numbers that are wrong: {wrong:.0f}")


def _highest(comm: MPI.Intracomm | None, number: float) -> float:
    """Of all ranks; collective."""
    if comm is None:
        return number
    from mpi4py import MPI

    return float(comm.allreduce(number, op=MPI.MAX))


def _time(comm: MPI.Intracomm | None, way: Way, iterations: int) -> float:
    for _ in range(min(iterations, WARM_UPS) if comm else 1):
        way.run()
    if comm:
        comm.Barrier()
    begin = time.perf_counter()
    for _ in range(iterations):
        way.run()
    return (time.perf_counter() - begin) / iterations
