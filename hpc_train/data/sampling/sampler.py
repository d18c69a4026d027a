"""Which rows a rank reads at which step. Pure, and nothing is replayed: any step's rows can be had at once.

The order of rows is a function of (seed, epoch, step, rank, size), and of how far the job had come when its size last
changed, which DataProgress holds. It is a stream in which each epoch follows the one before without a gap: no row is
left out, and a batch may hold the last rows of one epoch and the first of the next.

`"global"`: each epoch is one permutation of all rows. Step s takes its s-th global batch, of which each rank reads its
own slice: N ranks with batch b see the global batches of one rank with N x b. `"none"`: the same, in file order.

`"block"`: blocks of contiguous rows are permuted, which gives the epoch's line of rows, and the line is cut into one
lane a rank. A lane is cut into windows of at least a tenth of it; the rows of a window are read one block after the
other, and shuffled with the rank's own seed (two levels, as in Xu et al., "In-database machine learning with
CorgiPile", SIGMOD 2022, who find that such a buffer converges about as a full shuffle does).

A job that goes on with another number of ranks reads what is left: in block mode the rest of all lanes, laid end to
end, is cut again into equal parts, one a rank; the next epoch is dealt anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from hpc_train.data.sampling.buckets import Buckets
from hpc_train.data.sampling.dealing import Blocks, Deal, Line, Piece, line_of, pieces_of
from hpc_train.data.sampling.shuffle import derive_seed, drawn_with_replacement, permutation_slice

ShuffleMode = Literal["global", "block", "none"]

WINDOWS = 10
"""A block-mode window is at least one part in so many of a rank's share."""


@dataclass(frozen=True)
class DataProgress:
    """How far a job has come in its data.

    Attributes:
        step: The global step, and `rows_read` the rows that all ranks have read by then, since the job began.
        sizes: (rows_read, ranks) from which on the job had so many ranks; those that the order still depends on.
    """

    step: int = 0
    rows_read: int = 0
    sizes: tuple[tuple[int, int], ...] = ()

    def at_size(self, size: int) -> DataProgress:
        """The same point in the data, to go on from with `size` ranks."""
        if self.sizes and self.sizes[-1][1] == size:
            return self
        kept = tuple(entry for entry in self.sizes if entry[0] < self.rows_read)
        return replace(self, sizes=(*kept, (self.rows_read, size)))

    def next_epoch(self, rows: int) -> DataProgress:
        """The beginning of the next epoch of `rows` rows, for an order that has changed."""
        return DataProgress(self.step, -(-self.rows_read // rows) * rows)


@dataclass(frozen=True)
class DataOrder:
    """What the order of rows depends on, beside the ranks and how far the job has come.

    Attributes:
        shards: A digest of the shards' names and sizes, and of the blocks in block mode.
    """

    seed: int
    shuffle: ShuffleMode
    rows: int
    shards: str


def resumed(progress: DataProgress, saved: DataOrder | None, now: DataOrder | None) -> DataProgress:
    """Where a job goes on in data of the order `now` (None: an input_fn's), saved when the order was `saved`.

    In another order than before it goes on with a whole epoch.
    """
    if now is None:
        return DataProgress(progress.step)
    return progress if saved == now else progress.next_epoch(now.rows)


@dataclass(frozen=True)
class Window:
    """A part of one rank's stream whose rows are shuffled among themselves.

    Attributes:
        start, stop: The part of the window that this rank reads, as places in its stream.
        rows: Whole window: (first row, end) of each run of contiguous rows, in the order to read them.
    """

    start: int
    stop: int
    rows: list[tuple[int, int]]


@dataclass(frozen=True)
class Sampler:
    """The training order of `rows` rows over `size` ranks, seen from `rank`.

    Attributes:
        batch_size: Rows that a rank reads a step.
        seed: Of the job's data order, 64 bits.
        progress: Where the job goes on from; the beginning, where it is left out.
        blocks: What block mode permutes.
        buckets: Puts rows of like length together, in block mode; None: nothing does.
        bootstrap: The seed by which the rows of an epoch are drawn from all with replacement, not in block mode; None:
            each row comes once.
    """

    rows: int
    batch_size: int
    rank: int = 0
    size: int = 1
    seed: int = 0
    shuffle: ShuffleMode = "global"
    progress: DataProgress = DataProgress()
    blocks: Blocks | None = None
    buckets: Buckets | None = None
    bootstrap: int | None = None

    def progress_at(self, step: int, batches: int | None = None) -> DataProgress:
        """How far the job has come when `step` steps are done, for a checkpoint. The same on all ranks.

        Args:
            batches: That all ranks together have read since `progress`; None: each rank one a step.
        """
        now = self.progress.at_size(self.size)
        read = (step - now.step) * self.size if batches is None else batches
        rows_read = now.rows_read + read * self.batch_size
        epoch_start = rows_read // self.rows * self.rows
        later = [start for start, _ in now.sizes[1:]] + [rows_read + 1]
        sizes = tuple(entry for entry, end in zip(now.sizes, later, strict=True) if end > epoch_start)
        return DataProgress(step, rows_read, sizes)

    def epoch_of(self, step: int) -> int:
        """The epoch of the first row that is read at `step`."""
        return self._first_row_of(step) // self.rows

    def last_step(self, epochs: int | None) -> int | None:
        """The step after which fewer rows than a global batch are left of `epochs`; None where there is no end."""
        if epochs is None:
            return None
        left = epochs * self.rows - self.progress.rows_read
        return self.progress.step + max(0, left // (self.batch_size * self.size))

    def augmentation_seed(self, step: int) -> int:
        """A 64-bit seed for what this rank does at random to the batch of `step`."""
        return derive_seed(self.seed, self.epoch_of(step), step, self.rank)

    def rows_at(self, step: int) -> np.ndarray:
        """Rows that this rank reads at `step` (counted over the whole job), int64 `[batch_size]`."""
        return self.rows_between(step, step + 1)

    def rows_between(self, step: int, end: int) -> np.ndarray:
        """Rows of steps `step`…`end - 1`, one batch after the other, int64 `[(end - step) * batch_size]`."""
        if self.shuffle == "block":
            parts = list(self._block_rows(self.place_of(step), self.place_of(end)))
        elif self.size == 1:
            parts = list(self._common_rows(self._first_row_of(step), self._first_row_of(end)))
        else:
            firsts = (self._first_row_of(k) + self.rank * self.batch_size for k in range(step, end))
            parts = [part for first in firsts for part in self._common_rows(first, first + self.batch_size)]
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return rows if self.bootstrap is None else drawn_with_replacement(self.rows, self.bootstrap, rows)

    def window(self, place: int) -> Window:
        """Block mode: the window from which the row at `place` of this rank's stream comes."""
        epoch, piece, inside, piece_start = self._find(place)
        low, high, _ = self._window_bounds(epoch, piece, inside)
        runs = self._line(epoch).runs(piece.low + low, piece.low + high)
        start, stop = max(low, piece.start), min(high, piece.stop)
        return Window(piece_start + start - piece.start, piece_start + stop - piece.start, runs)

    def place_of(self, step: int) -> int:
        """Block mode: the place in this rank's stream of the first row of `step`."""
        return self._first_place + (step - self.progress.step) * self.batch_size

    @property
    def window_rows(self) -> int:
        """Block mode: rows of the largest window that this rank reads."""
        lanes = {self.rows // self.size, -(-self.rows // self.size)}
        lanes |= {piece.high - piece.low for piece in pieces_of(self._deal, self.rank, 0)}
        return max(-(-lane // _windows_of(lane)) for lane in lanes if lane)

    def _first_row_of(self, step: int) -> int:
        return self.progress.rows_read + (step - self.progress.step) * self.batch_size * self.size

    def _common_rows(self, first: int, end: int) -> Iterator[np.ndarray]:
        while first < end:
            epoch, start = divmod(first, self.rows)
            stop = min(start + end - first, self.rows)
            if self.shuffle == "none":
                yield np.arange(start, stop)
            else:
                yield permutation_slice(self.rows, derive_seed(self.seed, epoch), start, stop)
            first += stop - start

    @cached_property
    def _deal(self) -> Deal:
        return Deal.of_sizes(self.progress.at_size(self.size).sizes, self.rows)

    @cached_property
    def _first_place(self) -> int:
        start = self.progress.at_size(self.size).sizes[-1][0]
        return (self.progress.rows_read - start) // self.size

    def _block_rows(self, first: int, end: int) -> Iterator[np.ndarray]:
        while first < end:
            epoch, piece, place, _ = self._find(first)
            low, high, seed = self._window_bounds(epoch, piece, place)
            stop = min(place + end - first, piece.stop, high)
            line, start = self._line(epoch), piece.low + low
            if self.buckets is None:
                inside = permutation_slice(high - low, seed, place - low, stop - low)
            else:
                inside = self.buckets.slice(
                    high - low,
                    seed,
                    place - low,
                    stop - low,
                    lambda places, line=line, start=start: line.rows_at(start + places),  # type: ignore[misc]
                )
            yield line.rows_at(start + inside)
            first += stop - place

    def _find(self, place: int) -> tuple[int, Piece, int, int]:
        """Of a place in this rank's stream: the epoch, the piece, the place in the piece's lane, the piece's start."""
        deal = self._deal
        number = deal.epoch_at(self.rank, place)
        start = deal.read_before(self.rank, number)
        for piece in pieces_of(deal, self.rank, number):
            length = piece.stop - piece.start
            if place < start + length:
                return deal.epoch + number, piece, piece.start + place - start, start
            start += length
        raise AssertionError(f"place {place} is in no piece")

    def _window_bounds(self, epoch: int, piece: Piece, place: int) -> tuple[int, int, int]:
        """Of the window that `place` of a lane falls into: where it begins and ends in the lane, and its seed."""
        length = piece.high - piece.low
        count = _windows_of(length)
        number = ((place + 1) * count - 1) // length
        seed = derive_seed(self.seed, epoch, piece.lane, number)
        return number * length // count, (number + 1) * length // count, seed

    def _line(self, epoch: int) -> Line:
        if self.blocks is None:
            raise ValueError("shuffle 'block' needs blocks")
        return line_of(self.blocks, derive_seed(self.seed, epoch))


def _windows_of(rows: int) -> int:
    return max(1, rows // -(-rows // WINDOWS))


def evaluation_batches(
    rows: int, batch_size: int, steps: int | None, rank: int, size: int
) -> Sequence[tuple[int, int]]:
    """The batches that `rank` evaluates, as (first row, end). They take no memory.

    They are the batches of one process, the last one shorter where rows run out, dealt to the ranks in turn: each
    row is evaluated once, and every batch is the same however many ranks there are.
    """
    count = -(-rows // batch_size)
    count = count if steps is None else min(count, steps)
    return _Batches(range(rank * batch_size, count * batch_size, size * batch_size), batch_size, rows)


class _Batches(Sequence[tuple[int, int]]):
    def __init__(self, firsts: range, batch_size: int, rows: int) -> None:
        self._firsts, self._batch_size, self._rows = firsts, batch_size, rows

    def __len__(self) -> int:
        return len(self._firsts)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return _Batches(self._firsts[number], self._batch_size, self._rows)
        first = self._firsts[number]
        return first, min(first + self._batch_size, self._rows)
