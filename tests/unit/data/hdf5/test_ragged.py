"""Texts, and rows of different lengths: as h5py reads them, in whatever layout they lie, and in any order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train import HDF5Input, UserError
from hpc_train.data.hdf5 import contiguous, heap_values, ragged_column
from hpc_train.data.hdf5.reader import NotTextError, Reader
from hpc_train.data.hdf5.shards import ShardSet, find_shards
from hpc_train.data.ragged import Ragged, first_invalid, runs_of
from tests.support import examples

TEXTS = ["", "a", "déjà", "x" * 5000, "日本", "q\tz", "b" * 700]


def texts(rows: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [TEXTS[k] for k in rng.integers(0, len(TEXTS), rows)]


def sequences(rows: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(-9, 9, rng.integers(0, 7)) for _ in range(rows)]


def ends_of(rows: Sequence[Any]) -> np.ndarray:
    return np.cumsum([len(row) for row in rows])


def write(path: Path, rows: int, seed: int = 0, **how: Any) -> tuple[list[str], list[np.ndarray]]:
    """The same texts and sequences in each layout, both stored as `how` says: chunked, compressed."""
    said, numbers = texts(rows, seed), sequences(rows, seed)
    data = [text.encode() for text in said]
    with h5py.File(path, "w") as file:
        file["y"] = np.arange(rows)
        file.create_dataset("vlen", data=said, dtype=h5py.string_dtype(), **how)
        file.create_dataset("fixed", data=np.array(data, "S5000"), **how)
        file.create_dataset("pair", data=np.array([[s, s + "!"] for s in said], object), dtype=h5py.string_dtype())
        for kind in ("<i4", ">i2"):
            found = file.create_dataset(f"v{kind}", (rows,), h5py.vlen_dtype(np.dtype(kind)), **how)
            for i, row in enumerate(numbers):
                found[i] = row
        chunks = {"chunks": (5,), **how} if how else {}
        for name, values, ends in (
            ("text", np.frombuffer(b"".join(data), "S1"), ends_of(data)),
            ("ragged", np.concatenate(numbers).astype(">f4"), ends_of(numbers)),
        ):
            file.create_dataset(f"{name}/values", data=values, **chunks)
            file.create_dataset(f"{name}/ends", data=ends, **how)
        file["grid/values"] = np.arange(6 * int(ends_of(numbers)[-1])).reshape(-1, 2, 3)
        file["grid/ends"] = ends_of(numbers)
    return said, numbers


def found(folder: Path, *features: str) -> ShardSet:
    pad = {name: 0 for name in features if name[0] in "vrg" and name != "vlen" and "/" not in name}
    return find_shards(HDF5Input(str(folder / "*.h5"), features=features, label="y", pad=pad))


NAMES = ("vlen", "fixed", "pair", "v<i4", "v>i2", "text", "ragged", "grid")
LENGTHS = ("ragged/length", "v<i4/length", "vlen/length")


@pytest.mark.parametrize("how", [{}, {"chunks": (3,)}, {"chunks": (4,), "compression": "gzip"}], ids=str)
def test_rows_are_those_that_were_written_in_any_order(tmp_path: Path, how: dict[str, Any]) -> None:
    both = [write(tmp_path / f"{k}.h5", rows, k, **how) for k, rows in enumerate((23, 5, 40))]
    said, numbers = ([row for part in both for row in part[k]] for k in (0, 1))
    shards = found(tmp_path, *NAMES, *LENGTHS)
    rng = np.random.default_rng(3)
    orders = [np.arange(68), np.arange(20, 30), rng.permutation(68), np.array([67, 0, 0, 23, 22]), np.arange(0)]
    with Reader(shards, 2, 30, 4) as reader:
        for rows in orders:
            reader.expect(rows)
            columns = dict(zip([column.name for column in shards.columns], reader.read(rows), strict=True))
            wanted = [said[k].encode() for k in rows]
            assert columns["vlen"].texts().tolist() == columns["text"].texts().tolist() == wanted
            assert columns["fixed"].tolist() == wanted
            assert columns["pair"].texts().tolist() == [[text, text + b"!"] for text in wanted]
            lengths = [len(numbers[k]) for k in rows]
            for name in ("v<i4", "v>i2", "ragged"):
                assert columns[name].lengths.tolist() == lengths
                assert columns[name].values.tolist() == [n for k in rows for n in numbers[k].tolist()]
                assert columns[name].values.dtype.isnative
            assert columns["ragged/length"].tolist() == columns["v<i4/length"].tolist() == lengths
            assert columns["vlen/length"].tolist() == [len(text) for text in wanted]
            assert columns["grid"].values.shape == (sum(lengths), 2, 3)
        for future in reader.begin([(0, 30), (50, 68)]):
            future.result()
        reader.drop([(0, 30)], [(20, 25)])
        assert [column.row_bytes > 0 for column in shards.columns] == [True] * len(shards.columns)
    assert ShardSet.from_json(shards.to_json()) == shards


@pytest.mark.parametrize("pad", [h5py.h5t.STR_NULLTERM, h5py.h5t.STR_NULLPAD, h5py.h5t.STR_SPACEPAD])
def test_texts_of_one_length_end_where_their_type_says(tmp_path: Path, pad: int) -> None:
    """As C's strings, as numpy's, and as Fortran's: from a memory map, or through HDF5, which converts blanks."""
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(6)
    kind.set_strpad(pad)
    rest = {h5py.h5t.STR_NULLTERM: b"\0rub", h5py.h5t.STR_NULLPAD: b"\0\0\0\0", h5py.h5t.STR_SPACEPAD: b"    "}[pad]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["y"] = np.arange(3)
        space = h5py.h5s.create_simple((3,))
        dataset = h5py.h5d.create(file.id, b"t", kind, space)
        dataset.write(space, space, np.array([b"ab" + rest, b"six 66"[:5] + b"\0", b"" + rest], "S6"), mtype=kind)
    wanted = [b"ab", b"six 6", b""]
    with Reader(found(tmp_path, "t")) as reader:
        for rows in ([0, 1, 2], [2, 0, 1]):
            read = reader.read(np.array(rows))[0].tolist()
            assert read == [wanted[k] for k in rows] if pad != h5py.h5t.STR_SPACEPAD else read[rows.index(0)] == b"ab"


def test_shards_may_have_the_same_rows_in_other_layouts(tmp_path: Path) -> None:
    said = texts(20, 1)
    data = [text.encode() for text in said]
    for number, rows in enumerate((data[:8], data[8:12], data[12:])):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["y"] = np.arange(len(rows))
            if number == 1:
                file.create_dataset("t", data=rows, dtype=h5py.string_dtype())
            else:
                file["t/values"], file["t/ends"] = np.frombuffer(b"".join(rows), "S1"), ends_of(rows)
    order = np.random.default_rng(2).permutation(20)
    with Reader(found(tmp_path, "t", "t/length")) as reader:
        for rows in (order, np.arange(20), np.arange(9, 11)):
            read, lengths, _ = reader.read(rows)
            assert read.texts().tolist() == [data[k] for k in rows]
            assert lengths.tolist() == [len(data[k]) for k in rows]


def test_a_table_of_other_files_is_read_past_the_memory_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, _ = write(tmp_path / "a.h5", 30)
    monkeypatch.setattr(contiguous, "MAX_HELD_BYTES", 0)
    shards, rows = found(tmp_path, "text", "ragged"), np.random.default_rng(0).permutation(30)
    wanted = [said[k].encode() for k in rows]
    with Reader(shards) as reader:
        assert reader.read(rows)[0].texts().tolist() == wanted
    monkeypatch.setattr(contiguous, "MAX_MAPPED_ROW_BYTES", 0)
    with Reader(shards) as reader:
        assert reader.read(rows)[0].texts().tolist() == wanted


def test_heaps_that_were_read_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap_values, "MAX_HELD_BYTES", 5000)
    said, _ = write(tmp_path / "a.h5", 200)
    rows = np.random.default_rng(0).permutation(200)
    with Reader(found(tmp_path, "vlen")) as reader:
        assert reader.read(rows)[0].texts().tolist() == [said[k].encode() for k in rows]


@pytest.mark.parametrize("name", ["vlen", "fixed", "text"])
def test_what_is_no_utf8_is_named_with_file_and_row(tmp_path: Path, name: str) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["y"] = np.arange(3)
        data = [b"ok", b"caf\xe9", b"ok"]
        if name == "text":
            file["text/values"], file["text/ends"] = np.frombuffer(b"".join(data), "S1"), ends_of(data)
        elif name == "fixed":
            file["fixed"] = np.array(data)
        else:
            file.create_dataset(name, data=data, dtype=h5py.string_dtype("ascii"))
    with Reader(found(tmp_path, name)) as reader:
        assert len(reader.read(np.array([0, 2]))) == 2
        with pytest.raises(NotTextError, match=rf"a.h5: dataset '{name}', row 1: is not text in UTF-8") as caught:
            reader.read(np.arange(3))
        assert isinstance(caught.value, UserError)


def test_ends_that_cannot_be_are_named(tmp_path: Path) -> None:
    for row, ends in ((1, [2, 1, 4]), (0, [-1, 2, 4]), (2, [1, 2, 5])):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["y"], file["text/values"], file["text/ends"] = np.arange(3), np.full(4, b"a", "S1"), np.array(ends)
        with (
            Reader(found(tmp_path, "text")) as reader,
            pytest.raises(OSError, match=rf"'text', row {row}: damaged"),
        ):
            reader.read(np.arange(3))


def test_references_that_lie_are_refused(tmp_path: Path) -> None:
    """A length that the heap has not, an address beyond the file, one that is no heap, a number that it lacks."""
    path = tmp_path / "a.h5"
    for place, value in ((0, 2**20), (4, 2**50), (4, 16), (12, 999)):
        with h5py.File(path, "w") as file:
            file["y"] = np.arange(3)
            offset = file.create_dataset("t", data=["abc", "d", "ef"], dtype=h5py.string_dtype()).id.get_offset()
        size = 8 if place == 4 else 4
        with open(path, "r+b") as raw:
            os.pwrite(raw.fileno(), value.to_bytes(size, "little"), offset + 16 + place)
        with Reader(found(tmp_path, "t")) as reader, pytest.raises(OSError, match=r"a.h5: dataset 't', row 1: damaged"):
            reader.read(np.arange(3))


@pytest.mark.parametrize("name", ["vlen", "text"])
def test_rows_that_take_more_than_the_free_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Many rows of a file may lead to the same bytes: what they take together is looked at before it is allocated."""
    said, _ = write(tmp_path / "a.h5", 30)
    monkeypatch.setattr(ragged_column, "fits", lambda size: size < 6000)
    few, many = (np.array([k for k in range(30) if len(said[k]) == 5000][:n]) for n in (1, 2))
    with Reader(found(tmp_path, name)) as reader:
        assert reader.read(few)[0].texts().tolist() == [b"x" * 5000]
        with pytest.raises(
            OSError, match=rf"'{name}', row {many[0]}: it has 5,000 values, and 2 rows 10,000: too many"
        ):
            reader.read(many)


def test_rows_of_different_lengths_are_padded_or_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", 5)
    both = str(tmp_path / "*.h5")
    with pytest.raises(
        UserError, match=r"'ragged' is float32 \[rows, any\]: its rows have .* give `pad: \{ragged: 0\}`"
    ):
        find_shards(HDF5Input(both, features="ragged", label="y"))
    with pytest.raises(UserError, match=r"`pad` names 'text', which is no feature or label .* there is none"):
        find_shards(HDF5Input(both, features="text", label="y", pad={"text": 0}))
    with pytest.raises(UserError, match=r"allowed: a number, or a mapping"):
        HDF5Input(both, pad={"ragged": {"length": 0}})
    with pytest.raises(UserError, match=r"a.h5: has no dataset 'y/length'"):
        find_shards(HDF5Input(both, features="y/length", label="y"))


def test_what_cannot_be_read_past_hdf5_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["y"] = np.arange(3)
        file.create_dataset("t", (3,), h5py.string_dtype(), fillvalue="unknown", chunks=(1,))
    with pytest.raises(UserError, match=r"'t' cannot be read: .* those never written have a value of their own"):
        find_shards(HDF5Input(str(tmp_path / "a.h5"), features="t", label="y"))


@settings(max_examples=examples(100))
@given(st.lists(st.binary(max_size=4), max_size=8))
def test_the_first_text_that_is_no_utf8_is_found(rows: list[bytes]) -> None:
    def is_valid(row: bytes) -> bool:
        try:
            return row.decode() is not None
        except UnicodeDecodeError:
            return False

    ragged = Ragged.of_texts(rows)
    wanted = next((k for k, row in enumerate(rows) if not is_valid(row)), None)
    assert first_invalid(ragged.values, ragged.lengths) == wanted
    assert ragged.texts().tolist() == rows


@settings(max_examples=examples(100))
@given(st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=8), st.randoms(use_true_random=False))
def test_rows_are_chosen_as_of_a_list(rows: list[list[int]], random: Any) -> None:
    ragged = Ragged.of_rows([np.array(row, np.int64) for row in rows], np.dtype(np.int64))
    order = [random.randrange(len(rows)) for _ in range(5)] if rows else []
    chosen = ragged[np.array(order, np.int64)]
    assert chosen.lengths.tolist() == [len(rows[k]) for k in order]
    assert chosen.values.tolist() == [n for k in order for n in rows[k]]
    low = random.randint(0, len(rows))
    assert ragged[low:].values.tolist() == [n for row in rows[low:] for n in row]
    assert Ragged.concatenate([ragged[:low], ragged[low:]]).values.tolist() == ragged.values.tolist()


def test_runs_are_numbered_end_to_end() -> None:
    assert runs_of(np.array([5, 0, 9]), np.array([2, 0, 3])).tolist() == [5, 6, 9, 10, 11]
