"""What this machine has for trials, and what a trial takes of it. Local."""

from __future__ import annotations

import os

from hpc_train.config.job import JobConfig
from hpc_train.distributed.devices import nvidia_device_count
from hpc_train.jobs.tiers import load_tiers, resources_for
from hpc_train.processes import home_folder
from hpc_train.tuning.slots import Wanted


def devices() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (
        [name for name in given.split(",") if name]
        if given is not None
        else list(map(str, range(nvidia_device_count())))
    )


def wanted_by(job: JobConfig, ranks: int) -> Wanted:
    """What a trial of `ranks` ranks takes, of one node's cores and GPUs."""
    wants = resources_for(job.resources, load_tiers(os.environ, home_folder()))
    return Wanted(ranks, wants.cores_per_rank, wants.nodes * wants.gpus_per_node or None)
