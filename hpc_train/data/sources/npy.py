"""Arrays of numpy: .npy files, and .npz archives of them."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from io import BytesIO
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import numpy as np

from hpc_train.data.sources.arrays import Array, Arrays, InFile, Slices, Stream
from hpc_train.data.sources.texts import Texts
from hpc_train.errors import UserError
from hpc_train.files import open_to_read

_LOCAL_HEADER_BYTES = 30
MAX_HEADER_BYTES = 10_000
"""As numpy has it, which looks at it only once all has been read."""
_FORMATS = {
    (1, 0): ("<H", np.lib.format.read_array_header_1_0),
    (2, 0): ("<I", np.lib.format.read_array_header_2_0),
}


def open_npy(path: Path, column: str) -> Arrays:
    """A .npy file, as a column."""
    try:
        with open_to_read(path, follow=True) as file:
            shape, fortran, dtype = _header(file)
            offset = file.tell()
        array = _in_file(path, offset, shape, fortran, dtype)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    return Arrays(str(path), {column: array})


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
                    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                        raise ValueError("it is compressed in a way that numpy does not write")
                    with archive.open(member) as stream:
                        shape, fortran, dtype = _header(stream)
                        header_bytes = stream.tell()
                    if dtype.kind in "buifcSU" and member.file_size != header_bytes + math.prod(shape) * dtype.itemsize:
                        raise ValueError(f"it has {member.file_size:,} bytes, not those of its shape {shape}")
                    if member.compress_type == zipfile.ZIP_STORED:
                        offset = _data_offset(path, member) + header_bytes
                        arrays[name] = _in_file(path, offset, shape, fortran, dtype)
                    elif fortran:
                        refused[name] = (
                            "it is compressed in Fortran order, so that no row of it can be had before the last; save "
                            "numpy.ascontiguousarray of it, or save it with numpy.savez"
                        )
                    else:
                        stored = Stream(f"{path}: {name}", _opener(path, member.filename), dtype, shape)
                        arrays[name] = Texts(stored) if dtype.kind in "SU" and shape else stored
                except (ValueError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError) as error:
                    refused[name] = str(error)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, struct.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    return Arrays(str(path), arrays, refused)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(cast(BinaryIO, file))
    if version not in _FORMATS:
        raise ValueError(f".npy format {version[0]}.{version[1]}, which holds names and no plain numbers")
    form, read = _FORMATS[version]
    start = file.read(struct.calcsize(form))
    length = struct.unpack(form, start)[0] if len(start) == struct.calcsize(form) else 0
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"its header has {length:,} bytes; {MAX_HEADER_BYTES:,} at most")
    try:
        shape, fortran, dtype = read(BytesIO(start + file.read(length)))
    except Exception:  # Python's parser raises what it likes
        raise ValueError("its header is not that of an array") from None
    if any(n < 0 for n in shape):
        raise ValueError(f"its header gives it the shape {shape}")
    return shape, fortran and len(shape) > 1, dtype


def _in_file(path: Path, offset: int, shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any]) -> Array:
    if dtype.kind not in "buifcSU" or not shape:
        return Slices(np.broadcast_to(np.zeros((), dtype), shape))  # refused by its dtype or shape, never read
    array: Array = InFile(path, offset, dtype, shape)
    if fortran:
        with open_to_read(path, follow=True) as file:
            array = Slices(np.memmap(file, dtype, "r", offset, shape, order="F"))
    return Texts(array) if dtype.kind in "SU" else array


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
