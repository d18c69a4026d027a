"""Which rows of a table are to evaluate with, as a RowSplit says. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from hpc_train.config.row_split import RowSplit
from hpc_train.data.hdf5.reader import Rows
from hpc_train.data.ragged import Ragged
from hpc_train.data.sampling.shuffle import Shuffle
from hpc_train.data.sources.arrow import arrow_of_texts
from hpc_train.data.sources.split import rows_of_fraction
from hpc_train.data.tables.hashes import hashes_of, mixed


class NoTimeError(Exception):
    """Row `row` has no value in the column of times."""

    text, way = "has no value, so it is not known on which side of the split its row is", "split otherwise"

    def __init__(self, row: int) -> None:
        super().__init__(self.text)
        self.row = row


def times_of(values: Rows) -> np.ndarray:
    """The values of a column of times, float64 `[rows]`.

    Raises:
        NoTimeError: One is missing.
    """
    times = np.asarray(values)
    if (missing := np.isnan(times)).any():
        raise NoTimeError(int(np.argmax(missing)))
    return times


def by_number(split: RowSplit, rows: int) -> np.ndarray:
    """Of each of `rows` rows whether it is to evaluate with, where chance decides: bool `[rows]`.

    Raises:
        UserError: There is one row only.
    """
    found = np.zeros(rows, bool)
    found[Shuffle(rows, split.seed)(np.arange(rows_of_fraction(rows, split.fraction)))] = True
    return found


def by_value(split: RowSplit, values: Rows) -> np.ndarray:
    """Of each row whether it is to evaluate with, where `values` of a column decide: bool `[rows]`.

    A value of `by` is where its hash, with the seed, is among the lowest `fraction` of all hashes that there can be.

    Raises:
        NoTimeError: A time is missing.
    """
    if split.time is not None:
        later: np.ndarray = times_of(values) > split.border
        return later
    if isinstance(values, Ragged):
        hashes = hashes_of(arrow_of_texts(values))
    else:
        numbers = np.where(np.isnan(values), np.nan, np.asarray(values, np.float64) + 0.0)  # one NaN, one zero
        hashes = hashes_of(pa.array(numbers.view(np.uint64)))
    seed = mixed(np.array([split.seed], np.uint64) + np.uint64(1))
    chosen: np.ndarray = mixed(hashes ^ seed) / 2.0**64 < split.fraction
    return chosen
