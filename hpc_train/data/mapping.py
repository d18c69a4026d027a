"""Memory maps of files whose read errors can be told: a failed page does not end the process.

Where the kernel cannot read a mapped page (an I/O error, a stale handle, a file cut short), the thread that touches
it gets SIGBUS, which ends the process without a word of which file. Here a handler puts a page of zeros in the place
of the failed one, and notes that the map has failed; whoever reads looks at that note afterwards, and reads the file
itself to learn the reason. The handler runs in the thread that touched the page, which was copying memory then and
held no lock. A SIGBUS anywhere else goes to whoever handled the signal before.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import threading
from typing import Any

import numpy as np

MADV_RANDOM = getattr(mmap, "MADV_RANDOM", 1)

_MAP_FIXED = 0x10
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


class Mapping:
    """The bytes of an open file, mapped for reading. Closing it ends the use of `data`.

    Attributes:
        data: uint8 `[bytes]`, read-only.
        failed: A page could not be read and holds zeros now: nothing read since the map was made can be relied on.
    """

    def __init__(self, descriptor: int, length: int, random: bool) -> None:
        """Maps `length` bytes of the file. `random`: nothing but what is touched is read ahead.

        Raises:
            OSError: The file cannot be mapped.
        """
        _install_handler()
        address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        self.failed = False
        self._address, self._length = address, length
        if random:
            _libc.madvise(address, length, MADV_RANDOM)
        self.data: np.ndarray = np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(address))
        self.data.flags.writeable = False
        with _lock:
            _mappings.append(self)

    def holds(self, address: int) -> bool:
        """Whether a fault at `address` is one of this map."""
        return bool(self._address <= address < self._address + self._length + mmap.PAGESIZE)

    def close(self) -> None:
        """Unmaps the file."""
        with _lock:
            if self in _mappings:
                _mappings.remove(self)
                del self.data
                _libc.munmap(self._address, self._length)


_mappings: list[Mapping] = []
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
    page = address // mmap.PAGESIZE * mmap.PAGESIZE
    for mapping in _mappings:
        if mapping.holds(address):
            mapping.failed = True
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
            _libc.mmap(page, mmap.PAGESIZE, mmap.PROT_READ, flags, -1, 0)
            return
    _libc.sigaction(signal.SIGBUS, ctypes.byref(_previous), None)
