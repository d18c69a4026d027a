"""An object's header and its attributes, read past libhdf5, which believes what they declare.

Chapters IV.A.1 and IV.A.2.m of the HDF5 File Format Specification. Attributes are read of headers of version 1 alone,
which is what h5py writes unless told otherwise.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from hpc_train.data.hdf5.global_heap import Read

_PREFIX, _MESSAGE, _PLACE = struct.Struct("<BxHIIxxxx"), struct.Struct("<HHBxxx"), struct.Struct("<QQ")
_ATTRIBUTE, _TYPE, _STRING = struct.Struct("<BBHHH"), struct.Struct("<B3sI"), struct.Struct("<IQI")
_NEW_SIGNATURE, _LONGEST_PREFIX = b"OHDR\2", 34
_NEW_MESSAGE, _TRACKED_MESSAGE = struct.Struct("<BHB"), struct.Struct("<BHBxx")
_TRACKED, _PHASES, _TIMES = 0x04, 0x10, 0x20
"""Flags of a header of version 2: what else it has."""
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
    if read(address, 1) != b"\1":
        raise ValueError("it has an object with a header of another kind")
    for message_kind, flags, message in messages_of(read, address):
        if message_kind == _ATTRIBUTE_INFO or (message_kind == _ATTRIBUTE_KIND and flags & _SHARED):
            raise ValueError("it has attributes that lie outside their object's header")
        if message_kind != _ATTRIBUTE_KIND:
            continue
        try:
            name, kind, data = _parts(message)
            if name in names:
                _check(kind, data, longest)
                there.append(names[name])
        except (struct.error, IndexError):
            raise ValueError("it has an attribute that ends too early") from None
    return there


def messages_of(read: Read, address: int) -> Iterator[tuple[int, int, bytes]]:
    """The messages of the header at `address`, of either version: kind, flags and body of each.

    Raises:
        ValueError: There is no header, or its pieces are more than any has.
    """
    prefix = read(address, _LONGEST_PREFIX)
    if prefix[:1] == b"\1" and len(prefix) >= _PREFIX.size:
        is_new, message = False, _MESSAGE
        chunks = [(address + _PREFIX.size, _PREFIX.unpack_from(prefix)[3])]
    elif prefix[:5] == _NEW_SIGNATURE and len(prefix) == _LONGEST_PREFIX:
        is_new, flags = True, prefix[5]
        message = _TRACKED_MESSAGE if flags & _TRACKED else _NEW_MESSAGE
        place, width = 6 + (16 if flags & _TIMES else 0) + (4 if flags & _PHASES else 0), 1 << (flags & 3)
        chunks = [(address + place + width, int.from_bytes(prefix[place : place + width], "little"))]
    else:
        raise ValueError("it has an object with a header of another kind")
    total = 0
    for at, size in chunks:  # to which their messages add
        total += size
        if total > MAX_HEADER_BYTES or len(chunks) > MAX_CHUNKS:
            raise ValueError("it has an object with a header too long")
        chunk, place = read(at, size), 0
        while place + message.size <= len(chunk):
            kind, length, flags = message.unpack_from(chunk, place)
            place += message.size
            body = chunk[place : place + length]
            place += length
            if kind == _CONTINUATION and len(body) >= _PLACE.size:
                further, bytes_there = _PLACE.unpack_from(body)
                chunks.append((further + 4, max(0, bytes_there - 8)) if is_new else (further, bytes_there))
            else:
                yield kind, flags, body


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
