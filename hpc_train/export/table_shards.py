"""A folder of tables that an export keeps outside of its model: .npy files of some rows each, and index.json.

    tables/index.json          format (1), and for each table its name, rows, width, dtype, and files: of each its name,
                               its rows (begin to end), its bytes and their sha256
    tables/table-0-00000.npy   rows of the first table, `[rows, width]`; numpy.load reads it

Types that .npy files lack (bfloat16) are stored as their bits in unsigned integers.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from hpc_train.checkpoint.disk_io import Moved, idle, sync_to_disk
from hpc_train.errors import UserError
from hpc_train.files import create, open_to_change, open_to_read
from hpc_train.folders import make_folder
from hpc_train.telemetry.json_files import UnreadableError, load_json, write_json
from hpc_train.text import visible

TABLES, INDEX_FILE, FORMAT = "tables", "index.json", 1
SHARD_BYTES = 1 << 30
"""Of rows in a file."""
MAX_HEADER_BYTES = 1 << 12
READ_BYTES = 8 << 20

Count = Annotated[int, Field(strict=True, ge=0, lt=1 << 60)]
Put = Callable[[int, np.ndarray], None]
"""Takes elements of a table, and where they begin, counted flat; in any order, and once more where need be."""


@dataclass(frozen=True)
class TableSource:
    """A table to be written: `stream` has all of its elements put, block by block.

    Attributes:
        moved: Called as long as what was put gets to the disk.
    """

    name: str
    shape: tuple[int, int]
    dtype: np.dtype
    stream: Callable[[Put], None]
    moved: Moved = idle

    @property
    def nbytes(self) -> int:
        """Of all rows."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize


@dataclass(frozen=True)
class ShardFile:
    """The rows `begin` to `end` of a table."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    file: Annotated[str, Field(pattern=r"^table-[0-9]{1,9}-[0-9]{1,9}\.npy$")]
    begin: Count
    end: Count
    bytes: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class TableIndex:
    """A table, and the files that hold its rows in order."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    name: str
    rows: Annotated[Count, Field(gt=0)]
    width: Annotated[Count, Field(gt=0)]
    dtype: Literal["float16", "bfloat16", "float32", "float64"]
    files: tuple[ShardFile, ...]

    @property
    def stored(self) -> np.dtype:
        """The dtype of the files."""
        return np.dtype("<u2" if self.dtype == "bfloat16" else self.dtype)


_TABLES = TypeAdapter(tuple[TableIndex, ...])


def write_tables(folder: Path, sources: Sequence[TableSource]) -> None:
    """Writes `folder`/tables, which is not there. Memory for one block is needed.

    Raises:
        OSError: It cannot be written. What a stream raises.
    """
    made = folder / TABLES
    make_folder(made)
    tables = [asdict(_write(made, number, source)) for number, source in enumerate(sources)]
    write_json(made / INDEX_FILE, {"format": FORMAT, "tables": tables}, to_disk=False)


def _write(folder: Path, number: int, source: TableSource) -> TableIndex:
    rows, width = source.shape
    table = TableIndex(source.name, rows, width, source.dtype.name, ())  # type: ignore[arg-type]
    at_once = max(1, SHARD_BYTES // (width * table.stored.itemsize))
    begins = range(0, rows, at_once)
    paths = [folder / f"table-{number}-{shard:05}.npy" for shard in range(len(begins))]
    headers = []
    for path, begin in zip(paths, begins, strict=True):
        with open(create(path), "wb") as file:
            shape = (min(begin + at_once, rows) - begin, width)
            described = {"descr": table.stored.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, described)
            headers.append(file.tell())
            file.truncate(headers[-1] + shape[0] * width * table.stored.itemsize)

    def put(first: int, values: np.ndarray) -> None:
        flat, size = np.ascontiguousarray(values).reshape(-1).view(table.stored), at_once * width
        while flat.size:
            shard, at = divmod(first, size)
            piece, flat = flat[: size - at], flat[size - at :]
            _write_at(paths[shard], piece.view(np.uint8).data, headers[shard] + at * piece.itemsize)
            first += piece.size

    source.stream(put)
    files = [
        ShardFile(path.name, begin, min(begin + at_once, rows), path.stat().st_size, _on_disk(path, source.moved))
        for path, begin in zip(paths, begins, strict=True)
    ]
    return TableIndex(source.name, rows, width, table.dtype, tuple(files))


def _write_at(path: Path, data: memoryview, offset: int) -> None:
    descriptor = open_to_change(path)
    try:
        while data:
            written = os.pwrite(descriptor, data, offset)
            data, offset = data[written:], offset + written
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)


def _on_disk(path: Path, moved: Moved) -> str:
    """The digest of a file, which is on the disk then."""
    sync_to_disk(path)
    moved()
    with open_to_read(path) as file:
        return _digest_of(file, moved)


def _digest_of(file: BinaryIO, moved: Moved = idle) -> str:
    digest = hashlib.sha256()
    while piece := file.read(READ_BYTES):
        digest.update(piece)
        moved()
    return digest.hexdigest()


class StoredTable:
    """A table in its files, of which nothing is read but the rows that are asked for.

    Args:
        folder: Where the files are. digests: Compare all bytes with their digests first.

    Raises:
        UserError: A file is missing, or is not what the index says.
    """

    def __init__(self, folder: Path, index: TableIndex, digests: bool = False) -> None:
        self.index = index
        self._begins = np.array([file.begin for file in index.files], np.int64)
        self._parts = [_mapped(folder, index, file, digests) for file in index.files]

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """The rows `ids`, int64 `[N]`, each from 0 to below the rows of the table; bfloat16 as its bits."""
        found = np.empty((ids.size, self.index.width), self.index.stored)
        shards = np.searchsorted(self._begins, ids, side="right") - 1
        for shard in np.unique(shards):
            here = np.flatnonzero(shards == shard)
            found[here] = self._parts[shard][ids[here] - self._begins[shard]]
        return found


def _mapped(folder: Path, index: TableIndex, shard: ShardFile, digests: bool) -> np.ndarray:
    path, shape = folder / shard.file, (shard.end - shard.begin, index.width)
    try:
        with open_to_read(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != shard.bytes:
                raise UserError(f"{path}: {size:,} bytes, but it had {shard.bytes:,}; copy the export anew")
            if digests and _digest_of(file) != shard.sha256:
                raise UserError(f"{path}: its bytes do not match their digest; copy the export anew")
            file.seek(0)
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError
            held = np.lib.format.read_array_header_1_0(file, max_header_size=MAX_HEADER_BYTES)
            if held != (shape, False, index.stored) or size != file.tell() + shape[0] * shape[1] * held[2].itemsize:
                raise ValueError
            mapped: np.memmap = np.memmap(file, index.stored, "r", file.tell(), shape)
            mapped._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]
            return mapped
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; copy the export anew") from None
    except Exception:  # whatever a header holds that somebody has written
        raise UserError(
            f"{path}: is no .npy file of {shape[0]:,} rows of {index.width:,} {index.stored.name}, as {INDEX_FILE} says"
        ) from None


def open_tables(folder: Path, digests: bool = False) -> dict[str, StoredTable]:
    """The tables of the export `folder` by name; none, where it has no folder of them.

    Args:
        digests: As in StoredTable.

    Raises:
        UserError: The index or a file is missing, or is not as they were written.
    """
    place = folder / TABLES
    if not place.is_dir():
        return {}
    return {index.name: StoredTable(place, index, digests) for index in _read_index(place / INDEX_FILE)}


def _read_index(path: Path) -> tuple[TableIndex, ...]:
    try:
        fields = load_json(path)
        if fields.get("format") != FORMAT:
            found = visible(str(fields.get("format")))[:40]
            raise UserError(f"{path}: format {found}, but this version of hpc_train reads format {FORMAT}")
        tables = _TABLES.validate_python(fields.get("tables"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; copy the export anew") from None
    except UnreadableError as error:
        raise UserError(f"{path}: {error}; copy the export anew") from None
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        place = visible(".".join(map(str, ("tables", *wrong["loc"]))))
        raise UserError(f"{path}: {place} is not as it was written ({wrong['msg']}); copy the export anew") from None
    if len({table.name for table in tables}) != len(tables):
        raise UserError(f"{path}: has two tables of one name; copy the export anew")
    for table in tables:
        ends = [0, *(file.end for file in table.files)]
        if [file.begin for file in table.files] != ends[:-1] or ends[-1] != table.rows or ends != sorted(set(ends)):
            raise UserError(
                f"{path}: the files of {visible(table.name)!r} do not hold its rows 0 to {table.rows - 1:,} in order; "
                "copy the export anew"
            )
    return tables
