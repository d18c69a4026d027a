"""The rows of a step of all ranks, and how a rank computes its part, where a job goes on with other ranks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.run_config import RunConfig
from hpc_train.config.specs import KEPT_IN_SYNC, TrainSpec
from hpc_train.errors import UserError
from hpc_train.telemetry.units import counted

ROWS, OF_A_RANK, ASKED_FOR = "global_batch", "batch_of_a_rank", "data.train.batch_size"
"""Settings of a checkpoint: rows of a step, how a rank computed its part of them, and what the job file says of it."""
LARGEST = 1 << 40


@dataclass(frozen=True)
class GlobalBatch:
    """What each of the ranks that train, or of the copies of the model, gives to a step.

    Attributes:
        rows: Of a rank, which it computes in so many `pieces`. readers: those ranks.
        wanted: Rows of all that the run before went by; None: there was none, it is not known, or the job file now
            asks for another `batch_size`.
        kept: Whether `rows` is what makes them so many, as near as whole rows come.
    """

    rows: int
    pieces: int
    readers: int
    wanted: int | None
    kept: bool

    @classmethod
    def of(cls, spec: TrainSpec, config: RunConfig, readers: int, before: Mapping[str, str]) -> GlobalBatch | None:
        """None where there is none: an input_fn makes the batches, or asynchronous workers take steps of their own.

        Args:
            before: What the run was asked for that made the checkpoint to go on from; empty: not known, or none.

        Raises:
            UserError: It is to be kept, and there is none.
        """
        source = spec.input_fn
        if config.strategy == "async" and spec.keep_global_batch:
            raise UserError(f"train.{KEPT_IN_SYNC}")
        if config.strategy == "async" or not isinstance(source, HDF5Input):
            return None
        rows, pieces = source.batch_size, config.accumulate_steps
        wanted = _whole(before.get(ROWS, "")) if before.get(ASKED_FOR) == str(rows) else None
        if wanted is None or not spec.keep_global_batch:
            return cls(rows, pieces, readers, wanted, False)
        at_once = -(-rows // pieces)
        rows = max(1, (2 * wanted + readers) // (2 * readers))
        return cls(rows, -(-rows // at_once), readers, wanted, True)

    @property
    def total(self) -> int:
        """Rows of a step."""
        return self.rows * self.readers

    @property
    def settings(self) -> dict[str, str]:
        """What a checkpoint keeps of it."""
        of_a_rank = counted(self.rows, "row") + (f" in {self.pieces} pieces" if self.pieces > 1 else "")
        return {ROWS: str(self.wanted if self.kept else self.total), OF_A_RANK: of_a_rank}

    def warning(self, step: int) -> str | None:
        """Where it is another one from `step` on, what to say of it."""
        if self.wanted is None or self.total == self.wanted:
            return None
        why = "train.keep_global_batch keeps it"
        if self.kept:
            why = f"{counted(self.wanted, 'row')} cannot be divided evenly among {self.readers} (keep_global_batch)"
        return (
            f"from step {step} on a step has {counted(self.total, 'row')} of all ranks, before {self.wanted:,}: {why}"
        )


def _whole(text: str) -> int | None:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0
    return number if 0 < number <= LARGEST else None
