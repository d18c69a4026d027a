"""What this machine has to give, and what a job wants beyond that."""

from __future__ import annotations

import os
from typing import NamedTuple

from hpc_train.config.resources import Resources
from hpc_train.distributed.world import nvidia_device_count
from hpc_train.telemetry.units import counted


class Machine(NamedTuple):
    """Cores and GPUs of one machine."""

    cores: int
    gpus: int


def this_machine() -> Machine:
    """The one that this process runs on, as far as it may use it."""
    return Machine(len(os.sched_getaffinity(0)), nvidia_device_count())


def machine_shortfalls(resources: Resources, machine: Machine) -> list[str]:
    """What `machine` cannot give, each a sentence: what is wanted, what there is, and what to change. Pure.

    All of a job's nodes are the one machine. Ranks share its cores, however few, but have GPUs of their own.
    """
    wanted = resources.nodes * resources.gpus_per_node
    if wanted <= machine.gpus:
        return []
    of_nodes = f" ({resources.nodes} nodes of {resources.gpus_per_node})" if resources.nodes > 1 else ""
    what = f"gpus_per_node: {counted(wanted, 'GPU')} wanted{of_nodes}, but this machine has {machine.gpus or 'none'}"
    return [f"{what}; ask for fewer, or use a tier without GPUs"]
