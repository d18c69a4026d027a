"""What there is for trials: this machine, or the nodes of the Slurm allocation that this process is in. Local."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile

from hpc_train.config.job import JobConfig
from hpc_train.distributed.devices import nvidia_device_count
from hpc_train.jobs.launch.allocation import allocated_nodes, repeated
from hpc_train.jobs.site.tiers import load_tiers, resources_for
from hpc_train.processes import home_folder
from hpc_train.tuning.execution.slots import Node, Slot, Wanted, slots_of, slots_of_nodes


def slots_here(wanted: Wanted, parallel: int | None) -> tuple[Slot, ...]:
    """Where trials can run.

    Raises:
        UserError: There is no room for `parallel` of them. SchedulerError: Slurm does not name the allocation's nodes.
    """
    nodes = allocation(os.environ)
    if len(nodes) > 1:
        return slots_of_nodes(nodes, wanted, parallel)
    cores = sorted(os.sched_getaffinity(0))
    if nodes and len(cores) > nodes[0].cores:  # a part of the machine, which Slurm does not bind to
        found = slots_of(cores[: nodes[0].cores], devices(), wanted, parallel)
        return tuple(replace(slot, is_bound=False) for slot in found)
    return slots_of(cores, devices(), wanted, parallel)


def devices() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; -1 hides itself and all behind it."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = map(str, range(nvidia_device_count())) if given is None else map(str.strip, given.split(","))
    return list(takewhile(lambda name: name not in ("", "-1"), names))


def wanted_by(job: JobConfig, ranks: int) -> Wanted:
    """What a trial of `ranks` ranks takes, of one node's cores and GPUs."""
    wants = resources_for(job.resources, load_tiers(os.environ, home_folder()))
    cores = int(os.environ.get("SLURM_CPUS_PER_TASK") or wants.cores_per_rank)
    return Wanted(ranks, cores, wants.nodes * wants.gpus_per_node or None)


def allocation(env: Mapping[str, str]) -> tuple[Node, ...]:
    """The nodes of the Slurm job that this process is in; none outside of one.

    Raises:
        SchedulerError: scontrol does not name them.
    """
    if not (names := allocated_nodes(env)):
        return ()
    cores = list(repeated(env.get("SLURM_JOB_CPUS_PER_NODE", "1")))
    gpus, memory = env.get("SLURM_GPUS_ON_NODE", ""), env.get("SLURM_MEM_PER_NODE", "")
    return tuple(
        Node(name, count, int(gpus) if gpus.isdecimal() else 0, int(memory) if memory.isdecimal() else None)
        for name, count in zip(names, cores, strict=True)
    )
