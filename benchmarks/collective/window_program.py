"""One rank of one-sided communication: the last rank puts into, gets from and adds to the memory of the first.

    mpirun -np 2 python -m collective.window_program --operations put get accumulate --sizes 4 1048576 … --out FILE

FILE: as that of program.py.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from collective.arrays import missing_room, missing_shared_room, pattern, wrong
from collective.told import Told
from collective.turns import Way, take_turns
from collective.ways import ALLOCATE, ALLOCATE_SHARED, MEMCPY, OUR_WINDOW
from hpc_train.distributed.excepthook import install_excepthook
from hpc_train.distributed.parameter_server.window import Window
from hpc_train.distributed.world import World, join_world

if TYPE_CHECKING:
    from mpi4py import MPI

TARGET = 0
WINDOWS = 3


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", nargs="+", choices=["put", "get", "accumulate"], required=True)
    parser.add_argument("--sizes", type=int, nargs="+", required=True, help="bytes")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--repeat-secs", type=float, required=True)
    parser.add_argument("--gpu", action="store_true", help="of no effect: windows lie in the host's memory")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


class PlainWindow:
    """A window as mpi4py makes it. Making and closing it is collective; a context manager."""

    def __init__(self, comm: MPI.Intracomm, nbytes: int, shared: bool) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._window = (MPI.Win.Allocate_shared if shared else MPI.Win.Allocate)(nbytes, 4, comm=comm)
        self._window.Lock_all()

    def __enter__(self) -> PlainWindow:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:  # else the other ranks may not come
            self._window.Unlock_all()
            self._window.Free()

    def put(self, array: np.ndarray) -> None:
        self._window.Put(array, TARGET)
        self._window.Flush(TARGET)

    def get(self, array: np.ndarray) -> None:
        self._window.Get(array, TARGET)
        self._window.Flush(TARGET)

    def accumulate(self, array: np.ndarray) -> None:
        self._window.Accumulate(array, TARGET, op=self._mpi.SUM)
        self._window.Flush(TARGET)


class OurWindow:
    """The package's window; it adds no arrays."""

    def __init__(self, window: Window) -> None:
        self._window = window

    def put(self, array: np.ndarray) -> None:
        self._window.put(array.view(np.uint8), TARGET, 0)
        self._window.flush(TARGET)

    def get(self, array: np.ndarray) -> None:
        self._window.get(array.view(np.uint8), TARGET, 0)
        self._window.flush(TARGET)


class Origin:
    """The rank that measures: its ways, by operation."""

    def __init__(self, count: int) -> None:
        self._sent, self._received = pattern(count), np.zeros(count, np.float32)

    def ways(self, operation: str, windows: dict[str, PlainWindow | OurWindow]) -> list[Way]:
        """Copying first, then each of `windows` that can do it."""
        make = {"put": self._put, "get": self._get, "accumulate": self._accumulate}[operation]
        return [self._memcpy(), *(make(name, w) for name, w in windows.items() if hasattr(w, operation))]

    def _memcpy(self) -> Way:
        def run() -> None:
            np.copyto(self._received, self._sent)

        def check() -> int:
            run()
            return wrong(self._received, 1)

        return Way(MEMCPY, run, check)

    def _put(self, name: str, window: PlainWindow | OurWindow) -> Way:
        def check() -> int:
            window.put(pattern(self._sent.size, 3))
            return self._wrong_there(window, 3)

        return Way(name, lambda: window.put(self._sent), check)

    def _get(self, name: str, window: PlainWindow | OurWindow) -> Way:
        def check() -> int:
            window.put(pattern(self._sent.size, 5))
            return self._wrong_there(window, 5)

        return Way(name, lambda: window.get(self._received), check)

    def _accumulate(self, name: str, window: PlainWindow | OurWindow) -> Way:
        assert isinstance(window, PlainWindow)

        def check() -> int:
            window.put(np.zeros_like(self._sent))
            window.accumulate(self._sent)
            window.accumulate(self._sent)
            return self._wrong_there(window, 2)

        return Way(name, lambda: window.accumulate(self._sent), check)

    def _wrong_there(self, window: PlainWindow | OurWindow, factor: int) -> int:
        self._received[:] = 0
        window.get(self._received)
        return wrong(self._received, factor)


def wait(comm: MPI.Intracomm, asleep: bool) -> None:
    """Waits for all ranks: asleep where they share memory and need no help, else letting MPI go on."""
    request = comm.Ibarrier()
    while not request.Test():
        if asleep:
            time.sleep(1e-3)
        else:
            os.sched_yield()


def measure(args: argparse.Namespace, world: World, nbytes: int, measured: Callable[..., None]) -> None:
    """One size; `measured` is called on the chief. Collective."""
    comm = world.comm
    assert comm is not None
    mine = nbytes if world.rank == TARGET else 0
    with ExitStack() as stack:
        window = stack.enter_context(Window(comm, mine))
        windows: dict[str, PlainWindow | OurWindow] = {
            OUR_WINDOW: OurWindow(window),
            ALLOCATE: stack.enter_context(PlainWindow(comm, mine, shared=False)),
        }
        if window.shared:
            windows[ALLOCATE_SHARED] = stack.enter_context(PlainWindow(comm, mine, shared=True))
        for operation in args.operations:
            found: dict[str, dict[str, object]] = {}
            if world.rank == world.size - 1:
                ways = Origin(nbytes // 4).ways(operation, windows)
                found = take_turns(None, ways, lambda horovod: None, args.rounds, args.repeat_secs)
            wait(comm, asleep=window.shared)
            measured(operation, nbytes, world.all_gather(found)[-1])


def main() -> None:
    args = arguments()
    world = join_world("serialized")
    install_excepthook(world)
    assert world.comm is not None, "started without mpirun"
    told = Told(world, args.out, device="CPU", nccl=False)
    one_node = world.local_size == world.size
    for nbytes in args.sizes:
        reason = missing_room(nbytes, min(2, world.local_size))
        if reason is None and one_node:
            reason = missing_shared_room(nbytes, WINDOWS)
        reason = told.first_reason(reason)
        if reason is None:
            measure(args, world, nbytes, told.measured)
            continue
        for operation in args.operations:
            told.left_out(operation, nbytes, reason)


if __name__ == "__main__":
    main()
