"""What each rank does. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hpc_train.distributed.mesh import Mesh

CHIEF_RANK = 0


@dataclass(frozen=True)
class Roles:
    """Who does what in a job of `size` ranks.

    Synchronous: rank 0 is the chief, which trains too, or is dedicated to what a chief does beside; the others are
    workers. Asynchronous: the first `servers` ranks hold the parameters, rank 0 is the chief among them; the others are
    workers.

    Attributes:
        servers: Parameter servers; 0 in a synchronous job.
        dedicated: Whether the chief of a synchronous job takes no steps.
        model: Among how many ranks each copy of the model is divided.
    """

    size: int
    servers: int = 0
    dedicated: bool = False
    model: int = 1

    @property
    def idle(self) -> int:
        """Ranks that take no steps: the first ones."""
        return self.servers + self.dedicated

    @property
    def trainers(self) -> int:
        """Ranks that train."""
        return self.size - self.idle

    @property
    def readers(self) -> int:
        """Parts of the data: of each rank that trains, or of each copy of the model, whose ranks read the same one."""
        return self.trainers // self.model

    def trains(self, rank: int) -> bool:
        """Whether `rank` takes steps."""
        return rank >= self.idle

    def role_of(self, rank: int) -> str:
        """The role of `rank`."""
        if rank == CHIEF_RANK:
            return "chief"
        return "server" if rank < self.servers else "worker"

    def serves(self, rank: int) -> bool:
        """Whether `rank` is a parameter server."""
        return rank < self.servers

    def part_of(self, rank: int) -> int:
        """The part of the data that `rank` reads, from 0; of a rank that reads none, the first one."""
        return max(0, rank - self.idle) // self.model

    def mesh_of(self, rank: int) -> Mesh:
        """The mesh of the ranks that train, as `rank`, which does, sees it."""
        return Mesh(self.readers, self.model, rank - self.idle)
