"""DataFile: the bytes of one file, read past HDF5's lock, with retries where a file system falters."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import numpy as np

from hpc_train.files import open_regular

RETRY_WAITS_SECS = (0.1, 0.5, 2.0, 5.0, 15.0)
PASSING_ERRORS = frozenset(
    getattr(errno, name)
    for name in ("EIO", "ESTALE", "EAGAIN", "EINTR", "ETIMEDOUT", "EREMOTEIO", "ENOTCONN", "ESHUTDOWN", "EHOSTDOWN")
)
"""Errors after which a parallel file system may come back: they are retried."""

HDF5_ERRORS = (OSError, KeyError, ValueError, RuntimeError, IndexError, OverflowError, TypeError, MemoryError)
"""What h5py raises where a file cannot be read or is damaged."""

T = TypeVar("T")


def errno_of(error: BaseException) -> int | None:
    """The system's error number; h5py has it in its text alone, where a read failed."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    match = re.search(r"errno = (\d+)", str(error))
    return int(match[1]) if match else None


class ShortFileError(OSError):
    """The file ends before the bytes that it should have."""


class DataFile:
    """One file of known size. Threads may share it. `close` ends its use.

    Args:
        keep_open: Keep the descriptor between reads; else each read opens the file anew.
    """

    def __init__(self, path: str, keep_open: bool = True) -> None:
        self.path = path
        self._keep_open = keep_open
        self._descriptor: int | None = None
        self._retired: list[int] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes all descriptors."""
        self._open_anew()
        for descriptor in self._retired:
            os.close(descriptor)
        self._retired = []

    def use_copy(self, descriptor: int) -> None:
        """Reads from an open file of the same content from now on; from the file itself again where that fails."""
        own = os.dup(descriptor)
        with self._lock:
            if self._descriptor is not None:
                self._retired.append(self._descriptor)
            self._descriptor, self._keep_open = own, True

    def read_into(self, offset: int, out: np.ndarray) -> None:
        """Fills `out` (C-contiguous) with the bytes from `offset` on.

        Raises:
            OSError: With errno and path, when retries did not help; ShortFileError where the file ends too early.
        """

        def read() -> None:
            with self.opened() as descriptor:
                _read_fully(descriptor, offset, out.reshape(-1).view(np.uint8).data)

        self.retried(read)

    def expect(self, offset: int, length: int) -> None:
        """Lets the kernel begin to fetch these bytes, and does not wait."""
        with suppress(OSError), self.opened() as descriptor:
            os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_WILLNEED)

    def retried(self, read: Callable[[], T]) -> T:
        """What `read` gives, which reads the file by a descriptor or through the HDF5 library.

        Raises:
            OSError: As `read_into`.
        """
        for wait in (*RETRY_WAITS_SECS, None):
            try:
                return read()
            except ShortFileError as error:
                raise ShortFileError(error.errno, error.strerror, self.path) from None
            except HDF5_ERRORS as error:
                number = errno_of(error)
                if number is None:
                    raise OSError(f"{self.path}: cannot be read: {error}") from None
                if wait is None or number not in PASSING_ERRORS:
                    tries = f" ({len(RETRY_WAITS_SECS) + 1} tries)" if wait is None else ""
                    name = errno.errorcode.get(number, "?")
                    raise OSError(number, f"{name}: {os.strerror(number)}{tries}", self.path) from None
            self._open_anew()  # a stale handle is cured by opening the file anew
            time.sleep(wait)
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor of the file, open for the duration of the block."""
        if not self._keep_open:
            descriptor = open_regular(self.path, follow=True)
            try:
                yield descriptor
            finally:
                os.close(descriptor)
            return
        with self._lock:
            if self._descriptor is None:
                self._descriptor = open_regular(self.path, follow=True)
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
