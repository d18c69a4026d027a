"""How a process becomes a rank: what the launcher says is made settings, and MPI is started."""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_train.distributed import launch_env
from hpc_train.distributed.devices import nvidia_device_count, open_gpus
from hpc_train.distributed.world import Threads, World
from hpc_train.errors import UserError
from hpc_train.telemetry import units
from hpc_train.telemetry.start_timeline import start_timeline

if TYPE_CHECKING:
    from mpi4py import MPI

NODES_NAMED = 8
"""Nodes that a note lists; the rest are counted."""

_joined: World | None = None


def join_world(threads: Threads = "multiple", own_device: bool = True) -> World:
    """Joins the ranks that the launcher started: sets what makes them fast, then starts MPI. Collective.

    Args:
        threads: How threads may call MPI: `"multiple"`, as Horovod needs it, or `"serialized"`, one at a time, as Open
            MPI 4 wants it for one-sided communication over TCP (open-mpi/ompi#5200).
        own_device: Whether each rank sees one GPU alone; else a program selects its own by its local rank.

    The first call does the work; later ones return the same World. Environment variables that the user has set
    are left alone: TF_CPP_MIN_LOG_LEVEL, OMP_NUM_THREADS, HOROVOD_CYCLE_TIME, HOROVOD_FUSION_THRESHOLD,
    OMPI_MCA_mpi_yield_when_idle.
    A process that no MPI launcher started is a world of one, and MPI is not started. With several ranks, a program
    calls install_excepthook (excepthook.py) next, so that an exception that nobody catches ends all of them.

    Raises:
        UserError: The launcher and MPI disagree about the number of ranks, or Keras is set to another backend.
    """
    global _joined
    if _joined is not None:
        return _joined
    if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        raise UserError(f"KERAS_BACKEND is {os.environ['KERAS_BACKEND']!r}; unset it, or set it to tensorflow")
    start_timeline.begin("MPI")
    place = launch_env.launch_place(os.environ)
    mask = sorted(os.sched_getaffinity(0))
    gpus = nvidia_device_count()
    free = _free_bytes(Path(launch_env.SHARED_FOLDER))
    lacking = launch_env.lacks_shared_memory(os.environ, place, free)
    for name, value in launch_env.settings_before_mpi(os.environ, len(mask), place, gpus, free).items():
        os.environ.setdefault(name, value)
    device = launch_env.visible_device(os.environ, gpus, place)
    if device is not None and own_device:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    world = World(_start_mpi(place, threads), place.local_rank, place.local_size)
    devices = [os.environ.get("CUDA_VISIBLE_DEVICES")] if gpus else []
    users, world.devices = _node_of(world, mask, devices, open_gpus() if gpus else [])
    fair = launch_env.fair_cores(users, mask)
    world.cores = launch_env.threads_wanted(os.environ) or fair
    os.environ.setdefault("OMP_NUM_THREADS", str(world.cores))
    if world.first(lacking or None):
        lacks = world.all_gather(world.host if lacking else None)
        world.notes += _notes([host for host in lacks if host is not None])
    _joined = world
    start_timeline.begin("data")
    return world


def _node_of(
    world: World, mask: list[int], devices: list[str | None], gpus: list[str]
) -> tuple[dict[int, int], list[str | None] | None]:
    """How many ranks of this host may use each core that any may use, and what `devices` they have. Collective.

    None instead of those where not all of its ranks may open the same `gpus`.
    """
    for attempt in itertools.count():
        here = world.split(zlib.crc32(f"{attempt} {world.host}".encode()) >> 1)
        alike = here.broadcast(world.host) == world.host
        if world.first(None if alike else True) is None:  # else two hosts have one number
            break
        here.free()
    told: list[Any] = here.gather((mask, devices, gpus)) or []
    users = list(Counter(core for cores, _, _ in told for core in cores).items())
    same = all(opened == told[0][2] for _, _, opened in told)
    users, every = here.broadcast((users, [device for _, own, _ in told for device in own] if same else None))
    here.free()
    return dict(users), every


def _notes(without_memory: Sequence[str]) -> list[str]:
    """What to tell of the hosts whose ranks have no room to exchange messages in memory."""
    nodes = sorted(set(without_memory))
    if not nodes:
        return []
    shown = ", ".join(nodes[:NODES_NAMED]) + (f" and {len(nodes) - NODES_NAMED} more" if nodes[NODES_NAMED:] else "")
    wanted = units.size(launch_env.MESSAGE_BYTES)
    return [
        f"{launch_env.SHARED_FOLDER} has less than {wanted} free on {shown}: ranks of one node exchange messages over "
        "the network, which is slower; free some of it, or make it larger (docker run --shm-size=2g)"
    ]


def _free_bytes(folder: Path) -> int | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _start_mpi(place: launch_env.LaunchPlace, threads: Threads) -> MPI.Intracomm | None:
    if not place.launched:
        return None
    _bind_mpi_at_once()
    import mpi4py

    mpi4py.rc.thread_level = threads
    from mpi4py import MPI

    size = MPI.COMM_WORLD.Get_size()
    if size != place.size:
        raise UserError(
            f"the launcher started {place.size} ranks, but MPI sees {size}: they were started by another MPI's mpirun, "
            "or by an srun that this MPI was not built for; use the mpirun of the MPI in use"
        )
    return MPI.COMM_WORLD.Dup() if size > 1 else None


def _bind_mpi_at_once() -> None:
    """Loads the Open MPI of this environment, where it has one, before mpi4py's wheel does.

    Open MPI and TensorFlow each bring an hwloc. The wheel loads MPI so that functions are bound at their first call:
    Open MPI would begin with its own hwloc, end with TensorFlow's, and crash in MPI_Finalize. ctypes binds all at
    once, as the import of an mpi4py that was built from source does.
    """
    library = Path(sys.prefix) / "lib" / "libmpi.so.40"
    if library.exists():
        ctypes.CDLL(str(library))
