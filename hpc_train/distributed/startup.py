"""How a process becomes a rank: what the launcher says is made settings, and MPI is started."""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpc_train.config.resources import Bind
from hpc_train.distributed import launch_env, srun_tasks
from hpc_train.distributed.affinity import Binding, RankView
from hpc_train.distributed.binding import bind_first, bound, first_device, node_bindings, wanted_binding
from hpc_train.distributed.devices import nvidia_device_count, open_gpus
from hpc_train.distributed.topology import cpu_list, cpu_text
from hpc_train.distributed.world import Threads, World
from hpc_train.errors import UserError
from hpc_train.telemetry import units
from hpc_train.telemetry.start_timeline import start_timeline
from hpc_train.text import listed

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
    OMPI_MCA_mpi_yield_when_idle. HPC_TRAIN_BIND says what the ranks are bound to (affinity.py).
    A process that no MPI launcher started is a world of one, and MPI is not started. With several ranks, a program
    calls install_excepthook (excepthook.py) next, so that an exception that nobody catches ends all of them.

    Raises:
        UserError: The launcher and MPI disagree about the number of ranks, srun has started them in a way that MPI does
            not know, Keras is set to another backend, or HPC_TRAIN_BIND to what there is not.
    """
    global _joined
    if _joined is not None:
        return _joined
    if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        raise UserError(f"KERAS_BACKEND is {os.environ['KERAS_BACKEND']!r}; unset it, or set it to tensorflow")
    start_timeline.begin("MPI")
    bind, place = wanted_binding(os.environ), launch_env.launch_place(os.environ)
    mask = sorted(os.sched_getaffinity(0))
    gpus = nvidia_device_count()
    opened = open_gpus() if gpus else []
    binding, allowed = bind_first(bind, os.environ, place, mask, gpus, opened)
    free = _free_bytes(Path(launch_env.SHARED_FOLDER))
    lacking = launch_env.lacks_shared_memory(os.environ, place, free)
    for name, value in launch_env.settings_before_mpi(os.environ, allowed, place, gpus, free).items():
        os.environ.setdefault(name, value)
    given = launch_env.threads_wanted(os.environ)
    device = launch_env.visible_device(os.environ, gpus, place)
    if device is not None and own_device:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    world = World(_start_mpi(place, threads), place.local_rank, place.local_size)
    view = RankView(frozenset(mask), device or first_device(os.environ, gpus))
    devices = [os.environ.get("CUDA_VISIBLE_DEVICES")] if gpus else []
    found = _node_of(world, bind, view, binding, devices, opened)
    world.devices, world.binding = found.devices, found.binding
    usable = found.binding.usable(view.mask)
    world.cores = given or launch_env.fair_cores(found.users, sorted(usable))
    os.environ.setdefault("OMP_NUM_THREADS", str(world.cores))
    own = _cpu_note(world.binding, given, len(usable))
    if world.first(lacking or own or None):
        told: list[Any] = world.all_gather([world.host, lacking, own])
        world.notes += _notes([host for host, lacks, _ in told if lacks])
        world.notes += _cpu_notes([(host, note) for host, _, note in told if note])
    _joined = world
    start_timeline.begin("data")
    return world


class _Node(NamedTuple):
    """What the ranks of a node have found together.

    Attributes:
        users: How many of them may use each CPU that any may use.
        devices: Theirs; None where not all may open the same GPUs.
        binding: This rank's.
    """

    users: dict[int, int]
    devices: list[str | None] | None
    binding: Binding


def _node_of(
    world: World, bind: Bind, view: RankView, binding: Binding, devices: list[str | None], gpus: list[str]
) -> _Node:
    """What the ranks of this host have to know of each other. Collective.

    A rank whose `binding`, by what it knew alone, is not what follows from the `view` of all of them is bound again.
    """
    for attempt in itertools.count():
        here = world.split(zlib.crc32(f"{attempt} {world.host}".encode()) >> 1)
        alike = here.broadcast(world.host) == world.host
        if world.first(None if alike else True) is None:  # else two hosts have one number
            break
        here.free()
    told: list[Any] = here.gather((cpu_text(view.mask), view.device, _number_of(binding), devices, gpus)) or []
    views = [RankView(cpu_list(mask), device) for mask, device, *_ in told]
    planned = node_bindings(bind, os.environ, views, gpus) if told else []
    users = Counter(cpu for one, seen in zip(planned, views, strict=True) for cpu in one.usable(seen.mask))
    agreed = [_number_of(one) for one in planned] == [number for _, _, number, *_ in told]
    every = (
        [device for *_, own, _ in told for device in own] if told and all(t[4] == told[0][4] for t in told) else None
    )
    found = (list(users.items()), every, None if agreed else [asdict(one) for one in planned])
    pairs, every, changed = here.broadcast(found)
    rank = here.rank
    here.free()
    if changed is not None:
        binding = bound(Binding(**changed[rank]), view.mask)
    return _Node(dict(pairs), every, binding)


def _number_of(binding: Binding) -> int:
    return zlib.crc32(repr(binding).encode())


def _cpu_note(binding: Binding, threads: int | None, cpus: int) -> str:
    """What the user should know of the CPUs of this rank; empty where all is well."""
    if binding.warns:
        return f"ranks are not bound as asked: {binding.why}"
    if threads is not None and threads > cpus:
        return (
            f"OMP_NUM_THREADS is {threads}, but a rank may use {units.counted(cpus, 'CPU')}: its threads wait for each "
            "other; ask for more cores, or for fewer threads"
        )
    return ""


def _cpu_notes(told: Sequence[tuple[str, str]]) -> list[str]:
    """Each note of ranks once, with the hosts that it is of."""
    by_note: dict[str, dict[str, None]] = {}
    for host, note in told:
        by_note.setdefault(note, {})[host] = None
    return [f"{listed(hosts, most=NODES_NAMED)}: {note}" for note, hosts in by_note.items()]


def _notes(without_memory: Sequence[str]) -> list[str]:
    """What to tell of the hosts whose ranks have no room to exchange messages in memory."""
    nodes = sorted(set(without_memory))
    if not nodes:
        return []
    wanted, where = units.size(launch_env.MESSAGE_BYTES), listed(nodes, most=NODES_NAMED)
    return [
        f"{launch_env.SHARED_FOLDER} has less than {wanted} free on {where}: ranks of one node "
        "exchange messages over the network, which is slower; free some of it, or make it larger (docker run "
        "--shm-size=2g)"
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
    in_doubt = srun_tasks.lack_pmix(os.environ)
    if in_doubt:
        mpi4py.rc(initialize=False, finalize=True)
    from mpi4py import MPI

    if in_doubt:
        why = srun_tasks.why_not_ranks(MPI.Get_library_version(), srun_tasks.open_mpi_components())
        if why is not None:
            raise UserError(why)
        if not MPI.Is_initialized():  # as by a program that has imported mpi4py itself
            MPI.Init_thread(MPI.THREAD_MULTIPLE if threads == "multiple" else MPI.THREAD_SERIALIZED)
    size = MPI.COMM_WORLD.Get_size()
    if size != place.size:
        raise UserError(
            f"the launcher started {place.size} ranks, but MPI sees {size}: they were started by another MPI's mpirun, "
            f"or by an srun that this MPI was not built for; use the mpirun of the MPI in use, or {srun_tasks.WAYS_ON}"
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
