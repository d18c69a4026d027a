"""Buckets: rows of like length go together, within pools of a block-mode window. Pure, given the rows' lengths.

A pool is a run of the window's shuffled order. Its rows are sorted by length and cut into buckets of some batches; the
buckets are shuffled, and so are the rows of each. Where a pool begins, and what is in it, depends on nothing but the
window, so the order of rows is a function of (seed, epoch, step, rank) as it is without.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from hpc_train.data.sampling.shuffle import derive_seed, permutation, permutation_slice

POOL_BATCHES, BUCKET_BATCHES = 256, 4
"""Batches of a pool, and of a bucket: a window may begin within a batch, so one in four has rows of two buckets."""
LEAST_BUCKETS = 8
"""A pool of few batches has smaller buckets, so that it has so many."""
POOLS_HELD = 8


class Buckets:
    """Puts rows of like length together. Threads may share it.

    Args:
        lengths: Of rows by number: int64 `[k]` to int64 `[k]`.
        batch_size: Rows of a batch of one rank.
    """

    def __init__(self, lengths: Callable[[np.ndarray], np.ndarray], batch_size: int) -> None:
        self._lengths, self._batch_size = lengths, batch_size
        self._pools: OrderedDict[tuple[int, int, int], np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def slice(self, n: int, seed: int, first: int, end: int, rows_at: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """What comes at places `first`…`end - 1` of a window of `n` rows, each by its place in line.

        As permutation_slice: int64 `[end - first]`, and all places of a window together are a permutation of 0…n-1.

        Args:
            rows_at: The row numbers at places in the window's line.
        """
        size = POOL_BATCHES * self._batch_size
        pools = [self._pool(n, seed, k, size, rows_at) for k in range(first // size, -(-end // size))]
        start = first // size * size
        return np.concatenate(pools)[first - start : end - start]

    def _pool(
        self, n: int, seed: int, number: int, size: int, rows_at: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        key = (n, seed, number)
        with self._lock:
            if key in self._pools:
                self._pools.move_to_end(key)
                return self._pools[key]
        places = permutation_slice(n, seed, number * size, min(n, (number + 1) * size))
        batches = min(max(1, len(places) // self._batch_size // LEAST_BUCKETS), BUCKET_BATCHES)
        order = bucketed(self._lengths(rows_at(places)), batches * self._batch_size, derive_seed(seed, number))
        pool: np.ndarray = places[order]
        with self._lock:
            self._pools[key] = pool
            if len(self._pools) > POOLS_HELD:
                self._pools.popitem(last=False)
        return pool


def bucketed(lengths: np.ndarray, size: int, seed: int) -> np.ndarray:
    """An order of rows, int64 `[k]`, in which those of like length are together, in buckets of `size` rows.

    The buckets are in the order that `seed` chooses, the rows of each in their own.
    """
    by_length = np.argsort(lengths, kind="stable")
    buckets = [np.sort(by_length[first : first + size]) for first in range(0, len(lengths), size)]
    return np.concatenate([buckets[k] for k in permutation(len(buckets), seed)])
