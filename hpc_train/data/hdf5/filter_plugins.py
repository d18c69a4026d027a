"""HDF5's filter plugins, called without HDF5: about twice as fast on two threads, since HDF5 has one lock for all.

HDF5 calls a plugin from one thread at a time, so only those are used here that are known to bear several and to decode
without calling HDF5 (https://docs.hdfgroup.org/documentation/hdf5/latest/_h5_p_l__u_g.html).
"""

from __future__ import annotations

import ctypes
import importlib
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

BLOSC, LZ4, BITSHUFFLE, ZSTD = 32001, 32004, 32008, 32015
IN_FILE_NAMES = {BLOSC: "blosc", LZ4: "lz4", BITSHUFFLE: "shuf", ZSTD: "zst"}
"""Plugins that are used, and what their libraries' names have in them as a rule."""

FRAME_HEADER_BYTES = 32

_BITSHUFFLE_CODECS = {2: "lz4", 3: "zstd"}
_SPARE_VALUES = 8
_REVERSE = 0x0100
_PLUGIN_TYPE_FILTER = 0
_CLASS_VERSION = 1

_c = ctypes.PyDLL(None)  # functions that take no time, so they are called without releasing Python's lock
_c.malloc.argtypes, _c.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
_c.free.argtypes, _c.free.restype = [ctypes.c_void_p], None


class _FilterClass(ctypes.Structure):
    """HDF5's H5Z_class2_t."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("id", ctypes.c_int),
        ("encoder_present", ctypes.c_uint),
        ("decoder_present", ctypes.c_uint),
        ("name", ctypes.c_char_p),
        ("can_apply", ctypes.c_void_p),
        ("set_local", ctypes.c_void_p),
        (
            "filter",
            ctypes.CFUNCTYPE(
                ctypes.c_size_t,  # the length of the output; 0: it failed
                ctypes.c_uint,  # flags
                ctypes.c_size_t,
                ctypes.POINTER(ctypes.c_uint),  # the values of the filter, and how many
                ctypes.c_size_t,  # the length of the input
                ctypes.POINTER(ctypes.c_size_t),  # the size of the buffer
                ctypes.POINTER(ctypes.c_void_p),  # the buffer, which the filter frees and replaces
            ),
        ),
    )


class Plugin:
    """The filter in the library at `path`.

    Raises:
        OSError: Not a library.
        AttributeError: Not an HDF5 plugin.
        ValueError: A plugin of another kind, or one that cannot decode.
    """

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        library.H5PLget_plugin_info.argtypes = library.H5PLget_plugin_type.argtypes = []
        library.H5PLget_plugin_info.restype = ctypes.POINTER(_FilterClass)
        if library.H5PLget_plugin_type() != _PLUGIN_TYPE_FILTER:
            raise ValueError("not a filter")
        filter_class = library.H5PLget_plugin_info().contents
        if filter_class.version != _CLASS_VERSION or not filter_class.decoder_present:
            raise ValueError("not a filter that decodes")
        self.id: int = filter_class.id
        self._filter = filter_class.filter
        self.blosc = getattr(library, "blosc_decompress_ctx", None) if self.id == BLOSC else None
        if self.blosc is not None:
            self.blosc.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
            self.blosc.restype = ctypes.c_int

    def undo(
        self, name: str, flags: int, values: Sequence[int], data: np.ndarray, size: int, out: np.ndarray | None
    ) -> np.ndarray:
        """The `size` bytes that the filter was given when it wrote `data`; `values` are its own."""
        buffer = ctypes.c_void_p(_c.malloc(max(data.size, 1)))
        if not buffer:
            raise MemoryError
        try:
            ctypes.memmove(buffer, data.ctypes.data, data.size)
            length = self._call(flags, values, data.size, buffer)
            if length != size:
                found = f"{length} bytes, not {size}" if 0 < length < 1 << 32 else "the stream is damaged"
                raise ValueError(f"{name}: {found}")
            whole = np.empty(size, np.uint8) if out is None else out
            ctypes.memmove(whole.ctypes.data, buffer, size)
            return whole
        finally:
            _c.free(buffer)

    def _call(self, flags: int, values: Sequence[int], length: int, buffer: ctypes.c_void_p) -> int:
        room = ctypes.c_size_t(length)
        padded = (ctypes.c_uint * (len(values) + _SPARE_VALUES))(*values)  # some filters read past the end
        arguments = (_REVERSE | flags, len(values), padded, length, ctypes.byref(room), ctypes.byref(buffer))
        return int(self._filter(*arguments))


class Plugins:
    """The plugins that were looked for so far; libraries stay loaded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[int, Plugin] = {}
        self._tried: set[Path] = set()

    def find(self, number: int) -> Plugin | None:
        """The plugin of filter `number`, which is loaded if need be; None where there is none."""
        with self._lock:
            if number not in self._found:
                for path in sorted(_libraries(), key=lambda path: _fit(path, number)):
                    if path not in self._tried:
                        self._tried.add(path)
                        with suppress(OSError, AttributeError, ValueError):
                            plugin = Plugin(path)
                            self._found.setdefault(plugin.id, plugin)
                    if number in self._found:
                        break
            return self._found.get(number)


plugins = Plugins()


def _fit(path: Path, number: int) -> tuple[bool, int, str]:
    """Sorts the library first that has the filter's name in its own, and little else."""
    return IN_FILE_NAMES[number] not in path.name.lower(), len(path.name), path.name


def _libraries() -> Iterator[Path]:
    for folder in plugin_folders():
        yield from (path for pattern in ("*.so*", "*.dylib") for path in folder.glob(pattern))


def plugin_folders() -> list[Path]:
    """Where plugins are looked for."""
    listed = [Path(folder) for folder in os.environ.get("HDF5_PLUGIN_PATH", "").split(os.pathsep) if folder]
    packaged = hdf5plugin_folder()
    return listed + ([packaged] if packaged else [])


def hdf5plugin_folder() -> Path | None:
    """The plugins of the package hdf5plugin; None where it is not installed."""
    try:
        return Path(importlib.import_module("hdf5plugin").PLUGIN_PATH)
    except ImportError:
        return None


# What follows checks the lengths in a frame's headers, on which its plugin relies without knowing where the frame ends.


def _is_blosc_frame(data: np.ndarray, size: int, values: Sequence[int]) -> bool:
    """Whether `data` is a whole frame of `size` decoded bytes."""
    return data.size >= 16 and struct.unpack_from("<IxxxxI", data.data, 4) == (size, data.size)


def _is_lz4_frame(data: np.ndarray, size: int, values: Sequence[int]) -> bool:
    if data.size < 12:
        return False
    whole, block = struct.unpack_from(">QI", data.data)
    return whole == size and block > 0 and _has_blocks(data, -(-size // block), 0)


def _is_bitshuffle_frame(data: np.ndarray, size: int, values: Sequence[int]) -> bool:
    if len(values) < 3 or values[2] == 0 or size % values[2]:
        return False
    if not bitshuffle_codec(values):
        return True
    if data.size < 12:
        return False
    whole, block = struct.unpack_from(">QI", data.data)
    elements, block = size // values[2], block // values[2]
    if whole != size or block == 0:
        return False
    blocks = elements // block + (elements % block >= 8)
    return _has_blocks(data, blocks, elements % 8 * values[2])


def _has_blocks(data: np.ndarray, blocks: int, rest: int) -> bool:
    """Whether `blocks` blocks, each after its length, and `rest` bytes make up `data` after 12 bytes of header."""
    end, view, length_at = 12, data.data, struct.Struct(">I").unpack_from
    for _ in range(blocks):
        if end + 4 > data.size:
            return False
        end += 4 + length_at(view, end)[0]
    return end + rest == data.size


def bitshuffle_codec(values: Sequence[int]) -> str | None:
    """The compressor behind bitshuffle, where there is one."""
    return _BITSHUFFLE_CODECS.get(values[4]) if len(values) > 4 else None


def _zstd_size(data: bytes) -> int | None:
    """What a zstd frame's header says that it decodes to (RFC 8878, 3.1.1.1)."""
    if len(data) < 6 or data[:4] != b"\x28\xb5\x2f\xfd":
        return None
    single, kind = data[4] >> 5 & 1, data[4] >> 6
    start = 5 + (not single) + (0, 1, 2, 4)[data[4] & 3]
    length = (single, 2, 4, 8)[kind]
    field = data[start : start + length]
    return int.from_bytes(field, "little") + (256 if length == 2 else 0) if length and len(field) == length else None


def _is_zstd_frame(data: np.ndarray, size: int, values: Sequence[int]) -> bool:
    return _zstd_size(data[:FRAME_HEADER_BYTES].tobytes()) == size


FRAME_SIZES: dict[int, Callable[[bytes], int | None]] = {
    BLOSC: lambda start: int.from_bytes(start[4:8], "little") if len(start) >= 16 else None,
    LZ4: lambda start: int.from_bytes(start[:8], "big") if len(start) >= 12 else None,
    BITSHUFFLE: lambda start: int.from_bytes(start[:8], "big") if len(start) >= 12 else None,
    ZSTD: _zstd_size,
}
"""What a frame's first FRAME_HEADER_BYTES say that it decodes to; its plugin allocates that."""

FRAME_CHECKS: dict[int, Callable[[np.ndarray, int, Sequence[int]], bool]] = {
    BLOSC: _is_blosc_frame,
    LZ4: _is_lz4_frame,
    BITSHUFFLE: _is_bitshuffle_frame,
    ZSTD: _is_zstd_frame,
}
