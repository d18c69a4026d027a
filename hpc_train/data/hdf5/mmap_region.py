"""Memory maps of files whose read errors can be reported: a failed page does not end the process.

Where the kernel cannot read a mapped page (an I/O error, a stale handle, a file cut short), the thread that touches
it gets SIGBUS, which ends the process without naming the file. Here a handler puts a page of zeros in the place
of the failed one, and notes that the region has failed; whoever reads looks at that note afterwards, and reads the
files themselves to learn the reason. The handler runs in the thread that touched the page, which was copying memory
then and held no lock. A SIGBUS anywhere else goes to whoever handled the signal before.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import threading
from typing import Any

import numpy as np

ALIGNMENT = 2 << 20
"""Regions begin at a multiple of it, a huge page's size."""

_MAP_FIXED, _MAP_NORESERVE, _PROT_NONE = 0x10, 0x4000, 0
_SA_SIGINFO, _SA_NODEFER = 4, 0x40000000
_SI_ADDR_OFFSET = 16

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Sigaction(ctypes.Structure):
    """`struct sigaction` of Linux's C libraries."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * (1024 // (8 * ctypes.sizeof(ctypes.c_ulong)))),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class Region:
    """Address space for parts of files, mapped side by side for reading. Closing it ends the use of `data`.

    Attributes:
        address, length: In memory.
        data: uint8 `[length]`, read-only. To touch what no file has been put into is an error of the program.
        failed: A page could not be read and holds zeros now: nothing read since the region was made can be relied on.
    """

    def __init__(self, length: int) -> None:
        """Reserves addresses, which takes no memory.

        Raises:
            OSError: There are not so many.
        """
        _install_handler()
        self.failed = False
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._reserved = _map(None, length + ALIGNMENT, _PROT_NONE, flags, -1, 0), length + ALIGNMENT
        self.address, self.length = -(-self._reserved[0] // ALIGNMENT) * ALIGNMENT, length
        self.data: np.ndarray = np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(self.address))
        self.data.flags.writeable = False
        with _lock:
            _regions.append(self)

    def put(self, place: int, descriptor: int, offset: int, length: int, random: bool) -> None:
        """Maps `length` bytes from `offset` of an open file to `place`; both are multiples of the page size.

        Args:
            random: Nothing but what is touched is to be read ahead.

        Raises:
            OSError: The file cannot be mapped.
        """
        address = _map(self.address + place, length, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, descriptor, offset)
        if random:
            _libc.madvise(address, length, mmap.MADV_RANDOM)

    def close(self) -> None:
        """Unmaps all."""
        with _lock:
            if self in _regions:
                _regions.remove(self)
                del self.data
                _libc.munmap(*self._reserved)


def _map(address: int | None, length: int, protection: int, flags: int, descriptor: int, offset: int) -> int:
    found: int | None = _libc.mmap(address, length, protection, flags, descriptor, offset)
    if found is None or found == ctypes.c_void_p(-1).value:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return found


_regions: list[Region] = []
_lock = threading.Lock()
_previous = _Sigaction()
_installed: Any = None


def _install_handler() -> None:
    """Once a process; later handlers of SIGBUS would replace it, as any does."""
    global _installed
    with _lock:
        if _installed is None:
            _installed = _Handler(_on_sigbus)
            action = _Sigaction(ctypes.cast(_installed, ctypes.c_void_p).value, flags=_SA_SIGINFO | _SA_NODEFER)
            if _libc.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(_previous)) != 0:
                raise OSError(ctypes.get_errno(), "SIGBUS cannot be handled")


def _on_sigbus(number: int, info: int, context: int) -> None:
    address = ctypes.c_uint64.from_address(info + _SI_ADDR_OFFSET).value
    for region in _regions:
        if region.address <= address < region.address + region.length:
            region.failed = True
            page = address // mmap.PAGESIZE * mmap.PAGESIZE
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
            _libc.mmap(page, mmap.PAGESIZE, mmap.PROT_READ, flags, -1, 0)
            return
    _libc.sigaction(signal.SIGBUS, ctypes.byref(_previous), None)
