"""What each rank does. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hpc_train.errors import UserError

CHIEF_RANK = 0


@dataclass(frozen=True)
class Roles:
    """Who does what in a job of `size` ranks.

    Synchronous: rank 0 is the chief, which trains too; the others are workers. Asynchronous: the first `servers` ranks
    hold the parameters, rank 0 is the chief among them; the others are workers.

    Attributes:
        servers: Parameter servers; 0 in a synchronous job.
    """

    size: int
    servers: int = 0

    @property
    def readers(self) -> int:
        """Ranks that train, each on its own part of the data."""
        return self.size - self.servers

    def role_of(self, rank: int) -> str:
        """The role of `rank`."""
        if rank == CHIEF_RANK:
            return "chief"
        return "server" if rank < self.servers else "worker"

    def serves(self, rank: int) -> bool:
        """Whether `rank` is a parameter server."""
        return rank < self.servers

    def part_of(self, rank: int) -> int:
        """The part of the data that `rank` reads, from 0; of a server, which reads none, the first one."""
        return max(0, rank - self.servers)


def asynchronous_roles(size: int, servers: int) -> Roles:
    """The roles of an asynchronous job; UserError where no rank would be left to work."""
    if servers >= size:
        few = (
            f"1 rank cannot be split into {_counted(servers)}" if size == 1 else f"{size} ranks are {_counted(servers)}"
        )
        raise UserError(
            f"run.parameter_servers: {few} and no worker; start at least {servers + 1} ranks (hpc-train launch "
            f"--ranks, mpirun -np)" + (", or set fewer parameter_servers" if servers > 1 else ", or strategy: sync")
        )
    return Roles(size, servers)


def _counted(servers: int) -> str:
    return f"{servers} parameter server{'s' if servers > 1 else ''}"
