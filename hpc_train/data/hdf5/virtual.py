"""What a virtual dataset is made of as its file declares it, looked at before libhdf5 does, which believes it.

libhdf5 1.14 clears as many numbers on its stack as a selection's rank says (H5S__hyper_deserialize). Chapters IV.A.2.i
and VIII.A of the HDF5 File Format Specification.
"""

from __future__ import annotations

import struct

import h5py

from hpc_train.data.hdf5.global_heap import Read, objects_of
from hpc_train.data.hdf5.object_header import messages_of

_LAYOUT, _SHARED, _VIRTUAL = 0x08, 2, 3
_PLACE = struct.Struct("<QI")
_NONE, _BLOCKS, _ALL = 0, 2, 3  # points are none that HDF5 writes here
_ENTRIES_AT = 9
MAX_RANK = 32


def check_virtual(read: Read, address: int, file_bytes: int) -> None:
    """Checks the object at `address`, which is nothing, or anything: only virtual datasets are looked at further.

    Raises:
        ValueError: It has no header, or its list of sources is none that HDF5 may read.
    """
    for kind, flags, body in messages_of(read, address):
        if kind != _LAYOUT:
            continue
        if flags & _SHARED:
            raise ValueError("its layout lies outside its header")
        if body[:1] >= b"\3" and body[1:2] == bytes([_VIRTUAL]):
            try:
                heap, wanted = _PLACE.unpack_from(body, 2)
                if heap != 2**64 - 1:  # it has no sources
                    _check_sources(_object(read, heap, wanted, file_bytes))
            except (struct.error, IndexError, ValueError):
                raise ValueError("its list of sources is damaged") from None


def check_link(group: h5py.Group, name: str | bytes, read: Read, file_bytes: int) -> None:
    """Checks what `group` has as `name`, by a hard link, before HDF5 opens it; `read` and `file_bytes` of its file.

    Raises:
        ValueError: As `check_virtual`; or the file's addresses are not 8 bytes long.
    """
    if group.file.id.get_create_plist().get_sizes() != (8, 8):
        raise ValueError("it is HDF5 of another kind, with addresses that are not 8 bytes long")
    base = int(group.file.userblock_size)
    address = group.id.links.get_info(name if isinstance(name, bytes) else name.encode()).u
    check_virtual(lambda at, length: read(base + at, length), address, file_bytes - base)


def _object(read: Read, heap: int, wanted: int, file_bytes: int) -> bytes:
    found = {number: (at, size) for number, at, size in objects_of(read, heap, file_bytes)}
    if wanted not in found:
        raise ValueError
    return read(*found[wanted])


def _check_sources(block: bytes) -> None:
    if block[0]:
        raise ValueError
    place = _ENTRIES_AT
    for _ in range(int.from_bytes(block[1:_ENTRIES_AT], "little")):  # each is some bytes long, and the block ends
        for _ in ("file", "dataset"):
            place = block.index(b"\0", place) + 1
        for _ in ("source", "virtual"):
            place = _end_of_selection(block, place)


def _end_of_selection(block: bytes, place: int) -> int:
    """Where the selection at `place` ends. ValueError: it is of more dimensions than there are, or of another kind."""
    kind, version = struct.unpack_from("<II", block, place)
    place += 8
    if kind in (_NONE, _ALL):
        return place + 8
    number = 4  # bytes of one
    if (kind, version) == (_BLOCKS, 3):
        regular, number = block[place] & 1, block[place + 1]
        place += 2
    elif (kind, version) == (_BLOCKS, 2):
        regular, number = 1, 8
        place += 5
    elif (kind, version) == (_BLOCKS, 1):
        regular = 0
        place += 8
    else:
        raise ValueError
    (rank,) = struct.unpack_from("<I", block, place)
    place += 4
    if not 0 < rank <= MAX_RANK or number not in (2, 4, 8):
        raise ValueError
    if regular:
        place += 4 * rank * number
    else:
        count = int.from_bytes(block[place : place + number], "little")
        place += number + count * 2 * rank * number
    if place > len(block):
        raise ValueError
    return place
