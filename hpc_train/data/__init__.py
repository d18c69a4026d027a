"""HDF5 shards: written, found, checked, and read batch by batch, each rank its own rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpc_train.data.writing.writer import write_shards

__all__ = ["write_shards"]


def __getattr__(name: str) -> Any:
    """What writes is imported when it is first used: a rank that trains has no use for it."""
    if name != "write_shards":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hpc_train.data.writing.writer import write_shards

    return write_shards
