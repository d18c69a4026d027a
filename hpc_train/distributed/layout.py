"""Where the elements of an array lie that ranks hold in parts: block by block, which rank has what of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hpc_train.distributed.share import Share
from hpc_train.distributed.world import World

BLOCK_BYTES = 16 << 20
"""What is held of an array at once."""


def place_of(share: Share) -> tuple[int, int, int, int, int]:
    """`share` as numbers: axis, start, stop, first and last."""
    return share.axis, share.start, share.start + share.box[share.axis], share.first, share.first + share.size


def lowest_holders(world: World, shares: Sequence[Share]) -> list[np.ndarray]:
    """By array of which this rank holds one of `shares`: for each rank the lowest with the same part. Collective."""
    places = np.array(world.all_gather([place_of(share) for share in shares]), np.int64).reshape(world.size, -1, 5)
    found = []
    for by_rank in places.transpose(1, 0, 2):
        _, first, which = np.unique(by_rank, axis=0, return_index=True, return_inverse=True)
        found.append(first[which.reshape(-1)])
    return found


@dataclass(frozen=True)
class BlockPart:
    """What one rank has of a block.

    Attributes:
        first, last: Counted through what `rank` holds, flat.
        columns: Of the block; at: where in these columns the elements begin, counted flat.
    """

    rank: int
    first: int
    last: int
    columns: slice
    at: int

    def put(self, block: np.ndarray, elements: np.ndarray) -> None:
        """Puts `elements`, which `rank` has sent, where they belong in `block`, `[rows, columns]`."""
        into = block[:, self.columns]
        if elements.size == into.size:
            into[...] = elements.reshape(into.shape)
        else:
            flat = into.reshape(-1) if into.flags.c_contiguous else into.flat
            flat[self.at : self.at + elements.size] = elements


@dataclass(frozen=True)
class Block:
    """Elements of an array that follow one another, and who has them.

    Attributes:
        start: Of the first one, counted flat. shape: rows and columns.
    """

    start: int
    shape: tuple[int, int]
    pieces: tuple[BlockPart, ...]


class Layout:
    """Which rank holds which part of an array of `shape`; of ranks with the same part, the lowest is asked for it.

    The array is looked at as a matrix whose rows are what lies before the axis along which it is cut: of each row, a
    rank has some columns, and of these, counted flat, a range. An array that is cut by its elements alone is one row.

    Args:
        places: By rank, `place_of` its share, int64 `[ranks, 5]`.

    Raises:
        ValueError: The parts are not the whole, each element once.
    """

    def __init__(self, shape: tuple[int, ...], places: np.ndarray) -> None:
        self.shape = shape
        holding = np.flatnonzero(places[:, 4] > places[:, 3])
        _, lowest = np.unique(places[holding], axis=0, return_index=True)
        self._ranks = holding[np.sort(lowest)]
        axes, starts, stops, self._first, self._last = places[self._ranks].T
        size = math.prod(shape)
        if len(set(axes.tolist())) > 1 or int((self._last - self._first).sum()) != size:
            raise ValueError(f"the parts that ranks hold of an array of shape {list(shape)} are not the whole")
        axis = int(axes[0]) if size else 0
        inner = math.prod(shape[axis + 1 :])
        self._rows, self._width = math.prod(shape[:axis]), shape[axis] * inner
        self._left, self._right = starts * inner, stops * inner

    def blocks(self, limit: int) -> Iterator[Block]:
        """All of the array in order, at most `limit` elements each: some rows, or a part of one."""
        if not self._ranks.size:
            return
        rows, columns = max(1, limit // self._width), min(self._width, limit)
        for top in range(0, self._rows, rows):
            for left in range(0, self._width, columns):
                yield self._block(top, min(top + rows, self._rows), left, min(left + columns, self._width))

    def _block(self, top: int, bottom: int, left: int, right: int) -> Block:
        begin, end = np.maximum(self._left, left), np.minimum(self._right, right)
        width = self._right - self._left
        before = top * width + begin - self._left
        first = np.maximum(self._first, before)
        last = np.minimum(self._last, (bottom - 1) * width + end - self._left)
        pieces = tuple(
            BlockPart(
                int(self._ranks[i]),
                int(first[i] - self._first[i]),
                int(last[i] - self._first[i]),
                slice(int(begin[i] - left), int(end[i] - left)),
                int(first[i] - before[i]),
            )
            for i in np.flatnonzero((begin < end) & (first < last))
        )
        return Block(top * self._width + left, (bottom - top, right - left), pieces)
