"""A copy of one shard in a file without a name, which the kernel frees with the last process that has it open."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from hpc_train.files import nameless, open_regular

PIECE_BYTES = 4 << 20


class ChangedError(OSError):
    """The shard is not what it was when the job began, or changed while it was copied."""


class StoppedError(Exception):
    """The copy is not wanted any more."""


def copy_of(path: str, size: int, folder: Path, is_stopped: Callable[[], bool]) -> int:
    """A descriptor of a copy of the shard `path` of `size` bytes, in `folder`; read back and compared by SHA-256.

    Raises:
        ChangedError: The shard changed. StoppedError: `is_stopped` was true.
        OSError: It cannot be read, or the copy cannot be written or read, as on a full disk.
    """
    source = open_regular(path, follow=True)
    try:
        target = nameless(folder)
        try:
            before = _stamp(os.fstat(source))
            if before[0] != size:
                raise ChangedError(f"has {before[0]} bytes, and had {size} when the job began")
            written = _digest(source, size, is_stopped, target)
            if _stamp(os.fstat(source)) != before or _stamp(Path(path).stat()) != before:
                raise ChangedError("changed while it was copied")
            if _digest(target, size, is_stopped) != written:
                raise OSError("the copy has other bytes than were written to it")
        except BaseException:
            os.close(target)
            raise
        return target
    finally:
        os.close(source)


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino


def _digest(descriptor: int, size: int, is_stopped: Callable[[], bool], target: int | None = None) -> bytes:
    """SHA-256 of a file's first `size` bytes, which are written to `target`."""
    digest, piece, place = hashlib.sha256(), memoryview(bytearray(PIECE_BYTES)), 0
    while place < size:
        if is_stopped():
            raise StoppedError
        count = os.preadv(descriptor, [piece[: min(PIECE_BYTES, size - place)]], place)
        if count == 0:
            raise ChangedError(f"ends at byte {place} of {size}")
        digest.update(piece[:count])
        done = 0
        while target is not None and done < count:
            done += os.pwrite(target, piece[done:count], place + done)
        place += count
    return digest.digest()
