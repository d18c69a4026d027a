"""One-sided communication: the last rank puts into, gets from and adds to the memory of the first."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from collective.plan import ALLOCATE, ALLOCATE_SHARED, MEMCPY, OUR_WINDOW
from collective.rank import ResultFile, Way, missing_room, pattern, take_turns, wrong
from hpc_train.distributed.excepthook import install_excepthook
from hpc_train.distributed.parameter_server.window import Window
from hpc_train.distributed.startup import join_world
from hpc_train.distributed.world import World

if TYPE_CHECKING:
    from mpi4py import MPI

TARGET = 0
WINDOWS = 3
Accesses = Mapping[str, Callable[[np.ndarray], None]]
"""By the names of operations: what each does with an array and the target's memory, which is done when it returns."""


@contextmanager
def plain_window(comm: MPI.Intracomm, nbytes: int, shared: bool) -> Iterator[Accesses]:
    """A window as mpi4py makes it; collective. It is not closed after an error: the other ranks may not come."""
    from mpi4py import MPI

    window = (MPI.Win.Allocate_shared if shared else MPI.Win.Allocate)(nbytes, 4, comm=comm)
    window.Lock_all()

    def flushed(access: Callable[..., object]) -> Callable[[np.ndarray], None]:
        def run(array: np.ndarray) -> None:
            access(array, TARGET)
            window.Flush(TARGET)

        return run

    add = partial(window.Accumulate, op=MPI.SUM)
    yield {"put": flushed(window.Put), "get": flushed(window.Get), "accumulate": flushed(add)}
    window.Unlock_all()
    window.Free()


def accesses_of(window: Window) -> Accesses:
    """Of the package's window, which adds no arrays."""

    def put(array: np.ndarray) -> None:
        window.put(array.view(np.uint8), TARGET, 0)
        window.flush(TARGET)

    def get(array: np.ndarray) -> None:
        window.get(array.view(np.uint8), TARGET, 0)
        window.flush(TARGET)

    return {"put": put, "get": get}


def ways_of(operation: str, count: int, windows: Mapping[str, Accesses]) -> list[Way]:
    """Copying `count` numbers first, then each of `windows` that can do it."""
    sent, received = pattern(count), np.zeros(count, np.float32)

    def copy() -> None:
        np.copyto(received, sent)

    def check_copy() -> int:
        copy()
        return wrong(received, 1)

    def way(name: str, window: Accesses) -> Way:
        def check() -> int:
            if operation == "accumulate":
                window["put"](np.zeros_like(sent))
                window["accumulate"](sent)
                window["accumulate"](sent)
            else:
                window["put"](pattern(count, 2))
            received[:] = 0
            window["get"](received)
            return wrong(received, 2)

        return Way(name, partial(window[operation], received if operation == "get" else sent), check)

    return [Way(MEMCPY, copy, check_copy), *(way(name, own) for name, own in windows.items() if operation in own)]


def wait(comm: MPI.Intracomm, asleep: bool) -> None:
    """Waits for all ranks: asleep where they share memory and need no help, else letting MPI go on."""
    request = comm.Ibarrier()
    while not request.Test():
        if asleep:
            time.sleep(1e-3)
        else:
            os.sched_yield()


def measure(args: Namespace, world: World, nbytes: int, results: ResultFile) -> None:
    """One size. Collective."""
    comm = world.comm
    assert comm is not None
    mine = nbytes if world.rank == TARGET else 0
    with ExitStack() as stack:
        window = stack.enter_context(Window(comm, mine))
        windows = {
            OUR_WINDOW: accesses_of(window),
            ALLOCATE: stack.enter_context(plain_window(comm, mine, shared=False)),
        }
        if window.shared:
            windows[ALLOCATE_SHARED] = stack.enter_context(plain_window(comm, mine, shared=True))
        for operation in args.operations:
            found: Mapping[str, object] = {}
            if world.rank == world.size - 1:
                ways = ways_of(operation, nbytes // 4, windows)
                found = take_turns(None, ways, lambda horovod: None, args.rounds, args.repeat_secs)
            wait(comm, asleep=window.shared)
            results.write(operation=operation, bytes=nbytes, ways=world.all_gather(found)[-1])


def measure_all(args: Namespace) -> None:
    """All sizes; tensors have no part in it."""
    world = join_world("serialized")
    install_excepthook(world)
    assert world.comm is not None, "started without mpirun"
    results = ResultFile(world, args.out, device="CPU", nccl=False)
    windows = WINDOWS if world.local_size == world.size else 0
    for nbytes in args.sizes:
        if not results.leaves_out(args.operations, nbytes, missing_room(nbytes, min(2, world.local_size), windows)):
            measure(args, world, nbytes, results)
