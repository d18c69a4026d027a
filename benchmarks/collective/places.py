"""Where ranks run: on one node, one on each of several, on all of them, or here over TCP. Pure but for `start`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scale.network import ACROSS_NODES, ONE_NODE, OVER_TCP
from support.launch import TCP, Ranks, slots
from support.usage import UsageError

from collective.ways import OPERATIONS, REDUCTIONS, Operation

ALL_NODES = "all nodes"
PLACES: Mapping[str, str] = {"node": ONE_NODE, "nodes": ACROSS_NODES, "all": ALL_NODES, "tcp": OVER_TCP}
"""Names on the command line, and in words."""
TCP_BYTES = 1 << 26
"""Larger sizes are left to faster links."""


@dataclass(frozen=True)
class Run:
    """One mpirun.

    Attributes:
        options: Of mpirun, for where ranks go. env: beside `environment()`.
    """

    place: str
    ranks: int
    operations: tuple[Operation, ...]
    options: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    most_bytes: int | None = None

    @property
    def one_sided(self) -> bool:
        """One-sided communication and Horovod want MPI started in different ways, so none has both."""
        return self.operations[0] not in REDUCTIONS

    def start(self, arguments: Sequence[str], folder: Path, env: Mapping[str, str]) -> Ranks:
        """The ranks, to be entered; inside a Slurm job mpirun may use all of its nodes."""
        allocation = "SLURM_JOB_ID" in os.environ
        return Ranks(self.ranks, arguments, folder, {**env, **self.env}, allocation, self.options)


def nodes_of(env: Mapping[str, str]) -> tuple[int, int]:
    """Nodes of this Slurm job, and ranks that the first of them has a place for; (1, slots) outside one."""
    nodes = env.get("SLURM_JOB_NUM_NODES", "1")
    if not nodes.isdecimal() or int(nodes) <= 1:
        return 1, slots()
    first = re.match(r"\d+", env.get("SLURM_TASKS_PER_NODE", "")) or re.match(
        r"\d+", env.get("SLURM_NTASKS_PER_NODE", "")
    )
    return int(nodes), int(first[0]) if first else max(1, slots() // int(nodes))


def default_places(nodes: int) -> tuple[str, ...]:
    """On one node also what TCP takes there: it stands for a network between nodes."""
    return ("node", "tcp") if nodes == 1 else ("node", "nodes", "all")


def runs(
    places: Sequence[str],
    ranks: Sequence[int],
    operations: Sequence[Operation],
    nodes: int,
    ranks_per_node: int,
) -> list[Run]:
    """All runs that the arguments ask for, each once.

    Raises:
        UsageError: A place needs several nodes, or a count is 1: nobody to exchange with.
    """
    if 1 in ranks:
        raise UsageError(
            "--ranks: one rank has nobody to exchange anything with; give 2 or more; in a Slurm job there are as many "
            "as sbatch is told by --ntasks-per-node and --nodes"
        )
    reductions: tuple[Operation, ...] = tuple(name for name in REDUCTIONS if name in operations)
    one_sided: tuple[Operation, ...] = tuple(n for n in OPERATIONS if n in operations and n not in REDUCTIONS)
    found: list[Run] = []
    for name in places:
        if name in ("nodes", "all") and nodes == 1:
            raise UsageError(f"--places {name}: there is one node only; run it in a Slurm job of several")
        if name == "tcp" and "allreduce" in operations:
            found += [Run(OVER_TCP, n, ("allreduce",), env=TCP, most_bytes=TCP_BYTES) for n in ranks]
        if name == "tcp":
            continue
        counts = list(ranks)
        options: tuple[str, ...] = ()
        if name == "node" and nodes > 1:
            counts = sorted({n for n in (min(n, ranks_per_node) for n in ranks) if n > 1})
        elif name == "nodes":
            counts, options = [nodes], ("--map-by", "ppr:1:node")
        elif name == "all":
            counts = [n for n in ranks if n > ranks_per_node]
        for n in counts:
            found += [Run(PLACES[name], n, own, options) for own in (reductions, one_sided) if own]
    return found
