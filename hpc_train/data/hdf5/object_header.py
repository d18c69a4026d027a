"""Attributes as an object's header declares them, read past libhdf5, which believes what they declare.

Chapters IV.A.1.a and IV.A.2.m of the HDF5 File Format Specification; headers of version 1 alone, which is what h5py
writes unless told otherwise.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping

Read = Callable[[int, int], bytes]
"""So many bytes from an address, fewer at the end of the file."""

_PREFIX, _MESSAGE, _PLACE = struct.Struct("<BxHIIxxxx"), struct.Struct("<HHBxxx"), struct.Struct("<QQ")
_ATTRIBUTE, _TYPE, _STRING = struct.Struct("<BBHHH"), struct.Struct("<B3sI"), struct.Struct("<IQI")
_CONTINUATION, _ATTRIBUTE_KIND, _ATTRIBUTE_INFO = 0x10, 0x0C, 0x15
_SHARED = 2
_INTEGER, _FLOAT, _FIXED_STRING, _ENUM, _VARIABLE = 0, 1, 3, 8, 9
_PLAIN = (_INTEGER, _FLOAT, _FIXED_STRING, _ENUM)
_TEXT = 1
MAX_CHUNKS, MAX_HEADER_BYTES = 64, 1 << 20


def check_attributes(read: Read, address: int, names: Mapping[bytes, str], longest: int) -> list[str]:
    """Which of the attributes `names` the header at `address` has, once it is known that HDF5 may read them.

    Of strings of variable length HDF5 allocates and clears what they say to take before it looks for them.

    Raises:
        ValueError: One is no number and no text, declares a text of more than `longest` bytes, or cannot be looked at.
    """
    there = []
    for message in _attribute_messages(read, address):
        try:
            name, kind, data = _parts(message)
            if name in names:
                _check(kind, data, longest)
                there.append(names[name])
        except (struct.error, IndexError):
            raise ValueError("it has an attribute that ends too early") from None
    return there


def _attribute_messages(read: Read, address: int) -> Iterator[bytes]:
    prefix = read(address, _PREFIX.size)
    if len(prefix) < _PREFIX.size or prefix[0] != 1:
        raise ValueError("it has an object with a header of another kind")
    chunks, total = [(address + _PREFIX.size, _PREFIX.unpack(prefix)[3])], 0
    for at, size in chunks:  # to which their messages add
        total += size
        if total > MAX_HEADER_BYTES or len(chunks) > MAX_CHUNKS:
            raise ValueError("it has an object with a header too long")
        chunk, place = read(at, size), 0
        while place + _MESSAGE.size <= len(chunk):
            kind, length, flags = _MESSAGE.unpack_from(chunk, place)
            place += _MESSAGE.size
            body = chunk[place : place + length]
            place += length
            if kind == _CONTINUATION and len(body) >= _PLACE.size:
                chunks.append(_PLACE.unpack_from(body))
            elif kind == _ATTRIBUTE_INFO or (kind == _ATTRIBUTE_KIND and flags & _SHARED):
                raise ValueError("it has attributes that lie outside their object's header")
            elif kind == _ATTRIBUTE_KIND:
                yield body


def _parts(message: bytes) -> tuple[bytes, bytes, bytes]:
    """An attribute's name, datatype and data."""
    version, shared, *sizes = _ATTRIBUTE.unpack_from(message)
    if version not in (1, 2, 3) or (version > 1 and shared):
        raise ValueError("it has an attribute of another kind")
    place, parts = _ATTRIBUTE.size + (version == 3), []
    for size in sizes:
        parts.append(message[place : place + size])
        place += -(-size // 8) * 8 if version == 1 else size
    return parts[0].partition(b"\0")[0], parts[1], message[place:]


def _check(kind: bytes, data: bytes, longest: int) -> None:
    what, bits, _ = _TYPE.unpack_from(kind)
    if what & 15 in _PLAIN:
        return
    if what & 15 != _VARIABLE or bits[0] & 15 != _TEXT or _TYPE.unpack_from(kind, _TYPE.size)[2] != 1:
        raise ValueError("it has an attribute that is no number and no text")
    for at in range(0, len(data) - _STRING.size + 1, _STRING.size):
        length, _, _ = _STRING.unpack_from(data, at)
        if length > longest:
            raise ValueError(f"it has an attribute that declares a text of {length:,} bytes")
