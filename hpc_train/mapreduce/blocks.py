"""Where rows come from: in blocks, each of which is read by the rank that works on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from hpc_train.data.hdf5.reader import Reader, Rows
from hpc_train.data.hdf5.shards import ShardSet
from hpc_train.errors import UserError

Batch = Mapping[str, Rows]
"""Some rows that follow each other, by column."""
Read = Callable[[int], Iterator[Any]]
"""Of the number of a block its rows, in parts that follow each other."""
BLOCK_ROWS = 1024
"""Of fewer rows, calls take longer than what they compute."""
BLOCK_BYTES = 8 << 20
"""Of more, the copies that reducers make would take much memory."""


class BlockSource(ABC):
    """Rows in blocks, which depend on the files alone.

    Attributes:
        blocks: How many there are.
    """

    blocks: int

    @abstractmethod
    def reader(self) -> AbstractContextManager[Read]:
        """What reads a block: for one thread, while the context lasts."""


class ShardBlocks(BlockSource):
    """The rows of shards, as Batches."""

    def __init__(self, shards: ShardSet) -> None:
        self._shards, self._starts = shards, shards.blocks_of(BLOCK_ROWS, BLOCK_BYTES).starts
        self.blocks = len(self._starts) - 1

    @contextmanager
    def reader(self) -> Iterator[Read]:
        names = [column.key for column in self._shards.columns]
        with Reader(self._shards, cached_rows=int(np.diff(self._starts).max()), threads=1) as reader:

            def read(block: int) -> Iterator[Batch]:
                try:
                    rows = reader.read(np.arange(self._starts[block], self._starts[block + 1]))
                except OSError as error:
                    raise UserError(f"{error}; write the shard anew, or leave it out") from None
                yield dict(zip(names, rows, strict=True))

            yield read
