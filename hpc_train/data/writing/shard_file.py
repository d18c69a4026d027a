"""One shard: an HDF5 file of some rows, written under a temporary name so that no half-written one is ever seen."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpc_train.data.hdf5.data_file import HDF5_ERRORS
from hpc_train.data.hdf5.input_file import InputFile
from hpc_train.data.sources.spool import writing
from hpc_train.data.sources.table import Cursor, Field
from hpc_train.errors import UserError
from hpc_train.files import open_to_read, unforeseen
from hpc_train.folders import held, remove, rename

SCHEMA_ATTRIBUTE = "hpc_train_schema"
PLUGIN = ("zstd", "lz4", "blosc")
COMPRESSIONS = ("none", "gzip", *(f"gzip-{level}" for level in range(1, 10)), "lzf", *PLUGIN)
ALIGNMENT_BYTES = 4096
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


def check_shard(path: Path, fields: Sequence[Field], rows: int) -> None:
    """Raises UserError where the file is not a whole shard of these columns and rows."""
    wanted = {field.name: ((rows, *field.shape), field.dtype) for field in fields}
    try:
        with InputFile(path) as file:
            found = {name: (dataset.shape, dataset.dtype) for name, dataset in file.datasets()}
    except HDF5_ERRORS:  # and what UserError says
        found = {}
    if found != wanted:
        raise UserError(f"{path}: is not the shard that this command writes; remove it, and it is written again")


def write_shard(
    path: Path,
    fields: Sequence[Field],
    cursors: Sequence[Cursor],
    rows: int,
    storage: Storage,
    count: Callable[[int], None],
) -> None:
    """Writes the next `rows` rows of `cursors`, side by side, and calls `count` with the bytes written so far.

    Raises:
        OSError: The file cannot be written; the message is a sentence with path and cause.
    """
    options = {field.name: storage.options(field, rows, len(fields)) for field in fields}
    chunks = [math.prod(o["chunks"]) * f.dtype.itemsize for f in fields if "chunks" in (o := options[f.name])]
    # Aligned data is copied two to three times as fast; small objects are left where they are. A chunk that is
    # written in two parts stays in a cache of two chunks meanwhile.
    alignment = ALIGNMENT_BYTES if storage.compression == "none" else 1
    how = {"alignment_threshold": alignment, "alignment_interval": alignment}
    how["rdcc_nbytes"] = max(1 << 20, 2 * max(chunks, default=0))
    nbytes = sum(math.prod(field.shape) * field.dtype.itemsize for field in fields) * rows
    whole, written = nbytes if storage.compression == "none" else None, 0
    with new_file(path, **how) as file:
        with writing(path):
            columns = {field.name: {"shape": list(field.shape), "dtype": field.dtype.name} for field in fields}
            file.attrs[SCHEMA_ATTRIBUTE] = json.dumps({"version": 1, "rows": rows, "columns": columns})
            # Kept open meanwhile: closing one would write the chunk that is not full yet.
            datasets = {
                f.name: file.create_dataset(f.name, (rows, *f.shape), f.dtype, **options[f.name]) for f in fields
            }
        for cursor in cursors:
            position = 0
            while position < rows:
                length, block = cursor.take(rows - position)
                with writing(path, whole - written if whole is not None else None):
                    for name, array in block.items():
                        datasets[name][position : position + length] = np.ascontiguousarray(array)
                position += length
                written += sum(array.nbytes for array in block.values())
                count(written)


@contextmanager
def new_file(path: Path, **how: Any) -> Iterator[h5py.File]:
    """A new HDF5 file, which has an unforeseen name until it is whole, and then is `path`; where that fails, none is.

    Raises:
        OSError: The file cannot be written; the message is a sentence with path and cause.
    """
    temporary = unforeseen(path)
    try:
        with writing(path), held(temporary.parent, follow=True) as folder:
            file = h5py.File(folder / temporary.name, "x", **how)  # O_CREAT | O_EXCL, which follows no link
        try:
            yield file
            with writing(path):
                file.flush()
        except BaseException:
            _discard(file)
            raise
        with writing(path):
            file.close()
            with open_to_read(temporary) as whole:
                os.fsync(whole.fileno())
            rename(temporary, path)
    finally:
        remove(temporary, missing_ok=True)


def _discard(file: h5py.File) -> None:
    """Closes a file that may not be writable any more, as on a full disk.

    HDF5 crashes where it cannot write what it still holds, so that goes nowhere instead.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, file.id.get_vfd_handle())
    os.close(nowhere)
    with suppress(OSError, RuntimeError):
        file.close()
