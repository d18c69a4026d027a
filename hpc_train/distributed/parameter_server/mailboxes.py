"""The two ends of one-sided communication: views of a server's window, by name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpc_train.distributed.parameter_server import window_layout as at
from hpc_train.distributed.parameter_server.partition import Partition, Piece
from hpc_train.distributed.parameter_server.window_layout import ServerLayout
from hpc_train.distributed.tensors import aligned


@dataclass(frozen=True)
class Rows:
    """A gradient that is some rows of a piece: `count` (int64 `[1]`), their numbers and values, with room for all."""

    count: np.ndarray
    numbers: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Mailbox:
    """What one worker has pushed, as views of the server's memory.

    Attributes:
        header: int64 words. gradients: of each of the server's pieces, an array of its shape, or Rows.
        carried: uint8.
    """

    worker: int
    header: np.ndarray
    gradients: tuple[np.ndarray | Rows, ...]
    carried: np.ndarray

    @property
    def flag(self) -> int:
        """The number of the push that is in it."""
        return int(self.header[at.FLAG])

    @property
    def kind(self) -> int:
        """What that push is: GRADIENT, BAD or LEAVES."""
        return int(self.header[at.KIND])

    def number(self, word: int) -> float:
        """A word of the header that holds a float64."""
        return float(self.header[word : word + 1].view(np.float64)[0])


def mailboxes(
    memory: np.ndarray, layout: ServerLayout, partition: Partition, server: int, carried_nbytes: int
) -> list[Mailbox]:
    """All of a server's mailboxes, by worker."""
    found = []
    for worker in range(layout.workers):
        place, start = layout.header(worker), layout.mailbox(worker)
        box = memory[start : start + layout.mailbox_nbytes]
        gradients: list[np.ndarray | Rows] = []
        for piece, rows in zip(partition.pieces(server), layout.rows, strict=True):
            values = piece.view(box, partition.cuts[server])
            gradients.append(values if rows is None else _rows(box, rows, piece, values))
        header = memory[place : place + at.HEADER_WORDS * at.WORD].view(np.int64)
        carried = box[layout.carried : layout.carried + carried_nbytes] if server == 0 else box[:0]
        found.append(Mailbox(worker, header, tuple(gradients), carried))
    return found


def _rows(box: np.ndarray, place: int, piece: Piece, values: np.ndarray) -> Rows:
    numbers = box[place + at.HEAD : place + at.HEAD + aligned(piece.shape[0] * at.WORD)]
    return Rows(box[place : place + at.WORD].view(np.int64), numbers.view(np.int64)[: piece.shape[0]], values)


def control_words(memory: np.ndarray, layout: ServerLayout) -> np.ndarray:
    """The control words of a server's own window, int64 `[APPLIED + workers]`."""
    return memory[: (at.APPLIED + layout.workers) * at.WORD].view(np.int64)
