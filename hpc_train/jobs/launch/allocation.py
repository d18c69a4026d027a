"""The Slurm allocation that this process is in: its nodes, the ranks of each, and which can be used now. Local."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence

from hpc_train.errors import SchedulerError
from hpc_train.jobs.launch.host_probe import silent
from hpc_train.jobs.launch.hosts import Host
from hpc_train.jobs.launch.nodes import Node

ASK_SECS = 20.0
STEP_SECS = 60.0
"""Of a step that shows that a node lives; to a dead one srun fails sooner."""
_STEP = ("--overlap", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--input=none", "--nodelist")


def allocated_nodes(env: Mapping[str, str]) -> tuple[str, ...]:
    """The nodes of the Slurm job that this process is in; none outside of one.

    Raises:
        SchedulerError: scontrol does not name them.
    """
    if "SLURM_JOB_ID" not in env or "SLURM_JOB_NODELIST" not in env:
        return ()
    asked = ["scontrol", "show", "hostnames", env["SLURM_JOB_NODELIST"]]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=ASK_SECS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SchedulerError(f"scontrol show hostnames does not name the nodes of this job: {error}") from None
    return tuple(done.stdout.split())


def repeated(text: str) -> Iterator[int]:
    """Slurm's `4(x2),2`, which is 4, 4, 2. Pure."""
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        yield from [int(count)] * int(times or 1)


def hosts_of(names: Sequence[str], tasks: str, ranks: int | None) -> tuple[Host, ...]:
    """The nodes that have ranks, with those of each, as mpirun places them: node after node, `tasks` on each. Pure.

    Args:
        tasks: SLURM_TASKS_PER_NODE; where it does not suit, one on each.
        ranks: How many in all; those that are more than the tasks go round. None: as many as tasks.
    """
    slots = list(repeated(tasks))
    if len(slots) != len(names):
        slots = [1] * len(names)
    left = sum(slots) if ranks is None else ranks
    found = [0] * len(names)
    for index, most in enumerate(slots):
        found[index] = min(most, left)
        left -= found[index]
    for extra in range(left):
        found[extra % len(names)] += 1
    return tuple(Host(name, count) for name, count in zip(names, found, strict=True) if count)


def problems(hosts: Sequence[Host], is_over: Callable[[], bool]) -> dict[str, str]:
    """Which of these nodes of the allocation cannot be used, by name, and why in words: a step is started on each.

    Once `is_over`, none is waited for any more.
    """
    missing = silent([host.name for host in hosts], ["srun", *_STEP], is_over, STEP_SECS)
    states = {} if is_over() else _states(hosts)
    nodes = [Node(host.name, states.get(host.name, ""), host.name not in missing) for host in hosts]
    return {node.name: node.problem for node in nodes if node.problem is not None}


def _states(hosts: Sequence[Host]) -> dict[str, str]:
    """As sinfo has them; empty where it does not answer."""
    asked = ["sinfo", "-hN", "-n", ",".join(host.name for host in hosts), "-o", "%N=%T"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=ASK_SECS, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(line.partition("=")[::2] for line in done.stdout.split())
