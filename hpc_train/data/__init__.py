"""HDF5 shards: written, found, checked, and read batch by batch, each rank its own rows."""

from __future__ import annotations

from hpc_train.data.writing.writer import write_shards

__all__ = ["write_shards"]
