"""HeapFile: HDF5 reads sound attributes and heaps, and is kept from those in which it would take all time or memory."""

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


# ---- what attributes declare

TEXT = struct.Struct("<IQI")


def read(path: Path, *names: str, of: str = "/") -> dict[str, object]:
    with HeapFile(path) as held, h5py.File(held, "r") as file:
        return held.attributes(file[of], *names)


@pytest.fixture
def described(tmp_path: Path) -> Path:
    """A file whose attributes fill several pieces of its object's header."""
    path = tmp_path / "b.h5"
    with h5py.File(path, "w") as file:
        at = file.create_dataset("values", data=np.arange(3)).attrs
        for number in range(60):
            at[f"n{number}"] = number
            at[f"t\u00e9{number}"] = "x" * (1000 + number)
        at["true"], at["fixed"] = np.True_, np.bytes_("abc")
        at["texts"] = np.array(["x" * 2000, "three"], object)
        at["pair"], at["numbers"] = np.zeros(1, "i4,f8"), np.zeros(3)
        lists = np.empty(1, object)
        lists[0] = np.zeros(2)
        at.create("lists", lists, dtype=h5py.vlen_dtype("f8"))
    return path


def test_sound_attributes_are_read_and_missing_ones_left_out(described: Path, written: Path) -> None:
    names = ["n0", "n59", "t\u00e90", "t\u00e959", "true", "nothing", "fixed", "texts", "numbers"]
    found = read(described, *names, of="values")
    assert (list(found.pop("texts")), list(found.pop("numbers"))) == (["x" * 2000, "three"], [0, 0, 0])
    assert found.pop("t\u00e90") == "x" * 1000 and found.pop("t\u00e959") == "x" * 1059
    assert found == {"n0": 0, "n59": 59, "true": True, "fixed": b"abc"}
    assert read(written, "39", "40") == {"39": "x" * LENGTHS[39 % len(LENGTHS)]}


@pytest.mark.parametrize("name", ["pair", "lists"])
def test_attributes_that_are_no_number_and_no_text_are_refused(described: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no number and no text"):
        read(described, "n1", name, of="values")


@pytest.mark.parametrize("declared", [0xFFFFFFFF, 1 << 26, None], ids=["4 GiB", "a heap", "the file"])
@pytest.mark.parametrize(("name", "size"), [("t\u00e90", 1000), ("t\u00e959", 1059), ("texts", 2000)])
def test_a_text_that_declares_more_than_the_file_has_is_refused_before_hdf5_allocates_it(
    described: Path, name: str, size: int, declared: int | None
) -> None:
    data = bytearray(described.read_bytes())
    length, begun = declared or len(data) + 1, heaps(bytes(data))
    places = [p for p in range(len(data) - 16) if TEXT.unpack_from(data, p)[0] == size]
    (place,) = (p for p in places if TEXT.unpack_from(data, p)[1] in begun)
    struct.pack_into("<I", data, place, length)
    described.write_bytes(data)
    with pytest.raises(ValueError, match=f"declares a text of {length:,} bytes"):
        read(described, "n1", name, of="values")
    assert read(described, "n1", of="values") == {"n1": 1}


def written_anew(path: Path, change: str) -> None:
    """In ways in which h5py writes nothing for this package."""
    if change == "latest":
        with h5py.File(path, "w", libver="latest") as file:
            file.attrs["a"] = "text"
    elif change == "user block":
        with h5py.File(path, "w", userblock_size=512) as file:
            file.attrs["a"] = "text"
    elif change == "tracked":
        with h5py.File(path, "w", track_order=True) as file:
            file.attrs.update({str(number): "text" for number in range(20)} | {"a": "text"})
    else:
        with h5py.File(path, "w") as file:
            file["kind"] = h5py.string_dtype()
            file.attrs.create("a", "text", dtype=file["kind"])


@pytest.mark.parametrize("change", ["latest", "user block", "tracked", "named type"])
def test_what_cannot_be_looked_at_is_refused(tmp_path: Path, change: str) -> None:
    written_anew(tmp_path / "c.h5", change)
    with pytest.raises(ValueError, match="another kind"):
        read(tmp_path / "c.h5", "a")
