"""What each rank does. Pure."""

from __future__ import annotations

CHIEF_RANK = 0


def role_of(rank: int) -> str:
    """The role of `rank` in a synchronous job: rank 0 is the chief, which trains too; the others are workers."""
    return "chief" if rank == CHIEF_RANK else "worker"
