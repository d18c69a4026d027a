"""How many numbers are in each bin: exact, in one pass, although nothing is known of them before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpc_train.arguments import check_count, checked_arguments, not_allowed
from hpc_train.mapreduce.reducer import Reducer, floats_of, numbers

State = dict[str, Any]
FINEST = 40
"""A bin is never narrower than the largest number by 2^40: so its number is a whole one that float64 holds."""
MOST_BINS = 1 << 16
LARGEST = np.finfo(np.float64).max


@checked_arguments
class Histogram(Reducer[State]):
    """Counts of all numbers of all rows: a dict of `edges` float64 `[bins + 1]` and `counts` int64 `[bins]`.

    Beside them `missing` has how many are NaN, `below` and `above` how many are beyond the edges.

    Args:
        bins: How many there are at most, 2 to 65536. All are one power of two wide, and begin at a multiple of that:
            of two parts, the narrower bins are put together. Of whole numbers they are 1 wide at least.
        edges: Those of the bins instead, ascending; a bin holds its lower edge, the last one both.

    Raises:
        UserError: An argument is not allowed.
    """

    def __init__(self, bins: int = 64, edges: Sequence[float] | None = None) -> None:
        check_count("Histogram", "bins", bins, 2, MOST_BINS)
        self._bins = bins
        self._edges = (
            None if edges is None else floats_of("Histogram", "edges", edges, "two numbers or more, ascending")
        )
        if self._edges is not None and (len(self._edges) < 2 or not bool((np.diff(self._edges) > 0).all())):
            raise not_allowed("Histogram", "edges", edges, "two numbers or more, ascending")

    def init(self) -> State:
        count = 0 if self._edges is None else len(self._edges) - 1
        return {
            **dict.fromkeys(("missing", "below", "above"), 0),
            "range": None,
            "exponent": 0,
            "first": 0,
            "counts": np.zeros(count, np.int64),
        }

    def add(self, state: State, values: Any) -> State:
        array = numbers(values, "Histogram")
        floats = array.reshape(-1).astype(np.float64)
        new = self.init()
        if array.dtype.kind == "f" and not np.isfinite(floats).all():
            new["missing"] = int(np.isnan(floats).sum())
            if self._edges is None:
                new["below"], new["above"] = (int((floats == end).sum()) for end in (-np.inf, np.inf))
                floats = floats[np.isfinite(floats)]
            else:
                floats = floats[~np.isnan(floats)]
        if self._edges is not None:
            return self.merge(state, {**new, **_in_edges(self._edges, floats)})
        if floats.size:
            low, high = float(floats.min()), float(floats.max())
            exponent = self._exponent(low, high, 0 if array.dtype.kind != "f" else None)
            bins = _bins_of(np.append(floats, low), exponent)
            first, places = int(bins[-1]), bins[:-1] - bins[-1]
            new |= {"range": (low, high), "exponent": exponent, "first": first, "counts": np.bincount(places)}
        return self.merge(state, new)

    def _exponent(self, low: float, high: float, least: int | None) -> int:
        """The width of bins, as a power of two, that is enough for numbers from `low` to `high`."""
        largest = max(abs(low), abs(high))
        exponent = max(
            math.frexp(largest)[1] - FINEST if largest else -1000,  # zeros fit into bins of any width
            -1000 if least is None else least,
        )
        if high > low:
            exponent = max(exponent, math.frexp(high / self._bins - low / self._bins)[1] - 2)
        while np.ptp(_bins_of(np.array([low, high]), exponent)) >= self._bins:
            exponent += 1
        return exponent

    def merge(self, first: State, second: State) -> State:
        outside = {name: first[name] + second[name] for name in ("missing", "below", "above")}
        if self._edges is not None:
            return {**first, **outside, "counts": first["counts"] + second["counts"]}
        if first["range"] is None or second["range"] is None:
            return {**(second if first["range"] is None else first), **outside}
        (low, high), (other_low, other_high) = first["range"], second["range"]
        low, high = min(low, other_low), max(high, other_high)
        exponent = self._exponent(low, high, max(first["exponent"], second["exponent"]))
        begin, last = _bins_of(np.array([low, high]), exponent).tolist()
        counts = np.zeros(last - begin + 1, np.int64)
        for state in (first, second):
            bins = np.arange(state["first"], state["first"] + len(state["counts"]))
            np.add.at(counts, (bins >> (exponent - state["exponent"])) - begin, state["counts"])
        return {**outside, "range": (low, high), "exponent": exponent, "first": begin, "counts": counts}

    def result(self, state: State) -> Any:
        counts = state["counts"]
        edges = self._edges
        if edges is None:
            bins = np.arange(state["first"], state["first"] + len(counts) + (len(counts) > 0))
            with np.errstate(over="ignore"):
                edges = np.ldexp(bins.astype(np.float64), state["exponent"])
            edges = np.clip(edges, -LARGEST, LARGEST)
        return {
            "edges": edges,
            "counts": counts,
            "missing": state["missing"],
            "below": state["below"],
            "above": state["above"],
        }


def _bins_of(floats: np.ndarray, exponent: int) -> np.ndarray:
    """The numbers of the bins, 2^exponent wide, that hold `floats`, int64."""
    bins: np.ndarray = np.floor(np.ldexp(floats, -exponent)).astype(np.int64)
    bins[(floats < 0) & (bins == 0)] = -1  # what is so small that the quotient is 0
    return bins


def _in_edges(edges: np.ndarray, floats: np.ndarray) -> State:
    places = np.searchsorted(edges, floats, side="right") - 1
    places[floats == edges[-1]] = len(edges) - 2
    below, above = int((places < 0).sum()), int((places > len(edges) - 2).sum())
    inside = places[(places >= 0) & (places <= len(edges) - 2)]
    return {"below": below, "above": above, "counts": np.bincount(inside, minlength=len(edges) - 1)}
