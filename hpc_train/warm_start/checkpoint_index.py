"""The index of a checkpoint of TensorFlow, looked through before TensorFlow is given it. Pure.

TensorFlow compares what it reads with digests; but where an index has what no TensorFlow writes, and its digests are
right, TensorFlow ends the process. An index is a table like LevelDB's: blocks of entries, a block that says where these
are, and a footer that says where that is. The first entry is about the whole, each other one about a variable or a
slice of one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

MAX_INDEX_BYTES = 256 << 20
"""Of a million variables it has 30 MB."""

_MAGIC = bytes.fromhex("57fb808b247547db")
_FOOTER_BYTES = 48
_PLAIN = 0
"""What follows a block that is not compressed, as TensorFlow writes all since 1.2."""
_TYPES = range(1, 100)
"""Those of TensorFlow's DataType that are of values, not of references to them."""
_SLICE, _END = b"\0", b"\0\1"
"""Around a variable's name in that of a slice of it; the slice's place follows."""
_MAX_RANK, _MAX_SHIFT = 254, 63


def check_index(index: bytes) -> None:
    """Checks that each entry is one that TensorFlow can write.

    Raises:
        ValueError: One is not.
    """
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import tensor_bundle_pb2

    try:
        (first, about), *rest = _entries(index)
        shards = tensor_bundle_pb2.BundleHeaderProto.FromString(about).num_shards
        entries = {name: tensor_bundle_pb2.BundleEntryProto.FromString(content) for name, content in rest}
    except (DecodeError, IndexError):
        raise ValueError("an entry cannot be read") from None
    names = [first, *(name for name, _ in rest)]
    if first != b"" or any(name >= later for name, later in pairwise(names)):
        raise ValueError("entries are not in their order")
    types: dict[bytes, set[int]] = defaultdict(set)
    for name, entry in entries.items():
        types[name.partition(_END)[0]].add(entry.dtype)
    for name, entry in entries.items():
        if not _is_sound(entry, shards) or (entry.slices and types[_SLICE + name] != {entry.dtype}):
            raise ValueError(f"the entry of {name!r} is none of TensorFlow's")


def _is_sound(entry: Any, shards: int) -> bool:
    """Whether its numbers are ones that TensorFlow takes for granted."""
    sizes = [dim.size for dim in entry.shape.dim]
    if entry.shape.unknown_rank or len(sizes) > _MAX_RANK or any(size < 0 for size in sizes):
        return False
    slices = [[(e.start, e.length if e.HasField("length") else None) for e in part.extent] for part in entry.slices]
    return (
        math.prod(size or 1 for size in sizes) < 1 << 60
        and entry.dtype in _TYPES
        and 0 <= entry.shard_id < shards
        and min(entry.offset, entry.size) >= 0
        and all(_is_within(extents, sizes) for extents in slices)
        and len(set(map(tuple, slices))) == len(slices)
    )


def _is_within(extents: list[tuple[int, int | None]], sizes: list[int]) -> bool:
    """Whether a slice, given by starts and lengths, is one of a variable of these sizes; None: all of a dimension."""
    return len(extents) == len(sizes) and all(
        start == 0 if length is None else 0 <= start < start + length <= size
        for (start, length), size in zip(extents, sizes, strict=True)
    )


def _entries(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Names and contents, in their order."""
    if len(table) < _FOOTER_BYTES or not table.endswith(_MAGIC):
        raise ValueError("it is no table")
    (_, _, *where), _ = _numbers(table, len(table) - _FOOTER_BYTES, 4)
    end = 0
    for _, content in _block(table, *where):
        (offset, size), _ = _numbers(content, 0, 2)
        if offset < end:  # each block once, so that no more is read than the file has
            raise ValueError("blocks overlap")
        end = offset + size
        yield from _block(table, offset, size)


def _block(table: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a block, whose names leave out what they begin with in common with the one before."""
    block = table[offset : offset + size]
    marks = 4 * (int.from_bytes(block[-4:], "little") + 1)
    if len(block) < size or marks > size or table[offset + size] != _PLAIN:
        raise ValueError("a block is cut short, or compressed")
    name, at, starts = b"", 0, set()
    while at < size - marks:
        starts.add(at)
        (shared, own, length), at = _numbers(block, at, 3)
        name, content = name[:shared] + block[at : at + own], block[at + own : at + own + length]
        at += own + length
        if at > size - marks:
            raise ValueError("an entry is cut short")
        yield name, content
    restarts = {int.from_bytes(block[place : place + 4], "little") for place in range(size - marks, size - 4, 4)}
    if not restarts <= starts | {0}:
        raise ValueError("an entry begins within another")


def _numbers(data: bytes, at: int, count: int) -> tuple[list[int], int]:
    """So many numbers from `at` on, of 7 bits a byte, and where they end."""
    found = []
    for _ in range(count):
        number = shift = 0
        while data[at] & 0x80:
            number |= (data[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if shift > _MAX_SHIFT:
                raise ValueError("a number is too long")
        found.append(number | data[at] << shift)
        at += 1
    return found, at
