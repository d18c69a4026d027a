"""Blocks of contiguous rows, and the order in which an epoch lays them end to end. Pure."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from hpc_train.data.sampling.shuffle import permutation


class Blocks:
    """Block i is rows `starts[i]`…`starts[i + 1] - 1`; `starts` is int64 `[blocks + 1]`."""

    def __init__(self, starts: np.ndarray) -> None:
        self.starts = starts


class Line:
    """Blocks in some order, laid end to end. A place is a row's number on the line."""

    def __init__(self, blocks: Blocks, order: np.ndarray) -> None:
        self._firsts = blocks.starts[:-1][order]
        self._bounds = np.append(0, np.cumsum(np.diff(blocks.starts)[order]))

    def rows_at(self, places: np.ndarray) -> np.ndarray:
        """Row numbers at `places`, int64."""
        block = np.searchsorted(self._bounds, places, side="right") - 1
        rows: np.ndarray = self._firsts[block] + (places - self._bounds[block])
        return rows

    def runs(self, low: int, high: int) -> list[tuple[int, int]]:
        """(first row, end) of each block, or part of one, between two places."""
        first = int(np.searchsorted(self._bounds, low, side="right")) - 1
        last = int(np.searchsorted(self._bounds, high, side="left"))
        begins = np.maximum(self._bounds[first:last], low)
        ends = np.minimum(self._bounds[first + 1 : last + 1], high)
        shift = self._firsts[first:last] - self._bounds[first:last]
        return list(zip((begins + shift).tolist(), (ends + shift).tolist(), strict=True))


@lru_cache(maxsize=3)
def line_of(blocks: Blocks, seed: int) -> Line:
    """The blocks in the order that `seed` chooses."""
    return Line(blocks, permutation(len(blocks.starts) - 1, seed))
