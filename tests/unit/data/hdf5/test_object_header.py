"""Headers of HDF5 objects as libhdf5 never writes them; sound ones are in test_heap_file.py."""

from __future__ import annotations

import struct

import pytest

from hpc_train.data.hdf5.object_header import MAX_CHUNKS, MAX_HEADER_BYTES, check_attributes

ATTRIBUTE, CONTINUATION, INFO = 0x0C, 0x10, 0x15


def header(*messages: bytes, version: int = 1, size: int | None = None) -> bytes:
    body = b"".join(messages)
    prefix = struct.pack("<BxHII4x", version, len(messages), 1, len(body) if size is None else size)
    return prefix + body


def message(kind: int, body: bytes, flags: int = 0, length: int | None = None) -> bytes:
    return struct.pack("<HHB3x", kind, len(body) if length is None else length, flags) + body


def number(version: int = 3, flags: int = 0, name: bytes = b"a\0") -> bytes:
    """An attribute of 8 bytes."""
    kind, space = struct.pack("<B3sI", 0x10, b"", 8) + struct.pack("<HH", 0, 64), struct.pack("<BBB5x", 1, 0, 0)
    parts = [name, kind, space]
    start = struct.pack("<BBHHH", version, flags, *map(len, parts)) + (b"\0" if version == 3 else b"")
    return start + b"".join(p.ljust(-(-len(p) // 8) * 8, b"\0") if version == 1 else p for p in parts) + bytes(8)


def further(at: int, size: int) -> bytes:
    return message(CONTINUATION, struct.pack("<QQ", at, size))


def there(data: bytes) -> list[str]:
    return check_attributes(lambda at, size: data[at : at + size], 0, {b"a": "a", b"b": "b"}, 100)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_attributes_are_found_in_all_pieces(version: int) -> None:
    second = message(0, bytes(8)) + message(ATTRIBUTE, number(version, name=b"b\0"))
    first = [message(ATTRIBUTE, number(version)), message(ATTRIBUTE, number(version, name=b"other\0"))]
    at = len(header(*first, further(0, 0)))
    assert there(header(*first, further(at, len(second))) + second) == ["a", "b"]
    assert there(header(*first)) == ["a"]
    assert there(header()) == []


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        (b"", "header of another kind"),
        (header(version=2), "header of another kind"),
        (b"OHDR\x02" + bytes(40), "header of another kind"),
        (header(size=MAX_HEADER_BYTES + 1), "too long"),
        (header(further(16, 24)), "too long"),  # itself, for ever
        (header(*[further(1 << 30, 0)] * MAX_CHUNKS), "too long"),
        (header(further(16, 1 << 40)), "too long"),
        (header(message(ATTRIBUTE, number(), flags=2)), "outside their object's header"),
        (header(message(INFO, bytes(18))), "outside their object's header"),
        (header(message(ATTRIBUTE, number(version=4))), "an attribute of another kind"),
        (header(message(ATTRIBUTE, number(flags=1))), "an attribute of another kind"),
        (header(message(ATTRIBUTE, b"\3")), "ends too early"),
        (header(message(ATTRIBUTE, number()[:14])), "ends too early"),
        (header(message(ATTRIBUTE, number(), length=12)), "ends too early"),
    ],
)
def test_a_header_that_hdf5_would_not_write_is_refused(data: bytes, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        there(data)


def test_bytes_after_the_last_message_are_nothing() -> None:
    assert there(header(message(ATTRIBUTE, number()), bytes(7))) == ["a"]
