"""Which ranks measure energy, and how the chief hears of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hpc_train.distributed.world import World
from hpc_train.telemetry.energy.account import JOULES, SECS, STILL, EnergyAccount, Metered
from hpc_train.telemetry.energy.counter import NotMeasuredError
from hpc_train.telemetry.energy.meter import Meter
from hpc_train.telemetry.energy.node import node_counters

BROKEN = -1.0
"""What a rank tells whose counters have failed."""


class RankEnergy:
    """What this rank measures: the first one of each node its node, the others nothing.

    Attributes:
        meter: None where this rank measures nothing. about: what it measures, and why it does not; None on the others.
    """

    def __init__(self, meter: Meter | None, about: Metered | None) -> None:
        self.meter, self.about = meter, about

    def described(self) -> dict[str, Any]:
        """For environment.json: `energy` of this rank, empty where another one measures its node. Local."""
        if self.about is None:
            return {}
        return {"energy": {"covers": self.about.covers, "lacks": self.about.why}}

    def taken(self) -> dict[str, float]:
        """For EnergyAccount.note, since the run began: JOULES (BROKEN where they are not known any more), SECS, STILL.

        Empty without a meter. Local.
        """
        if self.meter is None:
            return {}
        joules = self.meter.read()
        if joules is None:
            return {JOULES: BROKEN}
        return {JOULES: joules, SECS: self.meter.secs, STILL: float(len(self.meter.still))}


@contextmanager
def rank_energy(world: World) -> Iterator[RankEnergy]:
    """Begins to measure on the first rank of each node. Local."""
    found, why = None, ""
    if world.local_rank == 0:
        try:
            found = node_counters(devices=world.devices)
        except NotMeasuredError as error:
            why = str(error)
    if found is not None:
        with Meter(found.counters) as meter:
            yield RankEnergy(meter, Metered(world.host, found.covers, found.lacks))
    else:
        yield RankEnergy(None, None if world.local_rank else Metered(world.host, "", why))


def account_of(
    energy: RankEnergy, ranks: Sequence[Mapping[str, Any]], before: Mapping[str, Any] | None
) -> EnergyAccount:
    """The chief's account: `ranks` is what all ranks have told of themselves, with RankEnergy.described. Local."""
    metered = {
        rank: Metered(own["host"], about["covers"], about["lacks"])
        for rank, own in enumerate(ranks)
        if (about := own.get("energy")) is not None
    }
    return EnergyAccount(metered, energy.meter, before)
