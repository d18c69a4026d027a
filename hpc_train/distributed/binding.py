"""A rank binds itself, and all of its threads, before it starts MPI; and again where the ranks of its node disagree."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import cast, get_args

from hpc_train.config.resources import Bind
from hpc_train.distributed import launch_env
from hpc_train.distributed.affinity import Binding, RankView, bindings, by_launcher, unbound
from hpc_train.distributed.launch_env import LaunchPlace
from hpc_train.distributed.topology import TopologyError, cpu_list, domain_count, read_topology
from hpc_train.errors import UserError

BIND_VARIABLE = "HPC_TRAIN_BIND"
MACHINE_CPUS_VARIABLE = "HPC_TRAIN_MACHINE_CPUS"
"""Set by this machine's queue for what runs on some CPUs alone: all those that the queue has."""
OWN_CPUS_VARIABLE = "HPC_TRAIN_OWN_CPUS"
"""CPUs that this machine's queue has given to the job alone, as the kernel lists them."""


def wanted_binding(env: Mapping[str, str]) -> Bind:
    """What BIND_VARIABLE says. Pure.

    Raises:
        UserError: It is none of what is allowed.
    """
    given = env.get(BIND_VARIABLE) or "auto"
    if given not in get_args(Bind):
        raise UserError(f"{BIND_VARIABLE} is {given!r}; allowed: {', '.join(get_args(Bind))}")
    return cast(Bind, given)


def why_not(bind: Bind, env: Mapping[str, str], mask: Collection[int]) -> str | None:
    """Why ranks that may use the CPUs of `mask` are not to be bound; None: those are the job's own. Pure."""
    if bind == "none":
        return "bind is none"
    with suppress(TopologyError):
        if OWN_CPUS_VARIABLE in env and cpu_list(env[OWN_CPUS_VARIABLE]).issuperset(mask):
            return None
    if "SLURM_JOB_ID" in env:
        given = env.get("SLURM_CPUS_ON_NODE", "")
        if given.isdecimal() and int(given) >= len(mask):
            return None
        return f"other jobs may run here: Slurm gave {given or 'unknown'} of {len(mask)} CPUs"
    return "other programs may run here" if bind == "auto" else None


def node_bindings(bind: Bind, env: Mapping[str, str], views: list[RankView], openable: list[str]) -> list[Binding]:
    """What each rank of this node is bound to, by local rank; reads the topology where that matters. Local."""
    mask, asked = frozenset[int]().union(*(view.mask for view in views)), bind in ("core", "numa")
    if len({view.mask for view in views}) > 1:
        with suppress(TopologyError):
            return by_launcher(views, read_topology(mask) if domain_count() > 1 else None, asked)
        return by_launcher(views, None, asked)
    if (why := why_not(bind, env, mask)) is not None:
        return unbound(len(views), f"bind: {bind}: {why}" if asked else why, asked)
    if bind == "auto" and domain_count() < 2:
        return unbound(len(views), "all CPUs are in one NUMA domain")
    try:
        return bindings(bind, views, read_topology(mask, openable), launch_env.threads_wanted(env))
    except TopologyError as error:
        return unbound(len(views), f"bind: {bind}: {error}", asked)


def expected_views(env: Mapping[str, str], place: LaunchPlace, mask: Collection[int], gpus: int) -> list[RankView]:
    """The ranks of this node as this one sees them before it can ask them. Pure."""
    found = []
    for rank in range(place.local_size):
        own = LaunchPlace(place.launched, place.size, rank, place.local_size)
        device = launch_env.visible_device(env, gpus, own)
        found.append(RankView(frozenset(mask), device or first_device(env, gpus)))
    return found


def first_device(env: Mapping[str, str], gpus: int) -> str | None:
    """The GPU that TensorFlow takes of those that are visible."""
    if not gpus:
        return None
    given = env.get("CUDA_VISIBLE_DEVICES")
    return "0" if given is None else given.split(",")[0].strip() or None


def cpus_of_the_queue(env: Mapping[str, str]) -> frozenset[int]:
    """The CPUs that this machine's queue gives away: this process's, or those of the queue whose job it is part of."""
    here = frozenset(os.sched_getaffinity(0))
    with suppress(TopologyError):
        if (given := cpu_list(env.get(MACHINE_CPUS_VARIABLE, ""))) >= here:
            return given
    return here


def bind_first(
    bind: Bind, env: Mapping[str, str], place: LaunchPlace, mask: Collection[int], gpus: int, openable: list[str]
) -> tuple[Binding, int]:
    """Binds this process by what it knows alone; its binding, and how many CPUs ranks like it would have. Local."""
    planned = node_bindings(bind, env, expected_views(env, place, mask, gpus), openable)
    own = planned[place.local_rank % len(planned)]
    if own.by != "hpc_train":
        return own, len(mask)
    every = frozenset(mask)
    own = bound(own, every)
    users = Counter(cpu for one in planned for cpu in one.usable(every))
    return own, launch_env.fair_cores(users, sorted(own.usable(every))) * place.local_size


def bound(wanted: Binding, before: frozenset[int]) -> Binding:
    """Binds this process as `wanted`, or gives it back what it had `before`; what has become of it. Local."""
    if (why := bind_threads(wanted.usable(before))) is None:
        return wanted
    bind_threads(before)
    return Binding(why=why, warns=True)


def bind_threads(cpus: Collection[int]) -> str | None:
    """Has all threads of this process, and those that they start, run on `cpus` alone; why it cannot be done. Local."""
    try:
        for thread in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), cpus)
    except OSError as error:
        return f"the kernel refuses: {error.strerror}"
    return None
