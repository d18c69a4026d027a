"""Arrays `[rows, ...]` that lie in a file or in memory, and files that hold several of them, as a table."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hpc_train.data.memory import available_bytes
from hpc_train.data.sources.recipe import Part
from hpc_train.data.sources.split import hint
from hpc_train.data.sources.table import PIECE_BYTES, Block, Field, Rows, in_order, piece_rows
from hpc_train.errors import UserError
from hpc_train.files import open_to_read
from hpc_train.text import listed

MAPPED_ROW_BYTES = 256
"""Shorter rows are gathered from a memory map, longer ones by a read each."""
MAPPED_ROWS = 4096
"""So many rows at a time."""


class Array:
    """A column of a file.

    Attributes:
        dtype: As stored; blocks have this machine's byte order.
        shape: `[rows, ...]`.
        random: Whether `gather` works.
        ragged: Whether rows have different lengths: then `row_shape` and `mean_bytes` are those of a Field.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    random = False
    ragged = False
    row_shape: tuple[int, ...] = ()
    mean_bytes = 0

    @property
    def field(self) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
        """What a Field has beside its name."""
        shape = self.row_shape if self.ragged else tuple(self.shape[1:])
        return self.dtype.newbyteorder("="), shape, self.ragged, self.mean_bytes

    def reader(self, start: int) -> Callable[[int], Rows]:
        """From row `start` on, a function that gives the next n rows; called with 0 at the end of all rows."""
        position = start

        def read(count: int) -> Rows:
            nonlocal position
            position += count
            return native(self._slice(position - count, count))

        return read

    def _slice(self, first: int, count: int) -> np.ndarray:
        raise NotImplementedError

    def gather(self, rows: np.ndarray) -> Rows:
        """The rows numbered `rows`, ascending."""
        raise NotImplementedError


def native(array: np.ndarray) -> np.ndarray:
    """`array` in this machine's byte order."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


class Slices(Array):
    """Whatever gives rows by slices, such as an HDF5 dataset; at random where it is a numpy array or memory map."""

    def __init__(self, array: Any) -> None:
        self._array, self.dtype, self.shape = array, array.dtype, tuple(array.shape)
        self.random = isinstance(array, np.ndarray)

    def _slice(self, first: int, count: int) -> np.ndarray:
        return np.asarray(self._array[first : first + count])

    def gather(self, rows: np.ndarray) -> np.ndarray:
        return native(np.asarray(self._array[rows]))


class InFile(Array):
    """Rows that lie one after the other in `path` from byte `offset` on.

    Args:
        follow: Whether `path` may be a link: one that the user has named.

    Raises:
        UserError: The file ends before the rows do.
    """

    random = True

    def __init__(
        self, path: Path, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...], follow: bool = True
    ) -> None:
        self._path, self._offset, self._follow, self.dtype, self.shape = path, offset, follow, dtype, shape
        self._row_bytes = math.prod(shape[1:]) * dtype.itemsize
        self._map: mmap.mmap | None = None
        self._brought_in = False
        missing = offset + shape[0] * self._row_bytes - path.stat().st_size
        if missing > 0:
            raise UserError(f"{path}: cut short: {missing} bytes are missing")

    def _slice(self, first: int, count: int) -> np.ndarray:
        offset = self._offset + first * self._row_bytes
        with open_to_read(self._path, self._follow) as file:
            values = np.fromfile(file, self.dtype, count * math.prod(self.shape[1:]), offset=offset)
        return values.reshape(count, *self.shape[1:])

    def gather(self, rows: np.ndarray) -> np.ndarray:
        if not self._brought_in:
            self._bring_in()
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        if self._row_bytes < MAPPED_ROW_BYTES:
            self._gather_mapped(rows, out)
            return native(out)
        view = out.reshape(len(rows), -1).view(np.uint8)
        with open_to_read(self._path, self._follow) as file:
            for i, row in enumerate(rows.tolist()):
                got = os.preadv(file.fileno(), [view[i]], self._offset + row * self._row_bytes)
                if got != self._row_bytes:
                    raise OSError(f"{self._path}: ended at byte {self._offset + row * self._row_bytes + got}")
        return native(out)

    def _bring_in(self) -> None:
        """Reads the rows once in order, where the page cache can keep them: at random a disk takes far longer."""
        self._brought_in = True
        left = self.shape[0] * self._row_bytes
        if left > available_bytes() // 2:
            return
        with open_to_read(self._path, self._follow) as file:
            file.seek(self._offset)
            while left > 0 and (piece := file.read(min(left, PIECE_BYTES))):
                left -= len(piece)

    def _gather_mapped(self, rows: np.ndarray, out: np.ndarray) -> None:
        if self._map is None:
            with open_to_read(self._path, self._follow) as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._map.madvise(mmap.MADV_RANDOM)
        array = np.frombuffer(self._map, self.dtype, math.prod(self.shape), self._offset).reshape(self.shape)
        for first in range(0, len(rows), MAPPED_ROWS):
            some = slice(first, first + MAPPED_ROWS)
            out[some] = array[rows[some]]
            self._map.madvise(mmap.MADV_DONTNEED)  # else the whole file counts as memory of this process (RSS)


class Stream(Array):
    """Rows that come out of a stream, such as a compressed file; reading from the middle reads what comes before.

    Args:
        name: What messages call it.
        opened: Gives the stream at its first row.
    """

    def __init__(self, name: str, opened: Callable[[], BinaryIO], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._name, self._open, self.dtype, self.shape = name, opened, dtype, shape

    def reader(self, start: int) -> Callable[[int], np.ndarray]:
        stream = self._open()
        row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        skip = start * row_bytes
        while skip:
            skip -= len(self._exactly(stream, min(skip, PIECE_BYTES)))

        def read(count: int) -> np.ndarray:
            if count == 0 and stream.read(1):
                raise UserError(f"{self._name}: longer than its header says")
            data = self._exactly(stream, count * row_bytes)
            return native(np.frombuffer(data, self.dtype).reshape(count, *self.shape[1:]))

        return read

    def _exactly(self, stream: BinaryIO, count: int) -> bytes:
        data = stream.read(count)
        if len(data) != count:
            raise UserError(f"{self._name}: cut short")
        return data


class Arrays(Part):
    """What a file, or memory, that holds whole columns has; of `arrays`, those that hold numbers or texts in rows.

    Args:
        refused: What it has beside, and why that is no column.
    """

    def __init__(self, name: str, arrays: Mapping[str, Array], refused: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._arrays, others = {}, dict(refused or {})
        for column, array in arrays.items():
            if not array.ragged and (not array.shape or array.dtype.kind not in "buifc" or 0 in array.shape[1:]):
                others[column] = f"{array.dtype} {list(array.shape)} does not hold numbers or texts in rows"
            else:
                self._arrays[column] = array
        self.refused, self.names = others, (*self._arrays, *others)
        self.fields = {name: Field(name, *array.field) for name, array in self._arrays.items()}

    def rows_of(self, names: Sequence[str]) -> int | None:
        lengths = {name: self._arrays[name].shape[0] for name in names}
        if len(set(lengths.values())) != 1:
            counts = listed(f"{name} has {count} rows" for name, count in lengths.items())
            raise UserError(f"{self.name}: columns of different lengths: {counts}{hint(names)}")
        return next(iter(lengths.values()))

    def random_of(self, names: Sequence[str]) -> bool:
        return all(self._arrays[name].random for name in names)

    def blocks(self, names: Sequence[str], start: int) -> Iterator[Block]:
        rows = self.rows_of(names)
        assert rows is not None
        try:
            readers = {name: self._arrays[name].reader(start) for name in names}
            piece = piece_rows([self.fields[name] for name in names])
            for first in range(start, rows, piece):
                yield {name: read(min(piece, rows - first)) for name, read in readers.items()}
            for read in readers.values():
                read(0)
        except UserError:
            raise
        except Exception as error:  # h5py, zipfile and zlib raise what they like
            raise UserError(f"{self.name}: cannot be read: {error}") from None

    def gather(self, names: Sequence[str], rows: np.ndarray) -> Block:
        return in_order(rows, lambda ascending: {name: self._arrays[name].gather(ascending) for name in names})
