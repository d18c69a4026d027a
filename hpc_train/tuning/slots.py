"""Slots: where the trials of a driver run at once, each with cores and devices that no other has. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hpc_train.errors import UserError
from hpc_train.telemetry.units import counted


@dataclass(frozen=True)
class Slot:
    """Room for one trial at a time.

    Attributes:
        cores: Of this machine, by number.
        devices: GPUs, as CUDA_VISIBLE_DEVICES names them; empty: there are none to be shared.
    """

    number: int
    cores: tuple[int, ...]
    devices: tuple[str, ...] = ()


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
    if by_devices == 0 and wanted.devices is not None:
        raise UserError(
            f"resources.gpus_per_node: a trial wants {counted(each, 'GPU')}, and there are {len(devices)} here; ask "
            "for fewer"
        )
    by_devices = max(1, by_devices)  # more ranks than devices share them, as elsewhere
    count = parallel or min(by_cores, by_devices)
    if count > len(cores):
        raise UserError(
            f"tune.parallel_trials: {count} trials want a core each, and this process may use "
            f"{counted(len(cores), 'core')}; allowed: {len(cores)} at most"
        )
    if each and count > by_devices:
        raise UserError(
            f"tune.parallel_trials: {count} trials of {counted(each, 'GPU')} want {count * each} GPUs, and there are "
            f"{len(devices)}; allowed: {by_devices} at most"
        )
    shares = [len(cores) * number // count for number in range(count + 1)]
    given = [tuple(cores[begin:end]) for begin, end in pairwise(shares)]
    return tuple(
        Slot(number, own, tuple(devices[number * each : (number + 1) * each])) for number, own in enumerate(given)
    )
