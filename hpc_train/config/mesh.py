"""MeshOptions: how the ranks of a job divide its rows, and its model. Pure."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from hpc_train.config.types import STRICT, Count
from hpc_train.errors import UserError


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MeshOptions:
    """`run.mesh`: see RunConfig.

    Attributes:
        data: How many copies of the model train; None: as many as the ranks give.
        model: Among how many ranks each copy is divided.
    """

    data: Count | None = None
    model: Count = 1

    @property
    def least_ranks(self) -> int:
        """So many ranks it takes at least."""
        return (self.data or 1) * self.model

    def check_ranks(self, ranks: int) -> None:
        """UserError where so many ranks that train cannot be divided so; it says what would fit."""
        if ranks % self.model == 0 and self.data in (None, ranks // self.model):
            return
        wanted = self.least_ranks if self.data else -(-ranks // self.model) * self.model
        own = f"data: {self.data}, model: {self.model}" if self.data else f"model: {self.model}"
        fitting = ", ".join(f"{{data: {ranks // m}, model: {m}}}" for m in range(1, ranks + 1) if ranks % m == 0)
        raise UserError(
            f"run.mesh: {own} does not go with {ranks} rank{'s' if ranks > 1 else ''}; start {wanted} ranks (hpc-train "
            f"launch --ranks, mpirun -np), or set one that fits: {fitting}"
        )
