"""Decodes chunks of HDF5 datasets without HDF5, whose library lets one thread in at a time.

The decoders release Python's lock while they work, so threads that read chunks with os.pread decode them side by
side. Compressors that HDF5 does not bring along are called through its filter plugins (see filter_plugins).
"""

from __future__ import annotations

import ctypes
import importlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from hpc_train.data.hdf5 import filter_plugins

GZIP, SHUFFLE, FLETCHER32, SZIP, NBIT, SCALEOFFSET = 1, 2, 3, 4, 5, 6
BZIP2, LZF = 307, 32000

_NAMES = {
    GZIP: "gzip",
    SHUFFLE: "shuffle",
    FLETCHER32: "fletcher32",
    SZIP: "szip",
    NBIT: "nbit",
    SCALEOFFSET: "scaleoffset",
    305: "lzo",
    BZIP2: "bzip2",
    LZF: "lzf",
    filter_plugins.BLOSC: "blosc",
    32003: "snappy",
    filter_plugins.LZ4: "lz4",
    filter_plugins.BITSHUFFLE: "bitshuffle",
    32013: "zfp",
    filter_plugins.ZSTD: "zstd",
    32017: "sz",
    32018: "fcidecomp",
    32024: "sz3",
    32026: "blosc2",
    32028: "sperr",
}

GZIP_RATIO = 1032
"""What gzip inflates at most to (RFC 1951: 258 bytes from 2 bits)."""
_SAFE_BYTES = 128 << 20
"""What gzip may inflate to before anybody looks: it is slower, by some percent, where it has to stop in time."""
_PIECE_BYTES = 1 << 20

_CHECKSUM_BYTES = 4
_WORDS_PER_ROW = 1024
_BLOCK_ELEMENTS = 1 << 16

_Undo = Callable[[np.ndarray, int, "np.ndarray | None"], np.ndarray]
"""Undoes a filter: takes its output (uint8), the size of its input, and where to write that if it likes."""


@dataclass(frozen=True)
class Filter:
    """One stage of a dataset's filter pipeline, as the file describes it."""

    id: int
    flags: int
    values: tuple[int, ...]
    name: str

    def __str__(self) -> str:
        return _NAMES.get(self.id) or self.name or f"filter {self.id}"

    @property
    def keeps_size(self) -> bool:
        """Whether its output is as long as its input, but for a checksum."""
        if self.id == filter_plugins.BITSHUFFLE:
            return not filter_plugins.bitshuffle_codec(self.values)
        return self.id in (SHUFFLE, FLETCHER32)

    @property
    def grows(self) -> bool:
        """Whether HDF5 gives its output whatever size the chunk says."""
        return self.id in (GZIP, BZIP2, *filter_plugins.FRAME_SIZES) and not self.keeps_size


def filters_of(dataset: h5py.Dataset) -> tuple[Filter, ...]:
    """The dataset's filters, in the order in which they were applied on writing."""
    properties = dataset.id.get_create_plist()
    stages = [properties.get_filter(i) for i in range(properties.get_nfilters())]
    return tuple(
        Filter(number, flags, tuple(values), name.decode(errors="replace")) for number, flags, values, name in stages
    )


def name_of(filters: Sequence[Filter]) -> str:
    """What people call `filters`: the compressor, then what helps it; `"none"` for none."""
    return "+".join(str(stage) for stage in sorted(filters, key=lambda stage: stage.keeps_size)) or "none"


def why_not(filters: Sequence[Filter]) -> str | None:
    """Why a Decoder cannot undo `filters`, as a clause for an error message; None where it can."""
    for stage in filters:
        compressed = f"compressed with {stage} (HDF5 filter {stage.id}), "
        if stage.id == LZF and _lzf() is None:
            return compressed + "which this build of h5py keeps to itself"
        if stage.id == BZIP2 and bz2_module() is None:
            return compressed + "which needs a Python that was built with the module bz2"
        if stage.id in filter_plugins.IN_FILE_NAMES and filter_plugins.plugins.find(stage.id) is None:
            if filter_plugins.hdf5plugin_folder() is None:
                return compressed + "which needs the package hdf5plugin: pip install 'hpc_train[filters]'"
            return (
                compressed + "for which there is no plugin in " + " or ".join(map(str, filter_plugins.plugin_folders()))
            )
        if stage.id not in (GZIP, SHUFFLE, FLETCHER32, BZIP2, LZF, *filter_plugins.IN_FILE_NAMES):
            return compressed + "which only HDF5 itself can read here"
    compressors = [stage for stage in filters if not stage.keeps_size]
    if len(compressors) > 1:
        return f"compressed more than once ({name_of(compressors)}), which only HDF5 itself can read here"
    return None


class Decoder:
    """Undoes `filters` for chunks of elements of `itemsize` bytes. Several threads may use one at the same time.

    Raises:
        ValueError: `why_not(filters)` has a reason.
    """

    def __init__(self, filters: Sequence[Filter], itemsize: int) -> None:
        reason = why_not(filters)
        if reason:
            raise ValueError(reason)
        self._stages = [(1 << i, stage, _undo(stage, itemsize)) for i, stage in enumerate(filters)]

    def decode(self, raw: bytes | memoryview, filter_mask: int, out: np.ndarray) -> None:
        """Decodes one stored chunk, `raw`, into `out`: uint8 `[chunk_bytes]`, C-contiguous, filled completely.

        Args:
            filter_mask: The chunk's own: bit i means that it was written without the i-th filter.

        Raises:
            ValueError: The chunk is damaged; the message says what is wrong with it.
        """
        if out.dtype != np.uint8 or out.ndim != 1 or not (out.flags.c_contiguous and out.flags.writeable):
            raise TypeError("a chunk is decoded into a writable, contiguous uint8 array")
        data: np.ndarray = np.frombuffer(raw, np.uint8)
        stages = [stage for stage in self._stages if not filter_mask & stage[0]]
        for i in range(len(stages) - 1, -1, -1):
            _, stage, undo = stages[i]
            if data.size == 0:
                raise ValueError(f"{stage}: nothing is stored")
            if stage.keeps_size:
                size = data.size - _checksum_bytes(stage)
            else:
                size = out.size + sum(_checksum_bytes(before) for _, before, _ in stages[:i])
            data = undo(data, size, out if i == 0 and size == out.size else None)
        if data.size != out.size:
            raise ValueError(f"{data.size} bytes, not the {out.size} of a chunk")
        if data is not out:
            out[:] = data


def _checksum_bytes(stage: Filter) -> int:
    return _CHECKSUM_BYTES if stage.id == FLETCHER32 else 0


def _undo(stage: Filter, itemsize: int) -> _Undo:
    if stage.id == GZIP:
        return _gunzip
    if stage.id == FLETCHER32:
        return _verify_fletcher32
    if stage.id == SHUFFLE:
        width = stage.values[0] if stage.values else itemsize
        return lambda data, size, out: _unshuffle(data, width, out)
    if stage.id == BZIP2:
        return _unbzip2
    if stage.id == LZF:
        decompress = _lzf()
        return lambda data, size, out: _filled(
            "lzf", size, out, lambda whole: decompress(data.ctypes.data, data.size, whole.ctypes.data, size)
        )
    plugin = filter_plugins.plugins.find(stage.id)
    assert plugin is not None
    check = filter_plugins.FRAME_CHECKS.get(stage.id)

    def undo(data: np.ndarray, size: int, out: np.ndarray | None) -> np.ndarray:
        if check and not check(data, size, stage.values):
            raise ValueError(f"no whole {stage} frame of a chunk's size")
        blosc = plugin.blosc  # which takes no lock: the function that the plugin calls lets one thread in at a time
        if blosc is not None:
            return _filled("blosc", size, out, lambda whole: blosc(data.ctypes.data, whole.ctypes.data, size, 1))
        return plugin.undo(str(stage), stage.flags, stage.values, data, size, out)

    return undo


def _gunzip(data: np.ndarray, size: int, out: np.ndarray | None) -> np.ndarray:
    try:
        if data.size * GZIP_RATIO <= _SAFE_BYTES:
            whole: np.ndarray = np.frombuffer(zlib.decompress(data.data, bufsize=size), np.uint8)
        else:
            whole = np.empty(size, np.uint8) if out is None else out
            filled = 0
            for piece in inflated(data):
                if filled + piece.size > size:
                    raise ValueError(f"gzip: more than {size} bytes")
                whole[filled : filled + piece.size] = piece
                filled += piece.size
            whole = whole[:filled]
    except zlib.error as error:
        raise ValueError(f"gzip: {error}") from None
    return _of_size(whole, size, "gzip")


def inflated(data: np.ndarray) -> Iterator[np.ndarray]:
    """What gzip has packed into `data`, in pieces; zlib.error where it is damaged, ValueError where it is cut short."""
    stream, rest = zlib.decompressobj(), data.tobytes()
    while not stream.eof:
        piece = stream.decompress(rest, _PIECE_BYTES)
        if not piece and not stream.eof:
            raise ValueError("gzip: the stream is cut short")
        yield np.frombuffer(piece, np.uint8)
        rest = stream.unconsumed_tail


def _unbzip2(data: np.ndarray, size: int, out: np.ndarray | None) -> np.ndarray:
    """Python's own bzip2: the plugin never ends where a stream is cut short."""
    stream = bz2_module().BZ2Decompressor()
    try:
        whole: np.ndarray = np.frombuffer(stream.decompress(data.data, size + 1), np.uint8)
    except (OSError, ValueError) as error:
        raise ValueError(f"bzip2: {error}") from None
    if not stream.eof and whole.size <= size:
        raise ValueError("bzip2: the stream is cut short")
    return _of_size(whole, size, "bzip2")


def bz2_module() -> Any:
    """Python's bz2; None where Python was built without it."""
    try:
        return importlib.import_module("bz2")
    except ImportError:
        return None


def _of_size(data: np.ndarray, size: int, name: str) -> np.ndarray:
    if data.size != size:
        raise ValueError(f"{name}: {data.size} bytes, not {size}")
    return data


def _unshuffle(data: np.ndarray, width: int, out: np.ndarray | None) -> np.ndarray:
    """Puts the bytes of each element of `width` bytes together again; a rest stays where it is."""
    count = data.size // width if width else 0
    if width < 2 or count < 2:
        return data
    if out is None:
        out = np.empty(data.size, np.uint8)
    end = count * width
    out[end:] = data[end:]
    planes = data[:end].reshape(width, count)
    if width in (2, 4):
        for start in range(0, count, _BLOCK_ELEMENTS):
            stop = min(start + _BLOCK_ELEMENTS, count)
            _join(planes[:, start:stop], out[start * width : stop * width])
    elif width < count:
        elements = out[:end].reshape(count, width)
        for i, plane in enumerate(planes):
            elements[:, i] = plane
    else:
        out[:end].reshape(count, width)[:] = planes.T
    return out


def _join(planes: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Interleaves 2^n planes of bytes by arithmetic on whole elements: for narrow ones faster than moving bytes."""
    if len(planes) == 1:
        return planes.ravel()
    half = len(planes) // 2
    low, high = _join(planes[:half]), _join(planes[half:])
    wide = f"<u{2 * low.itemsize}"
    joined: np.ndarray = np.empty(low.size, wide) if out is None else out.view(wide)
    np.copyto(joined, high)
    joined <<= 8 * low.itemsize
    joined |= low
    return joined


def _verify_fletcher32(data: np.ndarray, size: int, out: np.ndarray | None) -> np.ndarray:
    if size < 0:
        raise ValueError("fletcher32: too short for a checksum")
    stored = int.from_bytes(data[size:].tobytes(), "little")
    checksum, swapped = _fletcher32(data[:size])
    if stored not in (checksum, swapped):
        raise ValueError(f"fletcher32: checksum {checksum:08x}, but {stored:08x} is stored")
    return data[:size]


def _fletcher32(data: np.ndarray) -> tuple[int, int]:
    """HDF5's Fletcher checksum of `data`, and as HDF5 before 1.6.3 wrote it, with the bytes of both halves swapped.

    It sums big-endian words modulo 2^16 - 1. There, swapping a word's bytes is multiplying it by 2^8, so the words
    are summed as little-endian ones, as rows and columns of a matrix, and the sums are swapped.
    """
    words: np.ndarray = data[: data.size // 2 * 2].view("<u2")
    count = words.size
    rows, rest = divmod(count, _WORDS_PER_ROW)
    matrix = words[: count - rest].reshape(rows, _WORDS_PER_ROW)
    by_row, by_column = (matrix.sum(axis=axis, dtype=np.uint32 if rows <= 1 << 16 else np.uint64) for axis in (1, 0))
    last = words[count - rest :].astype(np.uint64)
    first = int(by_row.sum()) + int(last.sum())
    weighted = _WORDS_PER_ROW * _weighted_sum(by_row % 0xFFFF) + _weighted_sum(by_column)
    weighted += rows * _WORDS_PER_ROW * int(last.sum()) + _weighted_sum(last)
    second = count * first - weighted
    if data.size % 2:
        first += int(data[-1])
        second += first
    low, high = (0, 0) if first == 0 else ((first - 1) % 0xFFFF + 1, (second - 1) % 0xFFFF + 1)
    return _swap(high) << 16 | _swap(low), high << 16 | low


def _weighted_sum(sums: np.ndarray) -> int:
    """The sum of i * sums[i]."""
    return int((np.arange(sums.size, dtype=np.uint64) * sums).sum())


def _swap(word: int) -> int:
    return (word & 0xFF) << 8 | word >> 8


def _filled(name: str, size: int, out: np.ndarray | None, decompress: Callable[[np.ndarray], int]) -> np.ndarray:
    """`out`, or new memory, with the `size` bytes that `decompress` fills it with; it returns how many it has."""
    whole = np.empty(size, np.uint8) if out is None else out
    length = decompress(whole)
    if length != size:
        raise ValueError(f"{name}: {f'{length} bytes, not {size}' if length > 0 else 'the stream is damaged'}")
    return whole


def _lzf() -> Any:
    """h5py's own lzf_decompress; None where it does not export it."""
    try:
        function = ctypes.CDLL(h5py.h5z.__file__).lzf_decompress
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_uint]
    function.restype = ctypes.c_uint
    return function
