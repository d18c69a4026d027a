"""Which rows a rank reads at which step. Pure: nothing here is stored, so resuming needs only the step.

The order of rows is a function of (seed, epoch, step, rank, size). Seeds are derived with numpy's SeedSequence
(O'Neill's seed_seq design, https://www.pcg-random.org/posts/developing-a-seed_seq-alternative.html), and
permutations sort the raw output of the counter-based generator Philox (Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", SC11): numpy guarantees both streams for all its versions (NEP 19), which it does not for
`Generator.permutation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

_COMMON = 2**32 - 1
"""Stands for "all ranks" where a seed is derived; no job has so many ranks."""

BLOCKS_PER_RANK = 16
MAX_BLOCK_ROWS = 8192


def derive_seed(seed: int, epoch: int, rank: int) -> int:
    """A 64-bit seed for one rank in one epoch."""
    return int(np.random.SeedSequence(seed, spawn_key=(epoch, rank)).generate_state(1, np.uint64)[0])


def permutation(rows: int, seed: int) -> np.ndarray:
    """A permutation of 0…rows-1, int64 `[rows]`."""
    keys: np.ndarray = np.random.Philox(key=seed).random_raw(rows)
    order: np.ndarray = np.argsort(keys, kind="stable")
    return order


@dataclass(frozen=True)
class Sampler:
    """The training order of `rows` rows over `size` ranks, seen from `rank`.

    Every epoch has `steps_per_epoch` steps, the same on all ranks. In one epoch no row comes twice over all ranks;
    the rows % (batch_size x size) rows that fill no global batch are left out, others each epoch where rows are
    shuffled.

    Attributes:
        shuffle: `"global"`: one permutation of all rows an epoch, and global batch s is its s-th part, of which
            each rank reads its own slice, in an order of its own: N ranks with batch b see the global batches of
            one rank with N x b.
            `"block"`: blocks of contiguous rows are permuted over all ranks, cut into one part a rank, and each
            rank shuffles its part with its own seed. `"none"`: as global, in file order.
    """

    rows: int
    batch_size: int
    rank: int = 0
    size: int = 1
    seed: int = 0
    shuffle: Literal["global", "block", "none"] = "global"

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every rank reads a full batch."""
        return self.rows // (self.batch_size * self.size)

    def shuffle_seed(self, epoch: int) -> int:
        """This rank's own seed in `epoch`."""
        return derive_seed(self.seed, epoch, self.rank)

    def epoch_of(self, step: int) -> int:
        """The epoch that `step` (from 0) belongs to."""
        return step // self.steps_per_epoch

    def rows_at(self, step: int) -> np.ndarray:
        """Rows that this rank reads at `step` (from 0), int64 `[batch_size]`, for any step without replaying."""
        epoch, step = divmod(step, self.steps_per_epoch)
        if self.shuffle == "block":
            order = _block_order(self, epoch)
            return order[step * self.batch_size : (step + 1) * self.batch_size]
        first = (step * self.size + self.rank) * self.batch_size
        if self.shuffle == "none":
            return np.arange(first, first + self.batch_size)
        batch = _global_order(self.rows, self.seed, epoch)[first : first + self.batch_size]
        shuffled: np.ndarray = batch[_batch_order(self.batch_size, self.shuffle_seed(epoch))]
        return shuffled


@lru_cache(maxsize=2)
def _global_order(rows: int, seed: int, epoch: int) -> np.ndarray:
    return permutation(rows, derive_seed(seed, epoch, _COMMON))


@lru_cache(maxsize=2)
def _batch_order(batch_size: int, seed: int) -> np.ndarray:
    return permutation(batch_size, seed)


@lru_cache(maxsize=2)
def _block_order(sampler: Sampler, epoch: int) -> np.ndarray:
    """This rank's rows of one epoch, in its own order: its part of the blocks' common permutation, shuffled."""
    rows, size, rank = sampler.rows, sampler.size, sampler.rank
    block = max(1, min(MAX_BLOCK_ROWS, rows // (BLOCKS_PER_RANK * size)))
    starts = np.arange(0, rows, block)
    starts = starts[permutation(len(starts), derive_seed(sampler.seed, epoch, _COMMON))]
    dealt = np.concatenate([np.arange(start, min(start + block, rows)) for start in starts])
    share = rows // size
    own: np.ndarray = dealt[rank * share : (rank + 1) * share]
    shuffled: np.ndarray = own[permutation(share, sampler.shuffle_seed(epoch))]
    return shuffled


def evaluation_batches(rows: int, batch_size: int, steps: int | None, rank: int, size: int) -> list[tuple[int, int]]:
    """The batches that `rank` evaluates, as (first row, end).

    They are the batches of one process, the last one shorter where rows run out, dealt to the ranks in turn: each
    row is evaluated once, and every batch is the same however many ranks there are.
    """
    count = -(-rows // batch_size)
    count = count if steps is None else min(count, steps)
    return [(k * batch_size, min((k + 1) * batch_size, rows)) for k in range(rank, count, size)]
