"""The settings that this package makes for Horovod and MPI, for a program that does not use it."""

from __future__ import annotations

import os

from hpc_train.distributed.launch_env import LaunchPlace, settings_before_mpi

OF_HOROVOD_AND_MPI = ("HOROVOD_", "OMPI_MCA_")


def package_flags(ranks: int) -> dict[str, str]:
    """What hpc_train would set on each of so many ranks of this node, one thread each. Local."""
    place = LaunchPlace(launched=True, size=ranks, local_rank=0, local_size=ranks)
    found = settings_before_mpi({"OMP_NUM_THREADS": "1"}, len(os.sched_getaffinity(0)), place)
    return {name: value for name, value in found.items() if name.startswith(OF_HOROVOD_AND_MPI)}
