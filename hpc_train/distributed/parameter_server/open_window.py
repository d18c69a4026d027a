"""Opens the window of an asynchronous job, and tries it out: an MPI that cannot do it is reported before training."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from hpc_train import stdio
from hpc_train.distributed.launch_env import SHARED_FOLDER
from hpc_train.distributed.parameter_server import window_layout as at
from hpc_train.distributed.parameter_server.window import Window
from hpc_train.distributed.parameter_server.window_layout import ServerLayout
from hpc_train.distributed.roles import Roles
from hpc_train.distributed.world import World, mpi_library
from hpc_train.errors import UserError
from hpc_train.outcome import EXIT_BAD_INPUT
from hpc_train.telemetry.units import size

TEST_SECS = 30.0
"""The test takes some 10 ms; one that takes so long hangs."""


@contextmanager
def opened_window(world: World, roles: Roles, layouts: Sequence[ServerLayout]) -> Iterator[Window]:
    """The window with the memory of all servers, once every rank has reached those that it will use. Collective.

    Raises:
        UserError: This MPI cannot do it; the message says what to change.
    """
    comm = world.comm
    assert comm is not None, "Roles want two ranks at least"
    nbytes = layouts[world.rank].nbytes if roles.serves(world.rank) else 0
    world.each(lambda: _check_room(sum(layout.nbytes for layout in layouts), world.local_size == world.size))
    window = world.each(lambda: _try(lambda: Window(comm, nbytes)))
    with _deadline(world):
        world.each(lambda: _try(lambda: _reach(window, world.rank, roles, layouts)))
        window.barrier()
    world.each(lambda: _check_reached(window, world.rank, roles, layouts))
    with window:
        yield window


def _check_room(nbytes: int, one_node: bool) -> None:
    """Open MPI keeps windows of one node there, but for osc/pt2pt; who touches a page too many dies of SIGBUS."""
    if not one_node or os.environ.get("OMPI_MCA_osc") == "pt2pt" or not Path(SHARED_FOLDER).is_dir():  # noqa: SIM112
        return
    free = os.statvfs(SHARED_FOLDER)
    if free.f_bavail * free.f_frsize < nbytes:
        raise UserError(
            f"{SHARED_FOLDER} has {size(free.f_bavail * free.f_frsize)} free, but parameters and gradients of this job "
            f"need {size(nbytes)} there; make it larger (docker run --shm-size), start fewer workers, or set "
            "OMPI_MCA_osc=pt2pt to do without (slower)"
        )


def _try(action: Callable[[], Window | None]) -> Window:
    from mpi4py import MPI

    try:
        return action()  # type: ignore[return-value]
    except MPI.Exception as error:
        raise UserError(_advice(str(error))) from None


def _advice(problem: str) -> str:
    from mpi4py import MPI

    if MPI.Query_thread() > MPI.THREAD_SERIALIZED:
        change = (
            "mpi4py was imported before this package, and started MPI with THREAD_MULTIPLE, in which Open MPI 4 has no "
            "one-sided communication over TCP; set mpi4py.rc.thread_level = 'serialized' before the first import of "
            "mpi4py.MPI"
        )
    else:
        change = (
            "let Open MPI choose again (unset OMPI_MCA_osc and OMPI_MCA_btl, or set OMPI_MCA_osc=pt2pt for TCP), load "
            "another MPI, or take run.strategy: sync"
        )
    lacks = f"which {mpi_library()} does not provide here ({problem})"
    return f"strategy: async needs one-sided communication, {lacks}: {change}"


def _reach(window: Window, rank: int, roles: Roles, layouts: Sequence[ServerLayout]) -> None:
    """Writes to each server that this rank will use, reads it back, and counts up there."""
    for server in _used_by(rank, roles):
        layout = layouts[server]
        window.add(server, layout.word(at.TEST), 1)
        if not roles.serves(rank):
            place = layout.header(rank - roles.servers) + (at.FLAG + 1) * at.WORD
            sent = np.arange(1, at.HEADER_WORDS, dtype=np.int64) * (rank + 1)
            window.put(sent.view(np.uint8), server, place)
            window.flush(server)
            found = window.words(server, place, len(sent))
            window.put(np.zeros_like(sent).view(np.uint8), server, place)
            window.flush(server)
            if (found != sent).any():
                raise UserError(_advice(f"rank {rank} wrote to rank {server} and read back something else"))


def _used_by(rank: int, roles: Roles) -> list[int]:
    """Workers use all servers; the first server uses the others, and they use it."""
    if roles.serves(rank):
        return list(range(1, roles.servers)) if rank == 0 else [0]
    return list(range(roles.servers))


def _check_reached(window: Window, rank: int, roles: Roles, layouts: Sequence[ServerLayout]) -> None:
    if not roles.serves(rank):
        return
    wanted = sum(rank in _used_by(other, roles) for other in range(roles.size))
    place = layouts[rank].word(at.TEST)
    count = window.memory[place : place + at.WORD].view(np.int64)
    window.sync()
    if count[0] != wanted:
        problem = f"{wanted} ranks counted up on rank {rank}, which sees {count[0]}"
        raise UserError(_advice(problem))


@contextmanager
def _deadline(world: World) -> Iterator[None]:
    """Ends this rank, and with it all, where one-sided communication hangs: a call into MPI cannot be taken back."""

    def give_up() -> None:
        text = _advice(f"rank {world.rank} ({world.host}) got no answer within {TEST_SECS:.0f} s")
        stdio.write_directly(f"hpc-train: error: {text}")
        os._exit(EXIT_BAD_INPUT)

    timer = threading.Timer(TEST_SECS, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
