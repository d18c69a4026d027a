"""Slots: where the trials of a driver run at once, each with cores and devices that no other has. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hpc_train.errors import UserError
from hpc_train.telemetry.units import counted


@dataclass(frozen=True)
class Slot:
    """Room for one trial at a time.

    Attributes:
        cores: By number; where `is_bound` is false, only how many they are counts.
        devices: GPUs, as CUDA_VISIBLE_DEVICES names them; empty: there are none to be shared. As cores.
        node: Of a Slurm allocation, which gives the slot its cores; None: this machine.
        memory: Of the node's, in MiB; None: it is not given out.
        is_bound: Whether ranks may use its cores alone. Where Slurm gives the slot its cores, or counts cores of this
            machine without saying which, they only have so many threads.
        is_alone: Whether its node has no other slots.
    """

    number: int
    cores: tuple[int, ...]
    devices: tuple[str, ...] = ()
    node: str | None = None
    memory: int | None = None
    is_bound: bool = True
    is_alone: bool = True

    @property
    def prefix(self) -> list[str]:
        """The words before a command that run it in the slot, as one step of the allocation."""
        if self.node is None:
            return []
        words = ["srun", "--exact", "--nodes=1", "--ntasks=1", f"--nodelist={self.node}", "--export=ALL"]
        words += [f"--cpus-per-task={len(self.cores)}", f"--job-name=slot-{self.number}", "--input=none"]
        words += [f"--gpus-per-node={len(self.devices)}"] if self.devices else []
        return words + ([f"--mem={self.memory}M"] if self.memory is not None else [])


@dataclass(frozen=True)
class Wanted:
    """What one trial takes.

    Attributes:
        devices: None: one for each rank, where there are any.
    """

    ranks: int
    cores_per_rank: int = 1
    devices: int | None = None


def slots_of(cores: Sequence[int], devices: Sequence[str], wanted: Wanted, parallel: int | None) -> tuple[Slot, ...]:
    """The slots of a machine.

    Cores that are left over go to the first ones. A trial gets fewer cores than it wants where `parallel`, or the
    machine, leaves it no more; its ranks then share them.

    Args:
        cores, devices: Those there are to give out.
        parallel: How many trials run at once; None: as many as get all that they want, one at least.

    Raises:
        UserError: There are fewer cores than trials at once, or fewer devices than they want.
    """
    each = (wanted.ranks if wanted.devices is None else wanted.devices) if devices else 0
    by_cores = max(1, len(cores) // (wanted.ranks * wanted.cores_per_rank))
    by_devices = len(devices) // each if each else by_cores
    if wanted.devices is not None and wanted.devices > len(devices):
        raise UserError(
            f"resources.gpus_per_node: a trial wants {counted(wanted.devices, 'GPU')}, and there are "
            f"{len(devices) or 'none'} here; ask for fewer"
        )
    by_devices = max(1, by_devices)  # more ranks than devices share them, as elsewhere
    count = parallel or min(by_cores, by_devices)
    if count > len(cores):
        raise UserError(
            f"trials at once: {count} trials want a core each, and this process may use "
            f"{counted(len(cores), 'core')}; allowed: {len(cores)} at most"
        )
    if each and count > by_devices:
        raise UserError(
            f"trials at once: {count} trials of {counted(each, 'GPU')} want {count * each} GPUs, and there are "
            f"{len(devices)}; allowed: {by_devices} at most"
        )
    shares = [len(cores) * number // count for number in range(count + 1)]
    given = [tuple(cores[begin:end]) for begin, end in pairwise(shares)]
    return tuple(
        Slot(number, own, tuple(devices[number * each : (number + 1) * each]), is_alone=count == 1)
        for number, own in enumerate(given)
    )


@dataclass(frozen=True)
class Node:
    """One of an allocation.

    Attributes:
        memory: In MiB; None: it is not given out.
    """

    name: str
    cores: int
    devices: int = 0
    memory: int | None = None


def slots_of_nodes(nodes: Sequence[Node], wanted: Wanted, parallel: int | None) -> tuple[Slot, ...]:
    """The slots of an allocation of several nodes; a trial runs on one of them.

    Args:
        parallel: How many trials run at once on all of them; None: as many as get all that they want.

    Raises:
        UserError: As slots_of.
    """
    found: list[Slot] = []
    for number, node in enumerate(nodes):
        own = None if parallel is None else parallel // len(nodes) + (number < parallel % len(nodes))
        if own == 0:
            continue
        here = slots_of(range(node.cores), [str(device) for device in range(node.devices)], wanted, own)
        memory = node.memory // len(here) if node.memory is not None else None
        found += [
            replace(slot, number=len(found) + slot.number, node=node.name, memory=memory, is_bound=False)
            for slot in here
        ]
    return tuple(found)
