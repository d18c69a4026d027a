"""HeapFile: HDF5 reads the strings of heaps that end, and is kept from those in which libhdf5 stays for ever."""

from __future__ import annotations

import struct
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpc_train.data.hdf5.heap_file import HeapFile

LENGTHS = [1, 100, 3000, 4056, 4060, 4064, 4072, 9000]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for number in range(40):
            file.attrs[str(number)] = "x" * LENGTHS[number % len(LENGTHS)]
        file["values"] = np.frombuffer(b"GCOL\x02 and other bytes ", np.uint8)
    return path


def heaps(data: bytes) -> list[int]:
    return [at for at in range(len(data)) if data[at : at + 5] == b"GCOL\x01"]


def test_sound_heaps_are_read(written: Path) -> None:
    with HeapFile(written) as held, h5py.File(held, "r") as file:
        assert [len(file.attrs[str(n)]) for n in range(40)] == [LENGTHS[n % len(LENGTHS)] for n in range(40)]
        assert file["values"][()].tobytes() == b"GCOL\x02 and other bytes "


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("free", 0),  # for ever in libhdf5 1.14.6
        ("free", 8),
        ("free", 1 << 63),
        ("heap", 0),
        ("heap", 1 << 40),
        ("heap", (1 << 64) - 1),
        ("object", (1 << 64) - 1),
        ("object", 4096),
    ],
)
def test_a_heap_that_is_none_is_refused(written: Path, change: str, value: int) -> None:
    data = bytearray(written.read_bytes())
    for heap in heaps(bytes(data)):
        place, end = heap + 16, heap + struct.unpack_from("<Q", data, heap + 8)[0]
        while place + 16 <= end and struct.unpack_from("<H", data, place)[0]:
            place += 16 + -(-struct.unpack_from("<Q", data, place + 8)[0] // 8) * 8
        at = {"heap": heap + 8, "object": heap + 24, "free": place + 8 if place + 16 <= end else heap + 24}[change]
        struct.pack_into("<Q", data, at, value)
    written.write_bytes(data)
    with (
        HeapFile(written) as held,
        h5py.File(held, "r") as file,
        pytest.raises(ValueError, match=r"heap of strings at byte [\d,]+ is damaged"),
    ):
        list(file.attrs.values())


def test_a_file_that_ends_early_is_an_error(written: Path) -> None:
    with HeapFile(written) as held, h5py.File(held, "r") as file:
        written.write_bytes(written.read_bytes()[:600])
        with pytest.raises(OSError, match="ends too early"):
            list(file.attrs.values())
