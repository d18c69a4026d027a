"""What ranks of a measurement share: numbers whose sums are known exactly, ways in turns, telling the times."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from support.timing import there_and_back

from hpc_train.data.memory import available_bytes
from hpc_train.distributed.world import World
from hpc_train.telemetry.units import size

if TYPE_CHECKING:
    from mpi4py import MPI

PERIOD = 13
"""Sums of small whole numbers are exact in float32 up to 2^24: with 1,500 ranks at least."""
SHARED_FOLDER = Path("/dev/shm")
COPIES = 8
"""Of a size, that a rank holds of it at a time: two arrays, tensors and results, MPI's and Horovod's buffers."""
SPARE_BYTES = 256 << 20
MOST_ITERATIONS = 1000
WARM_UPS = 10
"""Calls before each repeat, or as many as it has: Horovod's first ones, once it has started, are slow."""
SETTINGS = (
    *("HOROVOD_CYCLE_TIME", "HOROVOD_FUSION_THRESHOLD", "OMPI_MCA_mpi_yield_when_idle", "OMP_NUM_THREADS"),
    "MALLOC_MMAP_THRESHOLD_",
)
"""ResultFile where they are set: they decide on the figures."""


def pattern(count: int, factor: int = 1) -> np.ndarray:
    """float32 [count]: 1 to 13 again and again, times `factor`."""
    whole = np.resize(np.arange(1, PERIOD + 1, dtype=np.float32), count)
    whole *= factor
    return whole


def wrong(found: np.ndarray, factor: float) -> int:
    """How many numbers of `found` (float32 [count]) are not those of `pattern(count, factor)`."""
    found = found.reshape(-1)
    period, count = np.arange(1, PERIOD + 1, dtype=np.float32) * np.float32(factor), found.size
    rows = found[: count - count % PERIOD].reshape(-1, PERIOD)
    return int((rows != period).sum()) + int((found[count - count % PERIOD :] != period[: count % PERIOD]).sum())


def missing_room(nbytes: int, ranks_here: int, windows: int = 0) -> str | None:
    """Why `ranks_here` ranks of this node cannot measure with `nbytes`, as a sentence; None: they can.

    `windows`: so many of that size lie in the memory that ranks of a node share.
    """
    needed, there = COPIES * nbytes * ranks_here + SPARE_BYTES, available_bytes()
    if needed > there:
        return (
            f"needs {size(needed)} of memory on a node ({COPIES} times the size for each rank), which has {size(there)}"
        )
    if not windows or not SHARED_FOLDER.is_dir():
        return None
    about = os.statvfs(SHARED_FOLDER)
    needed, there = windows * nbytes + SPARE_BYTES // 16, about.f_bavail * about.f_frsize
    if needed > there:
        return f"needs {size(needed)} in {SHARED_FOLDER}, which has {size(there)} free (docker run --shm-size)"
    return None


class ResultFile:
    """The chief's file, one JSON object a line; the first says what the ranks are. Making it is collective."""

    def __init__(self, world: World, path: Path, **about: object) -> None:
        self._world, self._path = world, path
        places = world.all_gather([world.local_rank, world.local_size])
        first = {
            "nodes": sum(local_rank == 0 for local_rank, _ in places),
            "ranks_per_node": max(local_size for _, local_size in places),
            "settings": {name: os.environ[name] for name in SETTINGS if name in os.environ},
            **about,
        }
        self.write(about=first)

    def write(self, **told: object) -> None:
        """A line, on the chief."""
        if self._world.is_chief:
            with open(self._path, "a") as file:
                file.write(json.dumps(told) + "\n")

    def leaves_out(self, operations: Sequence[str], nbytes: int, reason: str | None) -> bool:
        """Whether a rank has a reason not to measure this size; writes that of the lowest one. Collective."""
        why = next((told for told in self._world.all_gather(reason) if told), None)
        for operation in operations if why else ():
            self.write(operation=operation, bytes=nbytes, left_out=why)
        return why is not None


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


def take_turns(
    comm: MPI.Intracomm | None, ways: Sequence[Way], turn: Callable[[bool], None], rounds: int, repeat_secs: float
) -> dict[str, Mapping[str, object]]:
    """Seconds an operation takes, by way and repeat, as the slowest rank sees it; 2 x `rounds` repeats each.

    Each way is checked before and after. Collective, but for `comm` None: by this rank alone. `turn`: starts or ends
    Horovod, where it does not run, or runs, already.

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
