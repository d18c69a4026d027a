"""IDX files, plain or gzipped: the format of MNIST (http://yann.lecun.com/exdb/mnist/).

Two zero bytes, a type code, the number of dimensions, each dimension as a big-endian uint32, then the values.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hpc_train.data.sources.arrays import Arrays, InFile, Stream
from hpc_train.data.sources.table import is_gzipped, open_unzipped
from hpc_train.errors import UserError

DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | Path) -> np.ndarray:
    """Reads an IDX file, plain or gzipped, into this machine's byte order.

    Raises:
        UserError: Not an IDX file, or cut short.
    """
    try:
        part = open_idx(Path(path), "values")
        blocks = [np.asarray(block["values"]) for block in part.blocks(["values"], 0)]
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    field = part.fields["values"]
    return np.concatenate(blocks) if blocks else np.empty((0, *field.shape), field.dtype)


def open_idx(path: Path, column: str) -> Arrays:
    """An IDX file, as a column; one that is not gzipped is read where it lies."""
    try:
        with open_unzipped(path) as stream:
            shape, dtype = _header(path, stream)
            offset = stream.tell()
    except EOFError:
        raise UserError(f"{path}: IDX file cut short") from None
    if is_gzipped(path):

        def opened() -> BinaryIO:
            stream = open_unzipped(path)
            stream.read(offset)
            return stream

        return Arrays(str(path), {column: Stream(f"{path}: IDX file", opened, dtype, shape)})
    if path.stat().st_size != offset + math.prod(shape) * dtype.itemsize:
        raise UserError(f"{path}: IDX file cut short, or longer than its header says")
    return Arrays(str(path), {column: InFile(path, offset, dtype, shape)})


def _header(path: Path, stream: BinaryIO) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    start = stream.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in DTYPES:
        raise UserError(f"{path}: not an IDX file")
    sizes = stream.read(4 * start[3])
    if len(sizes) < 4 * start[3]:
        raise UserError(f"{path}: IDX file cut short")
    return struct.unpack(f">{start[3]}I", sizes), np.dtype(DTYPES[start[2]])
