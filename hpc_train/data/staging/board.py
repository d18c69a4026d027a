"""Board: what one rank of a node tells the others of its copies, in a nameless file that they read by its process."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from hpc_train.files import nameless, open_regular

PENDING, READY, REFUSED = 0, 1, 2
Offer = tuple[int, int, int, int]
"""Process, descriptor, device and inode: what finds a file that has no name, and tells it from another."""


class Board:
    """The state of `count` shards, and the descriptors of their copies. Closing it frees the file."""

    def __init__(self, descriptor: int, count: int) -> None:
        self._descriptor, self._count = descriptor, count

    @classmethod
    def new(cls, folder: Path, count: int) -> Board:
        """Raises OSError where the file cannot be made."""
        board = cls(nameless(folder), count)
        os.pwrite(board._descriptor, np.zeros((count, 4), np.int64).tobytes(), 0)
        return board

    @classmethod
    def of(cls, offer: Offer, count: int) -> Board:
        """That of another process. Raises OSError where it cannot be read."""
        return cls(open_offered(offer), count)

    @property
    def offer(self) -> Offer:
        return offer_of(self._descriptor)

    def note(self, number: int, state: int, copy: int = -1) -> None:
        """Sets the state of a shard, and the descriptor of its copy."""
        _, descriptor, device, inode = offer_of(copy) if copy >= 0 else (0, 0, 0, 0)
        os.pwrite(self._descriptor, np.array([descriptor, device, inode], np.int64).tobytes(), 32 * number + 8)
        os.pwrite(self._descriptor, np.array([state], np.int64).tobytes(), 32 * number)

    def withdraw(self) -> None:
        """Offers nothing any more, for the copies are about to be closed."""
        for number in range(self._count):
            self.note(number, REFUSED)

    def read(self) -> list[list[int]]:
        """State, descriptor, device and inode of each shard's copy."""
        found = np.frombuffer(os.pread(self._descriptor, 32 * self._count, 0), np.int64).reshape(-1, 4)
        return [list(map(int, row)) for row in found]

    def close(self) -> None:
        os.close(self._descriptor)


def offer_of(descriptor: int) -> Offer:
    """How other processes of this user and node find an open file."""
    status = os.fstat(descriptor)
    return os.getpid(), descriptor, status.st_dev, status.st_ino


def open_offered(offer: Offer) -> int:
    """A descriptor of an open file of another process.

    Raises:
        OSError: The process is gone or cannot be seen from here, or has another file there.
    """
    process, number, device, inode = offer
    descriptor = open_regular(f"/proc/{process}/fd/{number}", follow=True)
    status = os.fstat(descriptor)
    if (status.st_dev, status.st_ino, status.st_uid) != (device, inode, os.geteuid()):
        os.close(descriptor)
        raise OSError(f"process {process} of this node is not the rank that has the copies")
    return descriptor
