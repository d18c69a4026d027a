"""Rows in another type, each value checked to fit. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpc_train.data.ragged import Ragged
from hpc_train.data.sources.table import Numbers, Rows
from hpc_train.errors import UserError


def convert(found: Rows, dtype: np.dtype[Any], where: str, column: str, rows: Numbers) -> Rows:
    """As convert_array, also of rows of different lengths."""
    if not isinstance(found, Ragged):
        return convert_array(found, dtype, where, column, rows)
    if found.dtype == dtype:
        return found
    of_value = np.repeat(np.asarray(rows), found.lengths)
    return Ragged(convert_array(found.values, dtype, where, column, of_value), found.lengths)


def convert_array(array: np.ndarray, dtype: np.dtype[Any], where: str, column: str, rows: Numbers) -> np.ndarray:
    """`array` `[n, ...]`, the rows numbered `rows`, as `dtype`.

    Raises:
        UserError: A value that does not fit: out of range, or not a whole number where integers are asked for.
    """
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(dtype)
    if array.dtype.kind == "b" or (dtype.kind == "f" and array.dtype.kind != "f"):
        return converted
    if dtype.kind == "f":
        wrong = np.isinf(converted) & np.isfinite(array)
    elif array.dtype.kind == "f":
        low, high = _range(dtype)
        wrong = ~((array >= low) & (array < float(high) + 1) & (array == np.floor(array)))
    else:
        wrong = _out_of_range(array, dtype)
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        if dtype.kind == "f":
            allowed = f"{np.finfo(dtype).min:.6g} to {np.finfo(dtype).max:.6g}"
        else:
            allowed = "0 and 1" if dtype.kind == "b" else "whole numbers from {} to {}".format(*_range(dtype))
        raise UserError(
            f"{where}: column {column!r} has {array[place]} in row {rows[place[0]] + 1}, which is no {dtype} "
            f"({allowed})"
        )
    return converted


def _range(dtype: np.dtype[Any]) -> tuple[int, int]:
    return (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)


def _out_of_range(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    low, high = _range(dtype)
    least, most = int(array.min(initial=0)), int(array.max(initial=0))
    if low <= least and most <= high:
        return np.zeros((), bool)
    source = np.iinfo(array.dtype)
    return (array < max(low, source.min)) | (array > min(high, source.max))
