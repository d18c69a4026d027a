"""Which ranks measure energy, and how the chief hears of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from hpc_train.distributed.world import World
from hpc_train.telemetry.energy.account import EnergyAccount, Metered
from hpc_train.telemetry.energy.counter import Counter, NotMeasuredError
from hpc_train.telemetry.energy.meter import Meter
from hpc_train.telemetry.energy.node import node_counters
from hpc_train.telemetry.energy.slurm import slurm_counter
from hpc_train.telemetry.reporter import ENERGY

BROKEN = -1.0
"""What a rank tells whose counters have failed."""


class RankEnergy:
    """What this rank measures: the first one of each node the whole node, or the chief the whole job.

    Attributes:
        meter: None where this rank measures nothing. about: what it measures, and why it does not; None on the others.
    """

    def __init__(self, meter: Meter | None, about: Metered | None) -> None:
        self.meter, self.about = meter, about

    def described(self) -> dict[str, Any]:
        """For environment.json: `energy` of this rank, empty where another one measures its node. Local."""
        if self.about is None:
            return {}
        return {"energy": {"covers": self.about.covers, "lacks": self.about.why, "job": self.about.host is None}}

    def taken(self) -> dict[str, float]:
        """`joules` since the run began, BROKEN where they are not known any more; empty without a meter. Local."""
        if self.meter is None:
            return {}
        joules = self.meter.read()
        return {ENERGY: BROKEN if joules is None else joules}


@contextmanager
def rank_energy(world: World) -> Iterator[RankEnergy]:
    """Begins to measure on the ranks that do. Collective.

    Slurm's own count is taken where it counts, for the whole job; else the counters of each node.
    """
    with ExitStack() as stack:

        def begun(host: str | None, counters: Sequence[Counter], covers: str, lacks: str) -> RankEnergy:
            return RankEnergy(stack.enter_context(Meter(counters)), Metered(host, covers, lacks))

        own: list[Counter] = []

        def slurm_counts() -> bool:
            try:
                own.append(slurm_counter(os.environ))
            except NotMeasuredError:
                return False
            return True

        if world.on_chief(slurm_counts):
            yield begun(None, own, "all nodes of the job, by Slurm", "") if own else RankEnergy(None, None)
        elif world.local_rank:
            yield RankEnergy(None, None)
        else:
            try:
                found = node_counters()
            except NotMeasuredError as error:
                yield RankEnergy(None, Metered(world.host, "", str(error)))
            else:
                yield begun(world.host, found.counters, found.covers, found.lacks)


def account_of(
    energy: RankEnergy, ranks: Sequence[Mapping[str, Any]], before: Mapping[str, Any] | None
) -> EnergyAccount:
    """The chief's account: `ranks` is what all ranks have told of themselves, with RankEnergy.described. Local."""
    metered = {
        rank: Metered(None if about["job"] else own["host"], about["covers"], about["lacks"])
        for rank, own in enumerate(ranks)
        if (about := own.get("energy")) is not None
    }
    return EnergyAccount(metered, energy.meter, before)
