"""What a machine has not for a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpc_train.config.resources import Resources
from hpc_train.jobs.schedulers.local.scheduler import Machine, machine_shortfalls, this_machine


def wanted(**options: Any) -> Resources:
    return Resources(tier="T", **options)


def test_the_gpus_of_this_machine() -> None:
    machine = this_machine()
    assert machine.gpus == len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    assert machine.cores >= 1


def test_one_machine() -> None:
    assert machine_shortfalls(wanted(nodes=2, ranks_per_node=64, cores_per_rank=8, memory="9T"), Machine(2, 0)) == []
    assert machine_shortfalls(wanted(gpus_per_node=2), Machine(2, 2)) == []
    assert machine_shortfalls(wanted(gpus_per_node=1), Machine(2, 0)) == [
        "gpus_per_node: 1 GPU wanted, but this machine has none; ask for fewer, or use a tier without GPUs"
    ]
    assert machine_shortfalls(wanted(nodes=2, gpus_per_node=2), Machine(8, 3)) == [
        "gpus_per_node: 4 GPUs wanted (2 nodes of 2), but this machine has 3; ask for fewer, or use a tier without GPUs"
    ]
