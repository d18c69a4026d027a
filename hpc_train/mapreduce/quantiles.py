"""Quantiles of numbers in one pass, with an error that is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from hpc_train.arguments import check_type, checked_arguments, not_allowed
from hpc_train.mapreduce.reducer import Reducer, floats_of, numbers

State = dict[str, Any]
LEVELS = 24
"""So often a number is halved at most before the error that is asked for is exceeded: with 2^24 buffers of numbers."""
QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


@checked_arguments
class Quantiles(Reducer[State]):
    """Quantiles of all numbers of all rows: a dict of `probabilities`, `values`, `count`, `missing` and `error`.

    Values are those of the data. One stands at a rank that differs from `probability * count` by `error * count` at
    most; the lowest and the highest number are exact. All is exact, and the error 0, while no more numbers have come
    than a buffer holds.

    Numbers are kept in sorted buffers; of one that is full each second number goes to the next buffer, where it counts
    twice (Manku, Rajagopalan and Lindsay, "Approximate Medians and other Quantiles in One Pass and with Limited
    Memory", 1998). That changes ranks by what a number of the buffer counts at most; `error` is the sum of that, and
    of what one number counts at the end.

    Args:
        probabilities: 0 to 1; float64 values are returned for each. error: what is allowed; it takes `24 / error`
            numbers a buffer, and at most 24 buffers.

    Raises:
        UserError: An argument is not allowed.
    """

    def __init__(self, probabilities: Sequence[float] = QUARTERS, error: float = 0.005) -> None:
        check_type("Quantiles", "error", error, Real, "a number from 0.00001 to 1")
        if not 1e-5 <= error <= 1:
            raise not_allowed("Quantiles", "error", error, "a number from 0.00001 to 1")
        self._probabilities = floats_of("Quantiles", "probabilities", probabilities, "numbers from 0 to 1")
        if not bool(((self._probabilities >= 0) & (self._probabilities <= 1)).all()):
            raise not_allowed("Quantiles", "probabilities", probabilities, "numbers from 0 to 1")
        self._size = 2 * math.ceil(LEVELS / error / 2)

    def init(self) -> State:
        return {"buffers": [], "range": None, "count": 0, "missing": 0, "moved": 0}

    def add(self, state: State, values: Any) -> State:
        array = np.sort(numbers(values, "Quantiles"), axis=None)  # NaN comes last
        known = int(np.searchsorted(array, np.nan)) if array.dtype.kind == "f" else array.size
        array, missing = array[:known], array.size - known
        new = {**self.init(), "missing": missing, "count": known}
        if known:
            new["range"] = (float(array[0]), float(array[-1]))
            # Of every `each` numbers the middle one stands for all; what is left over counts once.
            level = max(0, math.ceil(math.log2(known / self._size)))
            each = 1 << level
            whole = known - known % each
            buffers = [array[whole:], *(np.empty(0) for _ in range(level - 1)), array[each // 2 : whole : each]]
            new["buffers"] = [buffer.astype(np.float64) for buffer in (buffers if level else [array])]
            new["moved"] = each // 2
        return self.merge(state, new)

    def merge(self, first: State, second: State) -> State:
        levels = max(len(first["buffers"]), len(second["buffers"]))
        empty = np.empty(0)
        buffers, moved, carried = [], first["moved"] + second["moved"], empty
        level = 0
        while level < levels or carried.size:
            parts = [state["buffers"][level] for state in (first, second) if level < len(state["buffers"])]
            buffer = np.sort(np.concatenate([*parts, carried]))
            carried = empty
            if buffer.size > self._size:
                even = buffer.size // 2 * 2
                # Once the lower and once the higher of two: so that errors cancel out, mostly.
                carried, buffer = buffer[:even][(first["count"] >> level) % 2 :: 2], buffer[even:]
                moved += 1 << level
            buffers.append(buffer)
            level += 1
        ranges = [state["range"] for state in (first, second) if state["range"] is not None]
        return {
            "buffers": buffers,
            "range": (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None,
            "count": first["count"] + second["count"],
            "missing": first["missing"] + second["missing"],
            "moved": moved,
        }

    def result(self, state: State) -> Any:
        values, weights = self.summary(state)
        found = np.full(len(self._probabilities), np.nan)
        if len(values):
            ends = np.cumsum(weights)
            ranks = self._probabilities * ends[-1] * (1 - 1e-12)  # not the next one, where a product is rounded up
            found = values[np.minimum(np.searchsorted(ends, ranks), len(values) - 1)]
            low, high = state["range"]
            found[self._probabilities == 0.0], found[self._probabilities == 1.0] = low, high
        return {
            "probabilities": self._probabilities,
            "values": found,
            "count": state["count"],
            "missing": state["missing"],
            "error": (state["moved"] + int(weights.max(initial=1)) - 1) / max(1, state["count"]),
        }

    @staticmethod
    def summary(state: State) -> tuple[np.ndarray, np.ndarray]:
        """The numbers that are kept, float64 `[n]` ascending, and for how many each of them stands, int64 `[n]`."""
        values = np.concatenate([np.empty(0), *state["buffers"]])
        weights = np.concatenate(
            [np.empty(0, np.int64), *(np.full(len(b), 1 << k, np.int64) for k, b in enumerate(state["buffers"]))]
        )
        order = np.argsort(values, kind="stable")
        return values[order], weights[order]
