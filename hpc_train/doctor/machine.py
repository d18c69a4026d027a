"""What `hpc-train doctor` reports about the machine: its GPUs, its shared memory, its limits."""

from __future__ import annotations

import re
import resource
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from hpc_train.doctor.tools import Finding, Outcome
from hpc_train.telemetry.energy.node import NodeCounters
from hpc_train.telemetry.units import counted, size

GPU_COMMAND = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"]
LITTLE_SHARED_BYTES = 1e9
FEW_FILES = 1024


class Gpu(NamedTuple):
    """One GPU as nvidia-smi lists it; its memory in bytes, None where it reports none."""

    name: str
    driver: str
    memory_bytes: int | None


def parse_gpus(text: str) -> list[Gpu]:
    """The GPUs in what GPU_COMMAND prints, a line each. Pure."""
    gpus = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3 and re.fullmatch(r"\d+[\d.]*", fields[1]):
            gpus.append(Gpu(fields[0], fields[1], int(fields[2]) << 20 if fields[2].isdecimal() else None))
    return gpus


def gpu_finding(outcome: Outcome, driver: bool) -> Finding:
    """Which GPUs there are. Pure.

    Args:
        outcome: Of GPU_COMMAND; driver: whether a driver of NVIDIA is loaded.
    """
    gpus = parse_gpus(outcome.out)
    if gpus and outcome.failure is None:
        kinds = [
            f"{count} × {gpu.name}" + (f", {size(gpu.memory_bytes)} each" if gpu.memory_bytes else "")
            for gpu, count in Counter(gpus).items()
        ]
        return Finding("GPUs", "ok", f"{'; '.join(kinds)}; driver {gpus[0].driver}")
    if outcome.code is None and outcome.failure and "there is no" in outcome.failure:
        if not driver:
            return Finding("GPUs", "not here", "no nvidia-smi, no driver")
        advice = "put nvidia-smi on PATH (in containers: apptainer --nv, docker --gpus all)"
        return Finding("GPUs", "warning", "a driver is loaded, but there is no nvidia-smi", advice)
    if outcome.code is None:
        advice = "the driver, or one of the GPUs, hangs: tell your administrators"
    else:
        advice = "usual on a login node: look on one with GPUs (srun --gpus=1 hpc-train doctor); else mend the driver"
    return Finding("GPUs", "warning", outcome.failure or "nvidia-smi lists none", advice)


def energy_finding(found: NodeCounters | str) -> Finding:
    """What of a job's energy this machine measures; or why it does not. Pure."""
    if isinstance(found, str):
        return Finding("energy", "not here", f"not measured: {found}")
    lacks = f"; not {found.lacks}" if found.lacks else ""
    return Finding("energy", "ok", f"{found.covers}: {counted(len(found.counters), 'counter')}{lacks}")


def shared_memory_finding(free_bytes: int | None) -> Finding:
    """Whether ranks of one node have room to exchange messages. Pure; `free_bytes` None: no /dev/shm at all."""
    if free_bytes is None:
        advice = "ranks of one node will talk more slowly: mount a tmpfs there"
        return Finding("shared memory", "warning", "there is no /dev/shm", advice)
    found = f"{size(free_bytes)} free in /dev/shm"
    if free_bytes >= LITTLE_SHARED_BYTES:
        return Finding("shared memory", "ok", found)
    advice = "run.strategy: async keeps parameters there: free some of it, or make it larger (docker run --shm-size=2g)"
    return Finding("shared memory", "warning", found, advice)


def limits_finding(locked_bytes: int, files: int, infiniband: Sequence[str]) -> Finding:
    """Whether the limits of processes are wide enough. Pure.

    Args:
        locked_bytes: Of memory (ulimit -l); files: that may be open (ulimit -n); both RLIM_INFINITY where unlimited.
        infiniband: Its devices.
    """
    unlimited = resource.RLIM_INFINITY
    locked = "no limit of locked memory" if locked_bytes == unlimited else f"{size(locked_bytes)} of locked memory"
    opened = "no limit of open files" if files == unlimited else f"{files:,} open files"
    network = f"InfiniBand: {', '.join(infiniband)}" if infiniband else "no InfiniBand"
    found = f"{locked}, {opened}; {network}"
    advice = []
    if infiniband and locked_bytes != unlimited:
        advice.append(
            "InfiniBand wants `ulimit -l unlimited`: /etc/security/limits.conf, and LimitMEMLOCK=infinity for slurmd"
        )
    if files != unlimited and files < FEW_FILES:
        advice.append(f"raise the number of open files: ulimit -n {FEW_FILES}")
    return Finding("limits", "warning" if advice else "ok", found, "; ".join(advice) or None)
