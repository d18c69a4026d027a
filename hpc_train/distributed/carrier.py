"""What carries tensors between ranks: Horovod, or MPI itself, through the host or in the memory of GPUs."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Literal

from hpc_train.distributed import gpu_memory, horovod, mpi
from hpc_train.distributed.collectives import Collectives
from hpc_train.distributed.world import World

Carrier = Literal["horovod", "mpi", "mpi-gpu"]
NAMES: Mapping[Carrier, str] = {"horovod": "Horovod", "mpi": "MPI", "mpi-gpu": "MPI in the memory of GPUs"}


def carrier_of(world: World, asked: Carrier | None = None) -> Carrier:
    """`asked`; where nothing is, Horovod if the chief has it, else MPI. The same on all ranks. Collective."""
    if asked:
        return asked
    carrier: Carrier = world.broadcast("horovod" if _is_installed("horovod") else "mpi")
    return carrier


def _is_installed(name: str) -> bool:
    """Whether it is a package; a folder of the name is none."""
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


def collectives_by(carrier: Carrier, world: World, groups: Sequence[Sequence[int]] = ()) -> Collectives:
    """Those of all ranks of `world`. Collective.

    Args:
        groups: Ranks of each group that `Collectives.group` will be asked for, see horovod.collectives_of; MPI itself
            makes any group when it is asked for.

    Raises: As the implementation's `collectives_of`.
    """
    if carrier == "horovod":
        return horovod.collectives_of(world, groups)
    return mpi.collectives_of(world) if carrier == "mpi" else gpu_memory.collectives_of(world)
