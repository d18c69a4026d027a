"""Storage: how the datasets of a shard lie in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpc_train.data.sources.table import Field
from hpc_train.errors import UserError

PLUGIN = ("zstd", "lz4", "blosc")
COMPRESSIONS = ("none", "gzip", *(f"gzip-{level}" for level in range(1, 10)), "lzf", *PLUGIN)
CHUNK_BYTES = 256 << 10
ALL_CHUNKS_BYTES = 16 << 20
MAX_CHUNK_BYTES = 2**32 - 1
"""HDF5's own limit."""


@dataclass(frozen=True)
class Storage:
    """How datasets lie in a shard: contiguous and aligned, or in chunks of whole rows, compressed or not.

    Attributes:
        compression: One of COMPRESSIONS; zstd, lz4 and blosc need hdf5plugin.
        chunk_rows: Rows of a chunk; None for contiguous where there is no compression, else about CHUNK_BYTES.
    """

    compression: str = "none"
    chunk_rows: int | None = None

    def __post_init__(self) -> None:
        if self.compression not in COMPRESSIONS:
            raise UserError(f"compression {self.compression!r}: give one of {', '.join(COMPRESSIONS)}")
        if self.chunk_rows is not None and self.chunk_rows < 1:
            raise UserError(f"chunk_rows {self.chunk_rows}: give 1 or more")
        if self.compression in PLUGIN:
            _hdf5plugin()

    def options(self, field: Field, rows: int, columns: int) -> dict[str, Any]:
        """What h5py's `create_dataset` is given for one of `columns` columns of `rows` rows."""
        if self.compression == "none" and self.chunk_rows is None:
            return {}
        wanted = self.chunk_rows or min(CHUNK_BYTES, ALL_CHUNKS_BYTES // columns) // max(1, field.row_bytes)
        chunk = max(1, min(wanted, rows))
        if chunk * field.row_bytes > MAX_CHUNK_BYTES:
            raise UserError(
                f"column {field.name!r}: {chunk} rows are {chunk * field.row_bytes} bytes, but a chunk of HDF5 has "
                f"less than 4 GiB: give --chunk-rows of at most {MAX_CHUNK_BYTES // field.row_bytes}"
            )
        shuffled = field.dtype.itemsize > 1
        options: dict[str, Any] = {"chunks": (chunk, *field.shape)}
        if self.compression in PLUGIN:
            plugin = _hdf5plugin()
            if self.compression == "blosc":  # shuffles itself, faster than HDF5
                return options | dict(plugin.Blosc(shuffle=plugin.Blosc.SHUFFLE if shuffled else 0))
            options |= dict(plugin.Zstd() if self.compression == "zstd" else plugin.LZ4())
        elif self.compression != "none":
            kind, _, level = self.compression.partition("-")
            options |= {"compression": kind, "compression_opts": int(level)} if level else {"compression": kind}
        return options | {"shuffle": shuffled and self.compression != "none"}


def _hdf5plugin() -> Any:
    try:
        import hdf5plugin
    except ImportError:
        raise UserError("zstd, lz4 and blosc need hdf5plugin: pip install 'hpc_train[filters]'") from None
    return hdf5plugin
