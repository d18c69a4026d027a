"""What each rank does. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hpc_train.errors import UserError

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
    """

    size: int
    servers: int = 0
    dedicated: bool = False

    @property
    def idle(self) -> int:
        """Ranks that take no steps: the first ones."""
        return self.servers + self.dedicated

    @property
    def readers(self) -> int:
        """Ranks that train, each on its own part of the data."""
        return self.size - self.idle

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
        return max(0, rank - self.idle)


def synchronous_roles(size: int, dedicated: bool) -> Roles:
    """The roles of a synchronous job; UserError where no rank would be left to train."""
    if dedicated and size < 2:
        raise UserError(
            "run.chief: dedicated leaves no rank to train where there is 1; start at least 2 ranks (hpc-train launch "
            "--ranks, mpirun -np), or set chief: train"
        )
    return Roles(size, dedicated=dedicated)


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
