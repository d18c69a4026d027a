"""Tables: named columns with one row an example, read in order piece by piece and, where they can be, at random.

And what the kinds of source files share: fields, pieces, and content that may be gzipped.
"""

from __future__ import annotations

import gzip
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from hpc_train.data.hdf5.shard_schema import Classes
from hpc_train.data.ragged import TEXT, Ragged
from hpc_train.errors import UserError
from hpc_train.files import open_to_read

Rows = np.ndarray | Ragged
"""Some rows of a column: an array `[n, ...]`, or rows of different lengths."""

Block = dict[str, Rows]
"""Some rows that follow each other, by column."""

Numbers = range | np.ndarray
"""Numbers of rows, int64 `[n]`."""

Order = Callable[[np.ndarray], np.ndarray]
"""A permutation of row numbers: int64 `[k]` to int64 `[k]`."""

PIECE_BYTES = 16 << 20
"""How much is read at a time; what a conversion needs in memory is a few of these."""


@dataclass(frozen=True)
class Field:
    """A column: `[rows, *shape]` of `dtype`, in this machine's byte order.

    Attributes:
        ragged: Rows have different lengths, each `[length, *shape]`; or are texts of `shape`, and `dtype` is TEXT.
        mean_bytes: What such a row takes, about, on average.
        classes: What the numbers of a label stand for, in their order; empty where that is not known.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    ragged: bool = False
    mean_bytes: int = field(default=0, compare=False)
    classes: Classes = ()

    @property
    def is_text(self) -> bool:
        return self.dtype == TEXT

    @property
    def row_bytes(self) -> int:
        return max(1, self.mean_bytes) if self.ragged else math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        if self.ragged:
            first = ["rows"] if self.is_text else ["rows", "any"]
            return f"{'text' if self.is_text else self.dtype} [{', '.join(map(str, [*first, *self.shape]))}]"
        return f"{self.dtype} [rows{''.join(f', {n}' for n in self.shape)}]"


class Table(ABC):
    """Columns with as many rows each.

    Attributes:
        name: What messages call it: its files.
        fields: Its columns, by name. Where `rows` is None an int64 column may turn out to be float64.
        rows: How many rows, or None where only reading all of it can show it.
        random: Whether `gather` works.
    """

    name: str
    fields: Mapping[str, Field]
    rows: int | None
    random = False

    @abstractmethod
    def blocks(self, start: int = 0) -> Iterator[Block]:
        """All rows in order from row `start` on, in blocks of about PIECE_BYTES."""

    def gather(self, rows: np.ndarray) -> Block:
        """The rows numbered `rows` (int64 `[n]`), in that order."""
        raise NotImplementedError


def is_gzipped(path: Path) -> bool:
    """Whether a source file is gzipped."""
    with open_to_read(path, follow=True) as file:
        return file.read(2) == b"\x1f\x8b"


class _Unzipped(gzip.GzipFile):
    """What a gzipped file holds. Closing it closes the file."""

    def close(self) -> None:
        file: Any = self.fileobj
        super().close()
        if file is not None:
            file.close()


def open_unzipped(path: Path) -> BinaryIO:
    """Opens a source file, gzipped or not, to read its content."""
    zipped = is_gzipped(path)
    file = open_to_read(path, follow=True)
    return cast(BinaryIO, _Unzipped(fileobj=file, mode="rb")) if zipped else file


def piece_rows(fields: Sequence[Field]) -> int:
    """How many rows of these columns make one piece."""
    return max(1, PIECE_BYTES // max(1, sum(field.row_bytes for field in fields)))


def numbered(blocks: Iterable[Block], start: int) -> Iterator[tuple[range, Block]]:
    """Blocks that follow each other from row `start` on, each with the numbers of its rows."""
    for block in blocks:
        count = len(next(iter(block.values())))
        yield range(start, start + count), block
        start += count


def in_order(rows: np.ndarray, read_ascending: Callable[[np.ndarray], Block]) -> Block:
    """Reads `rows` in ascending order, which disks like better, and gives them in the order asked for."""
    order = np.argsort(rows, kind="stable")
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return {name: array[back] for name, array in read_ascending(rows[order]).items()}


class ShuffledTable(Table):
    """A table's rows in another order: those at the places `first` to `end - 1` of it."""

    def __init__(self, table: Table, order: Order, first: int, end: int) -> None:
        assert table.random
        self._table, self._order, self._first, self._end = table, order, first, end
        self.name, self.fields, self.rows = table.name, table.fields, end - first

    def blocks(self, start: int = 0) -> Iterator[Block]:
        piece = piece_rows(list(self.fields.values()))
        for first in range(self._first + start, self._end, piece):
            yield self._table.gather(self._order(np.arange(first, min(first + piece, self._end))))


class Cursor:
    """Reads a table in order, at most so many rows at a time."""

    def __init__(self, table: Table, start: int) -> None:
        self._table = table
        self._blocks = table.blocks(start)
        self._block: Block = {}
        self._used = self._length = 0

    def take(self, most: int) -> tuple[int, Block]:
        """Between 1 and `most` of the next rows, and how many they are."""
        while self._used == self._length:
            try:
                self._block = next(self._blocks)
            except StopIteration:
                raise UserError(f"{self._table.name}: has fewer rows than it had; did it change meanwhile?") from None
            self._used, self._length = 0, len(next(iter(self._block.values())))
        count = min(most, self._length - self._used)
        rows = slice(self._used, self._used + count)
        self._used += count
        return count, {name: array[rows] for name, array in self._block.items()}
