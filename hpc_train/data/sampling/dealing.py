"""Block mode: an epoch's line of rows, and how it is dealt to the ranks, whatever their number was before. Pure.

Rank r reads floor((x + r) / size) rows while all ranks together read x. These are whole numbers that sum to x
(Hermite's identity) and differ by one at most, so epochs follow one another without a gap and no rank waits.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class Piece:
    """Places `start`…`stop - 1` of a lane: lane `lane` of its epoch holds `low`…`high - 1` of the epoch's line."""

    lane: int
    low: int
    high: int
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Deal:
    """What is left of `epoch`, and all epochs after it, dealt to `size` ranks. Each rank reads one stream of rows.

    Attributes:
        rows: Rows of an epoch; `left`: those not yet read of the epoch under way.
        rest: Where these lie. Empty where nobody will ask, because the job is past this epoch.
    """

    epoch: int
    rows: int
    size: int
    left: int
    rest: tuple[Piece, ...]

    @classmethod
    def of_epoch(cls, epoch: int, rows: int, size: int) -> Deal:
        """A whole epoch: one lane a rank."""
        bounds = [_share_start(rows, rank, size) for rank in range(size + 1)]
        lanes = enumerate(itertools.pairwise(bounds))
        rest = tuple(Piece(lane, low, high, 0, high - low) for lane, (low, high) in lanes if high > low)
        return cls(epoch, rows, size, rows, rest)

    @classmethod
    def of_sizes(cls, sizes: Sequence[tuple[int, int]], rows: int) -> Deal:
        """The deal that follows from `sizes`, the (rows_read, ranks) of DataProgress."""
        start, size = sizes[0]
        epoch, read = divmod(start, rows)
        deal = cls.of_epoch(epoch, rows, size) if read == 0 else cls(epoch, rows, size, rows - read, ())
        for until, next_size in sizes[1:]:
            deal = deal.dealt_again((until - start) // size, next_size)
            start, size = until, next_size
        return deal

    def read_before(self, rank: int, number: int) -> int:
        """Rows that `rank` reads before the epoch `number` epochs after this one."""
        return (self.left + (number - 1) * self.rows + rank) // self.size if number else 0

    def epoch_at(self, rank: int, place: int) -> int:
        """How many epochs after this one `rank` reads the row at `place` of its stream."""
        return max(0, ((place + 1) * self.size - 1 - self.left - rank) // self.rows + 1)

    def dealt_again(self, read: int, size: int) -> Deal:
        """What is left when each rank has read `read` rows, laid end to end and dealt to `size` ranks."""
        number = min(self.epoch_at(rank, read) for rank in range(self.size))
        if number > 0 and all(read == self.read_before(rank, number) for rank in range(self.size)):
            return Deal.of_epoch(self.epoch + number, self.rows, size)
        rest: list[Piece] = []
        for rank in range(self.size):
            rest += _cut(pieces_of(self, rank, number), read - self.read_before(rank, number), self.rows)
        left = sum(piece.stop - piece.start for piece in rest)
        return Deal(self.epoch + number, self.rows, size, left, tuple(rest))


@lru_cache(maxsize=64)
def pieces_of(deal: Deal, rank: int, number: int) -> list[Piece]:
    """What `rank` reads of the epoch `number` epochs after the deal's."""
    if number == 0:
        return _cut(deal.rest, *(_share_start(deal.left, r, deal.size) for r in (rank, rank + 1)))
    after = deal.left + number * deal.rows
    first, end = (
        _share_start(after, r, deal.size) - _share_start(after - deal.rows, r, deal.size) for r in (rank, rank + 1)
    )
    return [Piece(rank, first, end, 0, end - first)] if end > first else []


def _share_start(total: int, rank: int, size: int) -> int:
    """The sum of floor((total + r) / size) over all r below `rank`."""
    each, more = divmod(total, size)
    return rank * each + max(0, rank - (size - more))


def _cut(pieces: Sequence[Piece], first: int, end: int) -> list[Piece]:
    """Places `first`…`end - 1` of pieces laid end to end."""
    found, start = [], 0
    for piece in pieces:
        length = piece.stop - piece.start
        low, high = max(first - start, 0), min(end - start, length)
        if low < high:
            found.append(replace(piece, start=piece.start + low, stop=piece.start + high))
        start += length
    return found
