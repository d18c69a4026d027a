"""Where the trials of a driver run, and on which ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpc_train.distributed.world import Threads
from hpc_train.jobs.launch.launchers.mpirun import Mpirun
from hpc_train.tuning.execution.fresh_ranks import FreshRanks
from hpc_train.tuning.execution.kept_ranks import KeptRanks
from hpc_train.tuning.execution.slots import Slot
from hpc_train.tuning.execution.trial_run import RankStarter
from hpc_train.tuning.search.driver_lock import DriverLock

AT_START = ("run.strategy", "run.chief", "run.mesh")
"""By these ranks start MPI and Horovod, which they can do but once."""


@dataclass(frozen=True)
class Place:
    """Where the trials of a driver run, and how.

    Attributes:
        threads: How threads of a rank may call MPI.
        keeps_ranks: Whether a slot's ranks stay for its next trial.
    """

    slots: Sequence[Slot]
    mpirun: Mpirun
    ranks: int
    threads: Threads
    keeps_ranks: bool = True

    def starter(self, slot: Slot, lock: DriverLock) -> RankStarter:
        """What starts the runs of a slot's trials."""
        return self.kept_ranks(slot, lock) if self.keeps_ranks else FreshRanks(slot, lock.name)

    def kept_ranks(self, slot: Slot, lock: DriverLock) -> KeptRanks:
        """Ranks that stay."""
        folder = lock.folder / f"slot-{slot.number}"
        return KeptRanks(self.mpirun, self.ranks, self.threads, slot, lock.name, folder)


def start_otherwise(keys: Iterable[str]) -> bool:
    """Whether trials that differ in `keys` of the job file may start MPI or Horovod in different ways. Pure."""
    return any(f"{key}.".startswith(f"{own}.") or f"{own}.".startswith(f"{key}.") for key in keys for own in AT_START)
