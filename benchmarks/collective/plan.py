"""What is measured, where, and how much: operations, the ways to do them, the places of ranks. Pure but for `start`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from scale.network import ACROSS_NODES, HOROVOD, MEMCPY, ONE_NODE, OVER_TCP, RAW
from support.launch import TCP, Ranks, nodes, slots, tasks_on_first_node
from support.usage import UsageError

Operation = Literal["allreduce", "broadcast", "put", "get", "accumulate"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
REDUCTIONS: tuple[Operation, ...] = ("allreduce", "broadcast")
"""Those of all ranks; the others go from the last rank to the first one's memory."""

GROUP, ONE_TENSOR = HOROVOD
MEAN = "Horovod, group, mean"
NEW_MEMORY, BESIDE = "MPI_Allreduce, new memory", "MPI_Allreduce beside Horovod"
BCAST = "MPI_Bcast"
OUR_WINDOW, ALLOCATE, ALLOCATE_SHARED = "hpc_train's window", "Win.Allocate", "Win.Allocate_shared"

WHAT: Mapping[str, str] = {
    MEMCPY: "each rank copies as many bytes between two arrays of its own, all at the same time",
    RAW: "mpi4py's Allreduce from one array into another; Horovod is shut down meanwhile",
    NEW_MEMORY: "the same into an array allocated for it, as TensorFlow's results are; large ones are new pages",
    BESIDE: "MPI_Allreduce while Horovod's thread looks for work of its own",
    ONE_TENSOR: "grouped_allreduce of one tensor, a sum: nothing is copied into the fusion buffer",
    GROUP: "grouped_allreduce of eight tensors, a sum: they are copied into the fusion buffer and out again",
    MEAN: "the same as a mean, which is what training does with gradients",
    BCAST: "mpi4py's Bcast in place",
    OUR_WINDOW: "the window of distributed/parameter_server: memory that the ranks of a node share, else Win.Allocate",
    ALLOCATE: "mpi4py's Win.Allocate",
    ALLOCATE_SHARED: "mpi4py's Win.Allocate_shared, the memory that hpc_train's window takes on one node",
}
TENSORS = 8
"""Of a group."""
DIAGNOSED = (NEW_MEMORY, BESIDE)
"""Ways that tell what bounds the others."""
DIAGNOSED_BYTES = 1 << 16
"""They are measured from here on."""


def raw_of(operation: str) -> str:
    """The way that others are compared with, beside memcpy."""
    return {"allreduce": RAW, "broadcast": BCAST}.get(operation, ALLOCATE)


def bus_factor(operation: str, ranks: int) -> float:
    """Bus bandwidth over bytes a second, as nccl-tests defines them (doc/PERFORMANCE.md): what each link carries."""
    return 2 * (ranks - 1) / ranks if operation == "allreduce" else 1.0


def ratio_text(ratio: float | None) -> str:
    """A ratio with three digits; empty where there is none."""
    return "" if ratio is None else f"{ratio:.3f}" if ratio >= 0.1 else f"{ratio:.2g}"


def size_name(nbytes: int) -> str:
    """Bytes in powers of 1024: 4 B, 64 KiB, 256 MiB."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >= 1 << power:
            return f"{nbytes / (1 << power):.4g} {unit}"
    return f"{nbytes} B"


def parse_size(text: str) -> int:
    """Bytes from text such as 4, 64K or 256M (powers of 1024, as nccl-tests has them).

    Raises:
        ValueError: It is no size, or no multiple of the four bytes of a float32.
    """
    unit = text[-1:].upper()
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(unit, 1)
    digits = text[:-1] if scale > 1 else text
    if not digits.isdecimal() or int(digits) == 0:
        raise ValueError(f"{text!r} is no size: give bytes, such as 4, 64K, 256M or 1G")
    if int(digits) * scale % 4:
        raise ValueError(f"{text!r} is no multiple of 4, the bytes of a float32")
    return int(digits) * scale


def sizes_between(begin: int, end: int, factor: int) -> tuple[int, ...]:
    """`begin`, and each size `factor` times the one before, up to `end`.

    Raises:
        ValueError: The factor is below 2, or the end before the beginning.
    """
    if factor < 2:
        raise ValueError(f"a factor of {factor}: give 2 or more")
    if end < begin:
        raise ValueError(f"sizes from {size_name(begin)} to {size_name(end)}: the end is before the beginning")
    found = [begin]
    while found[-1] * factor <= end:
        found.append(found[-1] * factor)
    return tuple(found)


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    Attributes:
        sizes: Bytes. rounds: A B B A rounds, two repeats each. repeat_secs: A repeat takes about so long, and one
            operation at least. limit_secs: For one mpirun.
    """

    sizes: tuple[int, ...]
    rounds: int
    repeat_secs: float
    limit_secs: float


FULL = Settings(sizes_between(4, 1 << 28, 4), rounds=3, repeat_secs=0.03, limit_secs=900.0)
QUICK = Settings((4, 4096, 1 << 20), rounds=1, repeat_secs=0.005, limit_secs=120.0)


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


def nodes_of() -> tuple[int, int]:
    """Nodes of this Slurm job, and ranks that the first of them has a place for; (1, slots) outside one."""
    return (1, slots()) if nodes() == 1 else (nodes(), tasks_on_first_node() or max(1, slots() // nodes()))


def default_places(there: int) -> tuple[str, ...]:
    """On one node also what TCP takes there: it stands for a network between nodes."""
    return ("node", "tcp") if there == 1 else ("node", "nodes", "all")


def runs(
    places: Sequence[str],
    ranks: Sequence[int],
    operations: Sequence[Operation],
    there: int,
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
        if name in ("nodes", "all") and there == 1:
            raise UsageError(f"--places {name}: there is one node only; run it in a Slurm job of several")
        if name == "tcp" and "allreduce" in operations:
            found += [Run(OVER_TCP, n, ("allreduce",), env=TCP, most_bytes=TCP_BYTES) for n in ranks]
        if name == "tcp":
            continue
        counts = list(ranks)
        options: tuple[str, ...] = ()
        if name == "node" and there > 1:
            counts = sorted({n for n in (min(n, ranks_per_node) for n in ranks) if n > 1})
        elif name == "nodes":
            counts, options = [there], ("--map-by", "ppr:1:node")
        elif name == "all":
            counts = [n for n in ranks if n > ranks_per_node]
        for n in counts:
            found += [Run(PLACES[name], n, own, options) for own in (reductions, one_sided) if own]
    return found
