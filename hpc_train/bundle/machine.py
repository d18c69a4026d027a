"""What the machine and Slurm say of themselves and of a job, each program with a time limit."""

from __future__ import annotations

import importlib.metadata
import json
import os
import resource
from collections.abc import Iterator

from hpc_train.bundle.contents import Entry
from hpc_train.doctor.tools import Tools
from hpc_train.telemetry.environment import noted_variables

LIMIT_SECS = 15.0
PROGRAMS = {
    "machine/cpus.txt": ("lscpu",),
    "machine/topology.txt": ("lstopo-no-graphics", "--of", "console"),
    "machine/gpus.txt": ("nvidia-smi",),
    "machine/gpu_topology.txt": ("nvidia-smi", "topo", "-m"),
    "machine/memory.txt": ("free", "-m"),
    "machine/mounts.txt": ("findmnt", "--noheadings", "-o", "TARGET,FSTYPE,SIZE,AVAIL"),
    "machine/mpirun.txt": ("mpirun", "--version"),
    "slurm/version.txt": ("sinfo", "--version"),
    "slurm/nodes.txt": ("sinfo", "--noheader", "--Node", "--long"),
    "slurm/topology.txt": ("scontrol", "show", "topology"),
}
OF_JOB = {
    "slurm/job.txt": ("scontrol", "show", "job"),
    "slurm/accounting.txt": (
        "sacct",
        "--parsable2",
        "-o",
        "JobID,State,ExitCode,Start,End,NodeList,MaxRSS,Reason",
        "-j",
    ),
}
"""Of these, the job's number is the last word."""


def of_machine(job_id: str | None) -> Iterator[Entry]:
    """What these programs print, those that are there; `job_id`: the number that the job has in Slurm."""
    commands = {name: list(command) for name, command in PROGRAMS.items()}
    if job_id is not None:
        commands |= {name: [*command, job_id] for name, command in OF_JOB.items()}
    with Tools() as tools:
        started = [(name, command, tools.start(command, LIMIT_SECS)) for name, command in commands.items()]
        for name, command, tool in started:
            outcome = tool.outcome()
            if outcome.code is None and not outcome.out:
                continue  # it is not there
            yield Entry(name, f"$ {' '.join(command)}\n{outcome.out}{outcome.err}", outcome.failure or "")


def of_python() -> Iterator[Entry]:
    """Versions of all packages, the variables that decide how a job would run here, and limits of a process."""
    found, nameless = {}, 0
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        nameless += name is None  # half removed
        found[str(name)] = str(distribution.version)
    note = f"{nameless} without a name, as of packages that were half removed" if nameless else ""
    yield Entry("python/packages.txt", "".join(f"{n}=={found[n]}\n" for n in sorted(found, key=str.lower)), note)
    yield Entry("python/environment.json", json.dumps(noted_variables(os.environ), indent=1) + "\n")
    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in names}
    yield Entry("machine/limits.json", json.dumps(limits, indent=1) + "\n")
