"""Arrays of numpy: .npy files, and .npz archives of them."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import numpy as np

from hpc_train.data.sources.arrays import Array, Arrays, InFile, Slices, Stream
from hpc_train.errors import UserError
from hpc_train.files import open_to_read

_LOCAL_HEADER_BYTES = 30


def open_npy(path: Path, column: str) -> Arrays:
    """A .npy file, as a column."""
    try:
        with open_to_read(path, follow=True) as file:
            shape, fortran, dtype = _header(file)
            offset = file.tell()
    except ValueError as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    return Arrays(str(path), {column: _in_file(path, offset, shape, fortran, dtype)})


def open_npz(path: Path) -> Arrays:
    """An .npz archive: a column for each array in it, read where it lies if it is not compressed, else streamed."""
    arrays: dict[str, Array] = {}
    refused: dict[str, str] = {}
    try:
        with open_to_read(path, follow=True) as file, zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if not member.filename.endswith(".npy"):
                    refused[member.filename] = "not an array"
                    continue
                name = member.filename.removesuffix(".npy")
                try:
                    with archive.open(member) as stream:
                        shape, fortran, dtype = _header(stream)
                        header_bytes = stream.tell()
                    if member.compress_type == zipfile.ZIP_STORED:
                        offset = _data_offset(path, member) + header_bytes
                        arrays[name] = _in_file(path, offset, shape, fortran, dtype)
                    elif fortran:
                        refused[name] = (
                            "it is compressed in Fortran order, so that no row of it can be had before the last; save "
                            "numpy.ascontiguousarray of it, or save it with numpy.savez"
                        )
                    else:
                        arrays[name] = Stream(f"{path}: {name}", _opener(path, member.filename), dtype, shape)
                except ValueError as error:
                    refused[name] = str(error)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    return Arrays(str(path), arrays, refused)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(cast(BinaryIO, file))
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(cast(BinaryIO, file))
    elif version == (2, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(cast(BinaryIO, file))
    else:
        raise ValueError(f".npy format {version[0]}.{version[1]}, which holds names and no plain numbers")
    return shape, fortran and len(shape) > 1, dtype


def _in_file(path: Path, offset: int, shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any]) -> Array:
    if dtype.kind not in "buifc" or not shape:
        return Slices(np.broadcast_to(np.zeros((), dtype), shape))  # refused by its dtype or shape, never read
    array = InFile(path, offset, dtype, shape)
    if not fortran:
        return array
    with open_to_read(path, follow=True) as file:
        return Slices(np.memmap(file, dtype, "r", offset, shape, order="F"))


def _data_offset(path: Path, member: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin: after a header whose two last fields have lengths of their own (APPNOTE 4.3.7)."""
    with open_to_read(path, follow=True) as file:
        file.seek(member.header_offset)
        header = file.read(_LOCAL_HEADER_BYTES)
    name_bytes, extra_bytes = struct.unpack("<HH", header[26:30])
    return member.header_offset + _LOCAL_HEADER_BYTES + int(name_bytes) + int(extra_bytes)


def _opener(path: Path, member: str) -> Any:
    def opened() -> IO[bytes]:
        stream = zipfile.ZipFile(open_to_read(path, follow=True)).open(member)  # noqa: SIM115  closed with the last reference
        _header(stream)
        return stream

    return opened
