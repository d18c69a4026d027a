"""Writing that lasts: bytes forced to the disk, passing errors of a file system waited out, HDF5 kept from the disk."""

from __future__ import annotations

import io
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from hpc_train.data.hdf5.data_file import PASSING_ERRORS, RETRY_WAITS_SECS, errno_of
from hpc_train.files import create

log = logging.getLogger(__name__)

T = TypeVar("T")
Moved = Callable[[], None]
"""Called whenever a long operation has come a bit further: what takes long is not taken for stuck."""


def idle() -> None:
    """A Moved that nobody listens to."""


def retried(action: Callable[[], T]) -> T:
    """Runs `action` again after an error that may pass (EIO, ESTALE, …), some 20 s long at most.

    Raises:
        OSError: The last one, where it did not pass; any other at once.
    """
    for wait in RETRY_WAITS_SECS:
        try:
            return action()
        except OSError as error:
            if errno_of(error) not in PASSING_ERRORS:
                raise
            log.info(f"{error}; trying again in {wait:g} s")
        time.sleep(wait)
    return action()


@contextmanager
def opened(path: Path, new: bool = False) -> Iterator[int]:
    """A descriptor of `path` to read, or of a new file to write, for the duration of the block.

    Raises:
        OSError: It cannot be opened or made; errors of its use name the path, too.
    """
    descriptor = create(path) if new else os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)


def sync_to_disk(path: Path) -> None:
    """Waits until what was written to a file, or the names in a folder, are on the disk."""
    with opened(path) as descriptor:
        os.fsync(descriptor)


MAX_WRITE_BYTES = 8 << 20
"""Written at once: between two writes others get their turn on the disk."""
MAX_UNSYNCED_BYTES = 256 << 20
"""Written between two waits for the disk: a slow disk is seen to move."""


def write_pieces(path: Path, size: int, pieces: Iterable[tuple[int, memoryview]], moved: Moved = idle) -> None:
    """Writes the new file `path` of `size` bytes, each piece at its offset, and waits until all is on the disk.

    A piece is asked for when the one before has been written.

    Raises:
        OSError: With errno and path.
    """
    unsynced = 0
    with opened(path, new=True) as descriptor:
        os.ftruncate(descriptor, size)
        for offset, piece in pieces:
            while len(piece):
                written = os.pwrite(descriptor, piece[:MAX_WRITE_BYTES], offset)
                offset, piece, unsynced = offset + written, piece[written:], unsynced + written
                if unsynced >= MAX_UNSYNCED_BYTES:
                    os.fsync(descriptor)
                    unsynced = 0
                moved()
        os.fsync(descriptor)
        moved()


_PAGE_BYTES = 4096


class Draft(io.RawIOBase):
    """A file in memory, for HDF5 to write to: it keeps the pages that are written; the rest reads as zeros, at no cost.

    HDF5 does not survive errors of its own writes: closing a file on a full disk fails, keeps it open for ever, and
    ends the process at times. What it writes here cannot fail; write_pieces then puts it on the disk.
    """

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}
        self._at, self.size = 0, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self.size)[whence]
        return self._at

    def readinto(self, out: memoryview) -> int:  # type: ignore[override]
        count = max(0, min(len(out), self.size - self._at))
        for page, start, place, length in self._parts(count):
            found = self._pages.get(page, bytes(_PAGE_BYTES))
            out[place : place + length] = found[start : start + length]
        self._at += count
        return count

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        for page, start, place, length in self._parts(len(data)):
            into = self._pages.setdefault(page, bytearray(_PAGE_BYTES))
            into[start : start + length] = data[place : place + length]
        self._at += len(data)
        self.size = max(self.size, self._at)
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        self.size = self._at if size is None else size
        return self.size

    def pieces(self) -> list[tuple[int, memoryview]]:
        """Offset and bytes of each page that was written, in order; what else lies in them is zero."""
        offsets = sorted(page * _PAGE_BYTES for page in self._pages if page * _PAGE_BYTES < self.size)
        return [(o, memoryview(self._pages[o // _PAGE_BYTES])[: min(_PAGE_BYTES, self.size - o)]) for o in offsets]

    def _parts(self, count: int) -> Iterator[tuple[int, int, int, int]]:
        """Of `count` bytes from here on: page, place in it, place among the bytes, and length."""
        done = 0
        while done < count:
            page, start = divmod(self._at + done, _PAGE_BYTES)
            length = min(count - done, _PAGE_BYTES - start)
            yield page, start, done, length
            done += length
