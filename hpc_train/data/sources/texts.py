"""Texts and rows of different lengths as columns: of numpy arrays, of lists, and of HDF5 files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from hpc_train.data.hdf5.columns import Column
from hpc_train.data.hdf5.input_file import Consent
from hpc_train.data.hdf5.layout import Layout
from hpc_train.data.hdf5.reader import Reader
from hpc_train.data.hdf5.shards import ShardSet
from hpc_train.data.ragged import TEXT, Ragged, cut_at_zero
from hpc_train.data.sources.arrays import Array
from hpc_train.data.sources.table import Rows
from hpc_train.errors import UserError

MEASURED = 1000
"""Rows of a list by which it is judged how long they are."""


def texts_of(array: np.ndarray) -> Ragged:
    """The texts of an array of texts of one length, numpy's S or U, `[rows, ...]`."""
    if array.dtype.kind != "S":
        array = np.char.encode(array, "utf-8")
    flat = np.array(array, order="C").reshape(-1)
    cut_at_zero(flat)
    lengths = np.char.str_len(flat).astype(np.int64)
    letters = np.frombuffer(flat.tobytes(), np.uint8).reshape(len(flat), flat.dtype.itemsize)
    return Ragged(letters[np.arange(letters.shape[1]) < lengths[:, None]].view(TEXT), lengths.reshape(array.shape))


class Texts(Array):
    """The texts of an array of texts of one length."""

    ragged, dtype = True, TEXT

    def __init__(self, array: Array) -> None:
        self._array, self.shape, self.random = array, array.shape, array.random
        self.row_shape = tuple(array.shape[1:])
        self.mean_bytes = array.dtype.itemsize * math.prod(self.row_shape)

    def reader(self, start: int) -> Callable[[int], Rows]:
        read = self._array.reader(start)
        return lambda count: texts_of(np.asarray(read(count)))

    def gather(self, rows: np.ndarray) -> Rows:
        return texts_of(np.asarray(self._array.gather(rows)))


class Listed(Array):
    """A list of texts (str or UTF-8 bytes), or of rows of numbers, each an array or list `[length, ...]`.

    Args:
        rows: It, or what has slices and single rows as a list has.

    Raises:
        UserError: It has something else, or rows of different shapes behind their first dimension.
    """

    ragged, random = True, True

    def __init__(self, name: str, rows: Any) -> None:
        self._name, self._rows, self.shape = name, rows, (len(rows),)
        self._is_text = len(rows) > 0 and isinstance(rows[0], str | bytes)
        if self._is_text or not len(rows):
            self.dtype, self.row_shape = TEXT, ()
        else:
            some = [self._array(row, i) for i, row in enumerate(islice(rows, MEASURED))]
            some = [array for array in some if len(array)] or some[:1]
            self.dtype, self.row_shape = np.result_type(*(array.dtype for array in some)), some[0].shape[1:]
        self.mean_bytes = -(-self._ragged(rows[:MEASURED], 0).nbytes // max(1, min(len(rows), MEASURED)))

    def _array(self, row: Any, number: int) -> np.ndarray:
        try:
            array = np.asarray(row)
        except ValueError:
            array = np.empty((), object)
        if array.dtype.kind not in "buifc" or not array.ndim:
            raise UserError(
                f"column {self._name!r}: row {number} is {type(row).__name__}; a list has texts, or rows of numbers of "
                "one length or of several"
            )
        return array

    def _ragged(self, rows: Sequence[Any], first: int) -> Ragged:
        if self.dtype == TEXT:
            wrong = next((i for i, row in enumerate(rows) if not isinstance(row, str | bytes)), None)
            if wrong is not None:
                raise UserError(
                    f"column {self._name!r}: row {first + wrong} is {type(rows[wrong]).__name__}, not a text"
                )
            return Ragged.of_texts(
                [row.encode("utf-8", "surrogatepass") if isinstance(row, str) else row for row in rows]
            )
        arrays = [self._array(row, first + i) for i, row in enumerate(rows)]
        arrays = [a if len(a) else np.empty((0, *self.row_shape), self.dtype) for a in arrays]
        for i, array in enumerate(arrays):
            if array.shape[1:] != self.row_shape or not np.can_cast(array.dtype, self.dtype, "same_kind"):
                raise UserError(
                    f"column {self._name!r}: row {first + i} is {array.dtype} {list(array.shape)}; the first ones are "
                    f"{self.dtype} [any{''.join(f', {n}' for n in self.row_shape)}]"
                )
        return Ragged.of_rows(arrays, self.dtype, self.row_shape)

    def reader(self, start: int) -> Callable[[int], Rows]:
        position = start

        def read(count: int) -> Rows:
            nonlocal position
            position += count
            return self._ragged(self._rows[position - count : position], position - count)

        return read

    def gather(self, rows: np.ndarray) -> Rows:
        return self._ragged([self._rows[k] for k in rows.tolist()], 0)


class RaggedDataset(Array):
    """Rows of different lengths in an HDF5 file, read as shards are."""

    ragged = True

    def __init__(self, path: str, rows: int, size: int, column: Column, layout: Layout, consent: Consent) -> None:
        self._shards = ShardSet((path,), (rows,), (size,), (column,), (), ((layout,),), consent)
        self.dtype, self.shape, self.row_shape = np.dtype(column.dtype), (rows,), column.shape
        self.mean_bytes = column.row_bytes

    def reader(self, start: int) -> Callable[[int], Rows]:
        reader, position = Reader(self._shards, cached_rows=1, cached_runs=1), start

        def read(count: int) -> Rows:
            nonlocal position
            position += count
            try:
                return reader.read(np.arange(position - count, position))[0]
            except OSError as error:
                raise UserError(str(error)) from None

        return read
