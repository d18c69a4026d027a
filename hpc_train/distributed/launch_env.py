"""What the launcher reports about this process before MPI starts, and the settings that follow from it. Pure.

Open MPI, MPICH, Intel MPI, MVAPICH and Slurm's srun each give a rank its place on the node in variables of their
own. They have to be read from there: devices must be hidden and threads limited before MPI or TensorFlow start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_SIZE = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
_LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
_LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE")
_LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_SIZE")

HOROVOD_FUSION_BYTES = f"{1 << 20}"
HOROVOD_CYCLE_TIME_MS = "0.1"
"""Horovod looks for work so often. Its default of 1 ms costs two ranks of a small model 10 % (measured on two
cores together with the yield below; without the yield a short cycle is worse than the default)."""

SHARED_FOLDER = "/dev/shm"
MESSAGE_BYTES = (4 << 20) + 8
"""What Open MPI wants to be free in SHARED_FOLDER for the messages of a rank to others of its node, at its start."""


@dataclass(frozen=True)
class LaunchPlace:
    """This process's place on its node, as the launcher reports it."""

    launched: bool
    """Whether an MPI launcher started this process. Without one there is a single rank, and no MPI is started."""
    size: int
    local_rank: int
    local_size: int


def launch_place(env: Mapping[str, str]) -> LaunchPlace:
    """Reads the launcher's variables."""
    size = _first_int(env, _SIZE) or 1
    # sbatch's own shell has SLURM_LOCALID too: srun's step variable shows whether srun started this process.
    launched = any(name in env for name in _LAUNCHED) or (size > 1 and "SLURM_STEP_NUM_TASKS" in env)
    if not launched:
        return LaunchPlace(False, 1, 0, 1)
    local_size = _first_int(env, _LOCAL_SIZE) or _slurm_tasks_here(env) or 1
    return LaunchPlace(True, size, _first_int(env, _LOCAL_RANK) or 0, max(1, local_size))


def launched_rank(env: Mapping[str, str]) -> int:
    """The rank that the launcher has given this process; 0 where it has given none."""
    return _first_int(env, _RANK) or 0


def _first_int(env: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        if env.get(name, "").isdigit():
            return int(env[name])
    return None


def _slurm_tasks_here(env: Mapping[str, str]) -> int | None:
    """Tasks on this node from SLURM_STEP_TASKS_PER_NODE, such as `2(x3),1`: nodes 0 to 2 have two, node 3 one."""
    node = _first_int(env, ("SLURM_NODEID",)) or 0
    for count, _, repeat in re.findall(r"(\d+)(\(x(\d+)\))?", env.get("SLURM_STEP_TASKS_PER_NODE", "")):
        if node < int(repeat or 1):
            return int(count)
        node -= int(repeat or 1)
    return None


def fair_cores(users: Mapping[int, int], mask: Sequence[int]) -> int:
    """Cores that a rank may keep busy which may use those of `mask`.

    A core that several ranks may use counts for each in part: ranks that a launcher has bound keep their own cores,
    unbound ones share out what they see.

    Args:
        users: How many ranks of the node may use each core; this one alone where that is not known.
    """
    return max(1, int(sum(1 / max(1, users.get(core, 1)) for core in mask) + 1e-9))


def lacks_shared_memory(env: Mapping[str, str], place: LaunchPlace, free_bytes: int | None) -> bool:
    """Whether ranks of this node have no room to exchange messages in memory, so that Open MPI has to do without.

    Args:
        free_bytes: In SHARED_FOLDER; None: there is none.
    """
    wanted = "OMPI_COMM_WORLD_SIZE" in env and place.local_size > 1 and "OMPI_MCA_btl" not in env
    return wanted and free_bytes is not None and free_bytes < MESSAGE_BYTES


def settings_before_mpi(
    env: Mapping[str, str], allowed_cores: int, place: LaunchPlace, gpus: int = 0, shared_free: int | None = None
) -> dict[str, str]:
    """Variables that have to be there before MPI and TensorFlow start; a value that the user has set wins.

    Each rank has a thread of Horovod's beside its computing threads, and MPI polls while it waits: where they
    outnumber the cores, waiting ranks must yield or they take time from computing ones (on two cores, two ranks:
    +30 % examples/s). Without OMP_NUM_THREADS each core gets a computing thread, and they do outnumber them.

    On one node without GPUs, tensors larger than HOROVOD_FUSION_BYTES are not copied into Horovod's fusion buffer and
    out again: there a copy costs more than one more allreduce (two ranks: +11 %). Between nodes, and with NCCL, each
    allreduce costs its latency, and Horovod's default stays.

    Ranks that are all on one node, and have shared memory, do not listen on the network: Open MPI's TCP, which they do
    not need, would on all interfaces.

    Without room in SHARED_FOLDER (`shared_free`, as in lacks_shared_memory), Open MPI is not to try: it would find out
    by itself, with ten lines of its own.
    """
    settings = {"TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}
    if place.launched:
        settings["HOROVOD_CYCLE_TIME"] = HOROVOD_CYCLE_TIME_MS
        if place.local_size == place.size:
            settings["OMPI_MCA_btl"] = "^tcp"
        if place.local_size == place.size and not gpus:
            settings["HOROVOD_FUSION_THRESHOLD"] = HOROVOD_FUSION_BYTES
        threads = threads_wanted(env) or max(1, allowed_cores // place.local_size)
        if place.local_size * (threads + 1) > allowed_cores:
            settings["OMPI_MCA_mpi_yield_when_idle"] = "1"
        if lacks_shared_memory(env, place, shared_free):
            settings["OMPI_MCA_btl"] = "^vader"
    return settings


def threads_wanted(env: Mapping[str, str]) -> int | None:
    """OMP_NUM_THREADS, where the user or the scheduler has set it."""
    value = env.get("OMP_NUM_THREADS", "")
    return int(value) if value.isdigit() and int(value) > 0 else None


def visible_device(env: Mapping[str, str], device_count: int, place: LaunchPlace) -> str | None:
    """The value for CUDA_VISIBLE_DEVICES that leaves this rank one GPU; None leaves it as it is.

    Devices that a scheduler has already made visible are shared out; ranks beyond the number of devices start
    again at the first.
    """
    given = env.get("CUDA_VISIBLE_DEVICES")
    devices = [d for d in given.split(",") if d] if given is not None else [str(i) for i in range(device_count)]
    if not devices or not place.launched or len(devices) == 1:
        return None
    return devices[place.local_rank % len(devices)]
