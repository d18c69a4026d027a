"""What ranks send each other in a step. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["allreduce", "reducescatter", "allgather", "alltoall", "push", "pull"]


@dataclass(frozen=True)
class Call:
    """One exchange of a step.

    Attributes:
        nbytes: Of what is exchanged, whole: before it is cut, or after it is gathered.
        ranks: How many take part. what: what it is for.
    """

    kind: Kind
    nbytes: int
    ranks: int
    what: str = ""

    @property
    def sent(self) -> int:
        """Bytes that one rank sends; of a pull, those that are sent to it.

        A ring's allreduce is a reducescatter and an allgather, each of which passes all parts but one to the next rank.
        """
        if self.kind in ("push", "pull"):
            return self.nbytes
        times = 2 if self.kind == "allreduce" else 1
        return times * (self.ranks - 1) * self.nbytes // self.ranks
