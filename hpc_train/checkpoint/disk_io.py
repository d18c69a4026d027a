"""Writing that lasts: bytes forced to the disk, and passing errors of a file system waited out."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hpc_train.data.hdf5.data_file import PASSING_ERRORS, RETRY_WAITS_SECS, errno_of

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


def sync_to_disk(path: Path) -> None:
    """Waits until what was written to a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)


def write_pieces(path: Path, size: int, pieces: list[tuple[int, memoryview]], moved: Moved = idle) -> None:
    """Writes the file `path` of `size` bytes, each piece at its offset, and waits until all is on the disk.

    Raises:
        OSError: With errno and path.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    unsynced = 0
    try:
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
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)


MAX_WRITE_BYTES = 8 << 20
"""Written at once: between two writes others get their turn on the disk."""

MAX_UNSYNCED_BYTES = 256 << 20
"""Written between two waits for the disk: a slow disk is seen to move."""
