"""Sums, means, variances and extremes of numbers, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpc_train.arguments import check_type, checked_arguments
from hpc_train.errors import UserError
from hpc_train.mapreduce.reducer import Reducer, numbers

State = dict[str, Any]


@checked_arguments
class Sum(Reducer[State]):
    """The sum over rows, `[...]` of values `[rows, ...]`: float64, or int64 of whole numbers and truth values.

    Raises:
        UserError: Whole numbers add up to more than int64 holds.
    """

    def __init__(self) -> None:  # what has none of its own takes any arguments
        super().__init__()

    def init(self) -> State:
        return {"sum": None}

    def add(self, state: State, values: Any) -> State:
        array = numbers(values, "Sum")
        if not len(array):
            return state
        whole = array.dtype.kind != "f"
        total = np.asarray(array.sum(axis=0, dtype=np.int64 if whole else np.float64))
        if whole:
            _check_whole(total, array.sum(axis=0, dtype=np.float64))
        return self.merge(state, {"sum": total})

    def merge(self, first: State, second: State) -> State:
        if first["sum"] is None or second["sum"] is None:
            return second if first["sum"] is None else first
        one, two = _alike(first["sum"], second["sum"], "Sum")
        with np.errstate(over="ignore"):
            total = np.asarray(one + two)
        if one.dtype.kind == two.dtype.kind == "i":
            _check_whole(total, one.astype(np.float64) + two)
        return {"sum": total}

    def result(self, state: State) -> Any:
        return None if state["sum"] is None else state["sum"][()]


def _check_whole(total: np.ndarray, about: Any) -> None:
    """UserError where `total`, int64, is not what it is `about`: it has turned over."""
    if np.any(np.abs(total - about) > 2.0**62):
        raise UserError("Sum: whole numbers add up to more than int64 holds; map them to float64")


@checked_arguments
class Moments(Reducer[State]):
    """Count, mean and variance over rows: a dict of `count` int64, `mean` and `variance` float64, each `[...]`.

    The variance is that of these values, divided by their number. Of two parts it is computed as Chan, Golub and
    LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979), do.

    Args:
        skip_nan: Leave values that are NaN out; else they make mean and variance NaN.
    """

    def __init__(self, skip_nan: bool = False) -> None:
        check_type(type(self).__name__, "skip_nan", skip_nan, bool, "True or False")
        self._skip_nan = skip_nan

    def init(self) -> State:
        return {"count": None}

    def add(self, state: State, values: Any) -> State:
        array = numbers(values, type(self).__name__)
        if not len(array):
            return state
        floats = array.astype(np.float64)  # a copy
        kept = ~np.isnan(floats) if self._skip_nan and array.dtype.kind == "f" else None
        if kept is not None and kept.all():
            kept = None
        if kept is None:
            count = np.full(array.shape[1:], len(array), np.int64)
        else:
            floats[~kept] = 0.0
            count = np.asarray(kept.sum(axis=0, dtype=np.int64))
        with np.errstate(invalid="ignore", over="ignore"):
            mean = np.asarray(floats.sum(axis=0) / np.maximum(count, 1))
            floats -= mean
            if kept is not None:
                floats[~kept] = 0.0
            squares = np.asarray(np.square(floats, out=floats).sum(axis=0))
        return self.merge(state, {"count": count, "mean": mean, "squares": squares})

    def merge(self, first: State, second: State) -> State:
        if first["count"] is None or second["count"] is None:
            return second if first["count"] is None else first
        one, two = _alike(first["count"], second["count"], type(self).__name__)
        count = one + two
        with np.errstate(invalid="ignore", over="ignore"):
            difference = second["mean"] - first["mean"]
            share = two / np.maximum(count, 1)
            mean = first["mean"] + difference * share
            apart = first["mean"] * (one / np.maximum(count, 1)) + second["mean"] * share
            mean = np.where(np.isfinite(difference), mean, apart)  # infinite ones, or very large ones
            squares = first["squares"] + second["squares"] + difference * difference * one * share
        # Of no values a mean is 0 here, which is none.
        mean = np.where(one == 0, second["mean"], np.where(two == 0, first["mean"], mean))
        squares = np.where(one == 0, second["squares"], np.where(two == 0, first["squares"], squares))
        return {"count": np.asarray(count), "mean": np.asarray(mean), "squares": np.asarray(squares)}

    def result(self, state: State) -> Any:
        if state["count"] is None:
            return {"count": np.int64(0), "mean": np.nan, "variance": np.nan}
        count, known = state["count"], state["count"] > 0
        mean = np.where(known, state["mean"], np.nan)
        variance = np.where(known, state["squares"] / np.maximum(count, 1), np.nan)
        return {"count": count[()], "mean": mean[()], "variance": variance[()]}


@checked_arguments
class Mean(Moments):
    """The mean over rows, float64 `[...]` of values `[rows, ...]`: however many rows each block and each rank has.

    Args:
        skip_nan: See Moments.
    """

    def result(self, state: State) -> Any:
        return super().result(state)["mean"]


@checked_arguments
class MinMax(Reducer[State]):
    """The lowest and the highest value over rows: a dict of `min` and `max`, `[...]`, in the values' common dtype.

    Args:
        skip_nan: Leave values that are NaN out; else they make both NaN.
    """

    def __init__(self, skip_nan: bool = False) -> None:
        check_type("MinMax", "skip_nan", skip_nan, bool, "True or False")
        self._min: np.ufunc = np.fmin if skip_nan else np.minimum
        self._max: np.ufunc = np.fmax if skip_nan else np.maximum

    def init(self) -> State:
        return {"min": None, "max": None}

    def add(self, state: State, values: Any) -> State:
        array = numbers(values, "MinMax")
        if not len(array):
            return state
        low, high = (np.asarray(f.reduce(array, axis=0)) for f in (self._min, self._max))
        return self.merge(state, {"min": low, "max": high})

    def merge(self, first: State, second: State) -> State:
        if first["min"] is None or second["min"] is None:
            return second if first["min"] is None else first
        _alike(first["min"], second["min"], "MinMax")
        low, high = self._min(first["min"], second["min"]), self._max(first["max"], second["max"])
        return {"min": np.asarray(low), "max": np.asarray(high)}

    def result(self, state: State) -> Any:
        return {name: None if value is None else value[()] for name, value in state.items()}


def _alike(one: np.ndarray, two: np.ndarray, reducer: str) -> tuple[np.ndarray, np.ndarray]:
    if one.shape != two.shape:
        raise UserError(
            f"{reducer}: rows have shape {list(one.shape)} in one block and {list(two.shape)} in another; give all "
            "rows one shape"
        )
    return one, two
