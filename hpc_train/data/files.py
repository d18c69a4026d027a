"""DataFile: bytes and rows of one file, read past HDF5's lock, with retries where a file system falters."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import numpy as np

from hpc_train.data.mapping import Mapping

RETRY_WAITS_SECS = (0.1, 0.5, 2.0, 5.0, 15.0)
PASSING_ERRORS = frozenset(
    getattr(errno, name)
    for name in ("EIO", "ESTALE", "EAGAIN", "EINTR", "ETIMEDOUT", "EREMOTEIO", "ENOTCONN", "ESHUTDOWN", "EHOSTDOWN")
)
"""Errors after which a parallel file system may come back: they are retried."""

MAPPED_ROW_BYTES = 64 << 10
"""Shorter rows are copied from a memory map, since a system call each would cost more than the copy."""

T = TypeVar("T")


class ShortFileError(OSError):
    """The file ends before the bytes that it should have."""


class DataFile:
    """One file of known size. Threads may share it. `close` ends its use.

    Args:
        keep_open: Keep the descriptor between reads; else each read opens the file anew.
        random: Rows will be asked for at random, from more data than memory holds: read nothing ahead.
    """

    def __init__(self, path: str, keep_open: bool = True, random: bool = False) -> None:
        self.path = path
        self._keep_open, self._random = keep_open, random
        self._descriptor: int | None = None
        self._mapping: Mapping | None = None
        self._retired: list[int] = []
        self._failed: list[Mapping] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes descriptor and maps."""
        self._open_anew()
        for descriptor in self._retired:
            os.close(descriptor)
        self._retired = []
        for mapping in [*self._failed, *([self._mapping] if self._mapping else [])]:
            mapping.close()
        self._mapping, self._failed = None, []

    def read_into(self, offset: int, out: np.ndarray) -> None:
        """Fills `out` (C-contiguous) with the bytes from `offset` on.

        Raises:
            OSError: With errno and path, when retries did not help; ShortFileError where the file ends too early.
        """
        self._retried(lambda descriptor: _read_fully(descriptor, offset, out.reshape(-1).view(np.uint8).data))

    def rows_into(self, offset: int, row_bytes: int, rows: np.ndarray, out: np.ndarray) -> None:
        """Fills `out`, uint8 `[k, row_bytes]`, with rows numbered `rows` (int64 `[k]`) of those that begin at `offset`.

        Raises:
            OSError: As `read_into`.
        """
        if row_bytes < MAPPED_ROW_BYTES and self._copied_from_map(offset, row_bytes, rows, out):
            return
        for row, target in zip(rows.tolist(), out, strict=True):
            self.read_into(offset + row * row_bytes, target)

    def expect(self, offset: int, row_bytes: int, rows: np.ndarray) -> None:
        """Lets the kernel begin to fetch these rows, and does not wait."""
        with suppress(OSError), self._opened() as descriptor:
            for row in rows.tolist():
                os.posix_fadvise(descriptor, offset + row * row_bytes, row_bytes, os.POSIX_FADV_WILLNEED)

    def _copied_from_map(self, offset: int, row_bytes: int, rows: np.ndarray, out: np.ndarray) -> bool:
        try:
            mapping = self._mapped(offset + (int(rows.max()) + 1) * row_bytes)
        except OSError:
            return False  # a file system without memory maps, or a file that is gone: reading tells
        count = (len(mapping.data) - offset) // row_bytes
        table = mapping.data[offset : offset + count * row_bytes].reshape(count, row_bytes)
        np.take(table, rows, axis=0, out=out, mode="clip")
        if not mapping.failed:
            return True
        with self._lock:
            if self._mapping is mapping:
                self._failed.append(mapping)
                self._mapping = None
        return False

    def _mapped(self, length: int) -> Mapping:
        with self._lock:
            mapping = self._mapping
        if mapping is None:
            with self._opened() as descriptor:
                size = os.fstat(descriptor).st_size
                if size < length:
                    raise ShortFileError(errno.EIO, "too short", self.path)
                fresh = Mapping(descriptor, size, self._random)
            with self._lock:
                if self._mapping is None:
                    self._mapping = fresh
                else:
                    fresh.close()
                mapping = self._mapping
        return mapping

    def _retried(self, read: Callable[[int], T]) -> T:
        for wait in (*RETRY_WAITS_SECS, None):
            try:
                with self._opened() as descriptor:
                    return read(descriptor)
            except ShortFileError as error:
                raise ShortFileError(error.errno, error.strerror, self.path) from None
            except OSError as error:
                if wait is None or error.errno not in PASSING_ERRORS:
                    tries = f" ({len(RETRY_WAITS_SECS) + 1} tries)" if wait is None else ""
                    name = errno.errorcode.get(error.errno or 0, "?")
                    raise OSError(error.errno, f"{name}: {error.strerror}{tries}", self.path) from None
            self._open_anew()  # a stale handle is cured by opening the file anew
            time.sleep(wait)
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def _opened(self) -> Iterator[int]:
        if not self._keep_open:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                yield descriptor
            finally:
                os.close(descriptor)
            return
        with self._lock:
            if self._descriptor is None:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            descriptor = self._descriptor
        yield descriptor

    def _open_anew(self) -> None:
        """The next read opens the file again. Another thread may still be reading, so nothing is closed yet."""
        with self._lock:
            if self._descriptor is not None:
                self._retired.append(self._descriptor)
                self._descriptor = None


def _read_fully(descriptor: int, offset: int, out: memoryview) -> None:
    while len(out):
        count = os.preadv(descriptor, [out], offset)
        if count == 0:
            size = os.fstat(descriptor).st_size
            raise ShortFileError(errno.ENODATA, f"ends at byte {size}, before what is to be read; was it overwritten?")
        out, offset = out[count:], offset + count
