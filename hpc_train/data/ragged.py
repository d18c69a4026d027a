"""Ragged: rows of different lengths, as numpy arrays. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

TEXT = np.dtype("S1")
"""The dtype of the values of texts: their bytes in UTF-8."""


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows that have different numbers of values, or texts, laid end to end.

    Attributes:
        values: `[n, ...]`, the values of all rows; of texts their bytes, in UTF-8, as TEXT.
        lengths: int64 `[rows, ...]`: how many of the values each row has, or each text of a row of several.
    """

    values: np.ndarray
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes + self.lengths.nbytes)

    @property
    def dtype(self) -> np.dtype:
        """Of the values."""
        return self.values.dtype

    def __getitem__(self, rows: slice | np.ndarray) -> Ragged:
        """These rows, in that order."""
        ends = np.cumsum(self.lengths.reshape(len(self), math.prod(self.lengths.shape[1:])).sum(axis=1))
        if isinstance(rows, slice) and rows.step in (None, 1):
            first, stop, _ = rows.indices(len(self))
            low, high = (int(ends[k - 1]) if k else 0 for k in (first, max(first, stop)))
            return Ragged(self.values[low:high], self.lengths[first:stop])
        chosen = np.arange(len(self))[rows]
        counts = np.diff(ends, prepend=0)[chosen]
        return Ragged(self.values[runs_of(ends[chosen] - counts, counts)], self.lengths[chosen])

    @classmethod
    def concatenate(cls, parts: Sequence[Ragged]) -> Ragged:
        """The rows of all `parts`, one after the other."""
        return cls(np.concatenate([p.values for p in parts]), np.concatenate([p.lengths for p in parts]))

    @classmethod
    def of_rows(cls, rows: Sequence[np.ndarray], dtype: np.dtype, shape: tuple[int, ...] = ()) -> Ragged:
        """Rows of numbers, each an array `[length, *shape]`."""
        lengths = np.array([len(row) for row in rows], np.int64)
        values = np.concatenate([np.empty((0, *shape), dtype), *(np.asarray(row, dtype) for row in rows)])
        return cls(values, lengths)

    @classmethod
    def of_texts(cls, texts: Sequence[bytes], shape: tuple[int, ...] = ()) -> Ragged:
        """Rows of texts in UTF-8, of `shape` each."""
        lengths = np.array([len(text) for text in texts], np.int64)
        return cls(np.frombuffer(b"".join(texts), TEXT), lengths.reshape(-1, *shape))

    def padded(self, value: float, length: int | None) -> np.ndarray:
        """The rows in one length: `[rows, length, ...]`, shorter ones filled up with `value`, longer ones cut.

        Args:
            length: None: that of the longest row.
        """
        length = int(self.lengths.max(initial=0)) if length is None else length
        rows = np.full((len(self), length, *self.values.shape[1:]), value, self.dtype)
        kept = np.minimum(self.lengths, length)
        begins = np.cumsum(self.lengths) - self.lengths
        rows[np.arange(length) < kept[:, None]] = self.values[runs_of(begins, kept)]
        return rows

    def texts(self) -> np.ndarray:
        """The texts, as bytes: object `[rows, ...]`."""
        joined, ends = self.values.tobytes(), np.cumsum(self.lengths.reshape(-1)).tolist()
        found = np.empty(len(ends), object)
        found[:] = [joined[first:end] for first, end in zip([0, *ends], ends, strict=False)]
        return found.reshape(self.lengths.shape)


def joined(parts: Sequence[np.ndarray | Ragged]) -> np.ndarray | Ragged:
    """The rows of arrays, or of Raggeds, one after the other."""
    ragged = [part for part in parts if isinstance(part, Ragged)]
    return Ragged.concatenate(ragged) if ragged else np.concatenate([np.asarray(part) for part in parts])


def runs_of(firsts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The numbers of runs, from `firsts` on and of so many `lengths`, one after the other: int64."""
    ends = np.cumsum(lengths)
    return np.repeat(firsts - (ends - lengths), lengths) + np.arange(int(ends[-1]) if len(ends) else 0)


def cut_at_zero(texts: np.ndarray) -> None:
    """Ends each of some texts of one length (C-contiguous, numpy's S) at its first zero, as C does, where it lies."""
    letters = texts.reshape(-1).view(np.uint8).reshape(texts.size, texts.itemsize)
    zero = letters == 0
    if (zero[:, :-1] & ~zero[:, 1:]).any():
        letters[np.logical_or.accumulate(zero, axis=1)] = 0


def first_invalid(values: np.ndarray, lengths: np.ndarray) -> int | None:
    """Which of some texts, laid end to end in `values`, is not UTF-8; None where all are.

    All are where they are as one, and none begins in the middle of a character.
    """
    joined, lengths = values.tobytes(), lengths.reshape(-1)
    ends = np.cumsum(lengths)
    try:
        joined.decode()
        begins = np.frombuffer(joined, np.uint8)[(ends - lengths)[lengths > 0]]
        if not ((begins & 0xC0) == 0x80).any():
            return None
    except UnicodeDecodeError:
        pass
    for number, (first, end) in enumerate(zip((ends - lengths).tolist(), ends.tolist(), strict=True)):
        try:
            joined[first:end].decode()
        except UnicodeDecodeError:
            return number
    return None
