"""Reads the arrays that `hpc-train shard` writes as shards: .npz, .npy, IDX and HDF5."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpc_train.data.shards import open_file
from hpc_train.errors import UserError

_IDX_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
KINDS = "FILE.npz, FILE.h5, NAME=FILE.npy or NAME=FILE.idx (IDX also as .gz)"


def read_idx(path: str | Path) -> np.ndarray:
    """Reads an IDX file, plain or gzipped, into this machine's byte order.

    The format: two zero bytes, a type code, the number of dimensions, each dimension as a big-endian uint32, then
    the values (http://yann.lecun.com/exdb/mnist/).

    Raises:
        UserError: Not an IDX file, or cut short.
    """
    try:
        with open(path, "rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if zipped else open(path, "rb") as file:
            data = file.read()
    except (OSError, EOFError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _IDX_DTYPES:
        raise UserError(f"{path}: not an IDX file")
    dimensions, dtype = data[3], np.dtype(_IDX_DTYPES[data[2]])
    start = 4 + 4 * dimensions
    shape = struct.unpack(f">{dimensions}I", data[4:start]) if len(data) >= start else ()
    if len(data) < start or len(data) - start != int(np.prod(shape, dtype=np.int64)) * dtype.itemsize:
        raise UserError(f"{path}: IDX file cut short, or longer than its header says")
    return np.frombuffer(data, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def open_columns(sources: Sequence[str], stack: ExitStack) -> dict[str, Any]:
    """The arrays `[rows, ...]` that `sources` name, by column; files stay open until `stack` closes.

    Each source is FILE.npz or FILE.h5 (all arrays in it), or NAME=FILE for a .npy or an IDX file.

    Raises:
        UserError: A source of another kind, one that cannot be read, or a name given twice.
    """
    columns: dict[str, Any] = {}
    for source in sources:
        name, has_name, file = source.rpartition("=")
        for column, array in (_named(name, Path(file)) if has_name else _all_in(Path(file), stack)).items():
            if column in columns:
                raise UserError(f"{source}: column {column!r} given twice")
            columns[column] = array
    return columns


def _named(name: str, path: Path) -> dict[str, Any]:
    if path.suffix != ".npy":
        return {name: read_idx(path)}
    try:
        return {name: np.load(path, mmap_mode="r", allow_pickle=False)}
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None


def _all_in(path: Path, stack: ExitStack) -> dict[str, Any]:
    try:
        if path.suffix == ".npz":
            archive = stack.enter_context(np.load(path, allow_pickle=False))
            return {name: archive[name] for name in archive.files}
        if path.suffix in (".h5", ".hdf5"):
            file = stack.enter_context(open_file(path))
            return {name: item for name, item in file.items() if isinstance(item, h5py.Dataset)}
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    raise UserError(f"{path}: cannot tell what this is; give {KINDS}")
