"""Texts and rows of different lengths, from every source into shards and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpc_train import HDF5Input, UserError
from hpc_train.data import write_shards
from hpc_train.data.hdf5.reader import Reader
from hpc_train.data.hdf5.shards import find_shards
from hpc_train.data.ragged import Ragged
from hpc_train.data.sources import spool
from hpc_train.data.writing.convert import Options, convert
from tests.unit.data.writing.test_writer import contents, joined

ROWS = 50
KEYS = np.arange(ROWS)
WORDS = [f"nº {k} " + "é" * (k % 5) if k % 7 != 3 else "" for k in KEYS]
TOKENS = [list(range(k, k + k % 6)) for k in KEYS]
STORAGE = [{}, {"compression": "gzip"}, {"chunk_rows": 7}, {"compression": "lzf", "shuffle": True, "seed": 3}]


def read_back(folder: Path, prefix: str = "t") -> dict[str, list[Any]]:
    """Rows as the Reader gives them."""
    names = list(joined(folder, prefix))
    pad = {name: 0 for name in names if name == "tokens"}
    shards = find_shards(HDF5Input(str(folder / f"{prefix}-*.h5"), features=names, label=(), pad=pad))
    with Reader(shards, 1, 8, 2) as reader:
        read = reader.read(np.random.default_rng(0).permutation(shards.rows))
    found: dict[str, list[Any]] = {}
    for name, rows in zip(names, read, strict=True):
        if not isinstance(rows, Ragged):
            found[name] = rows.tolist()
        elif name == "tokens":
            ends = np.cumsum(rows.lengths)
            found[name] = [part.tolist() for part in np.split(rows.values, ends[:-1])]
        else:
            found[name] = [text.decode() for text in rows.texts()]
    return found


def check(folder: Path, prefix: str = "t", order: Any = None, rows: int = ROWS) -> None:
    """All rows are there, whole, also in the `order` given."""
    plain = joined(folder, prefix)
    for found in ({name: array.tolist() for name, array in plain.items()}, read_back(folder, prefix)):
        keys = found["key"]
        assert sorted(keys) == sorted(set(keys)) and len(keys) == rows
        for name, wanted in (("word", WORDS), ("tokens", TOKENS)):
            assert name not in found or found[name] == [wanted[k] for k in keys]
    assert order is None or plain["key"].tolist() == list(order)


@pytest.mark.parametrize("how", STORAGE, ids=str)
def test_lists_are_written_and_read(tmp_path: Path, how: dict[str, Any]) -> None:
    tokens = [np.array(row, np.int16) for row in TOKENS]
    write_shards(tmp_path / "t", {"key": KEYS, "word": WORDS, "tokens": tokens}, 3, **how)
    check(tmp_path, order=None if "shuffle" in how else KEYS)
    with h5py.File(tmp_path / "t-00000.h5") as file:
        assert file["tokens/values"].dtype == np.int16 and file["word/values"].dtype == "S1"
        assert '"word": {"shape": [], "dtype": "text", "ragged": true}' in file.attrs["hpc_train_schema"]


def test_arrays_of_texts_and_of_objects_are_written(tmp_path: Path) -> None:
    pairs = np.array([[word, word + "!"] for word in WORDS])
    objects = np.empty(ROWS, object)
    objects[:] = TOKENS
    with h5py.File(tmp_path / "given.h5", "w") as file:
        given = file.create_dataset("word", data=WORDS, dtype=h5py.string_dtype())
        columns = {
            "key": KEYS,
            "word": given,
            "tokens": objects,
            "pair": pairs,
            "bytes": np.char.encode(pairs, "utf-8"),
        }
        write_shards(tmp_path / "t", columns, 2)
    found = joined(tmp_path, "t")
    check_names = ("word", WORDS), ("tokens", TOKENS), ("pair", pairs.tolist()), ("bytes", pairs.tolist())
    for name, wanted in check_names:
        assert found[name].tolist() == wanted, name
    shards = find_shards(HDF5Input(str(tmp_path / "t-*.h5"), features=("pair", "word"), label="key"))
    with Reader(shards) as reader:
        assert reader.read(np.array([40, 3]))[0].texts().tolist() == [[t.encode() for t in pairs[k]] for k in (40, 3)]


def sources(folder: Path) -> dict[str, tuple[list[str], list[str]]]:
    """By kind: the files, with the same rows, and what --dtype has to say of them."""
    np.savez(folder / "a.npz", key=KEYS, word=np.array(WORDS))
    np.savez_compressed(folder / "b.npz", key=KEYS, word=np.char.encode(np.array(WORDS), "utf-8"))
    with h5py.File(folder / "c.h5", "w") as file:
        file["key"] = KEYS
        file.create_dataset("word", data=WORDS, dtype=h5py.string_dtype(), chunks=(9,), compression="gzip")
        tokens = file.create_dataset("tokens", (ROWS,), h5py.vlen_dtype(np.dtype("<i8")))
        for k in KEYS:
            tokens[k] = TOKENS[k]
    write_shards(folder / "d", {"key": KEYS, "word": WORDS, "tokens": TOKENS}, 1)
    quoted = ['"' + word.replace("n", '""n,') + '"' for word in WORDS]
    lines = [f"{k},{word},{k * 0.5}" for k, word in zip(KEYS, quoted, strict=True)]
    (folder / "e.csv").write_text("\n".join(["key,word,half", *lines]))
    return {
        "npz": (["a.npz"], []),
        "compressed npz": (["b.npz"], []),
        "HDF5": (["c.h5"], []),
        "shards": (["d-00000.h5"], []),
        "CSV": (["e.csv"], ["word=text"]),
    }


@pytest.mark.parametrize("kind", ["npz", "compressed npz", "HDF5", "shards"])
def test_sources_are_converted_in_order_shuffled_and_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    files, dtype = sources(tmp_path)[kind]
    convert("plain/t", files, Options(shards=3, dtype=dtype))
    check(tmp_path / "plain", order=KEYS)
    convert("shuffled/t", files, Options(shards=2, shuffle=True, dtype=dtype, compression="gzip"))
    check(tmp_path / "shuffled")
    convert("sets", files, Options(shards=2, split=0.2, dtype=dtype))
    check(tmp_path / "sets", "train", rows=40)
    check(tmp_path / "sets", "test", rows=10)
    assert not list(tmp_path.glob("*/.*spool*")) and not list(tmp_path.glob("*/*.tmp"))


def test_text_of_a_csv_file_is_written_where_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files, dtype = sources(tmp_path)["CSV"]
    with pytest.raises(UserError, match=r"cannot write 'word' .line 2 has the text .* --dtype word=text writes text"):
        convert("plain/t", files, Options())
    for shuffle in (False, True):
        (written,) = convert(f"{shuffle}/t", files, Options(shards=2, shuffle=shuffle, dtype=dtype))
        assert [str(field) for field in written.fields] == ["int64 [rows]", "text [rows]", "float64 [rows]"]
        found = joined(tmp_path / str(shuffle), "t")
        assert found["word"].tolist() == [WORDS[k].replace("n", '"n,') for k in found["key"]]
        assert sorted(found["key"]) == KEYS.tolist()


def test_texts_that_are_no_utf8_are_named_with_file_and_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_bytes(b"key,word\n1,caf\xe9\n")
    with pytest.raises(UserError, match=r"a.csv: column 'word' has in row 1 what is not text in UTF-8"):
        convert("t", ["a.csv"], Options(shards=1, dtype=["word=text"]))
    with h5py.File("b.h5", "w") as file:
        file.create_dataset("word", data=[b"ok", b"caf\xe9"], dtype=h5py.string_dtype("ascii"))
    with pytest.raises(UserError, match=r"^b.h5: dataset 'word', row 1: is not text in UTF-8"):
        convert("t", ["b.h5"], Options(shards=1))


def test_other_types_of_values_and_what_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = sources(tmp_path)["shards"][0]
    convert("small/t", files, Options(shards=1, columns="key,tokens", dtype=["tokens=uint8"]))
    with h5py.File("small/t-00000.h5") as file:
        assert file["tokens/values"].dtype == np.uint8
    check(tmp_path / "small", order=KEYS)
    for dtype, said in (
        ("tokens=bool", "column 'tokens' has 2 in row 3, which is no bool"),
        ("tokens=int8[3]", "column 'tokens' has rows of different lengths"),
        ("word=int8", "column 'word' is text .rows., which --dtype word=int8 cannot make of it"),
        ("key=text", "column 'key' is int64 .rows., which is written as numbers"),
    ):
        with pytest.raises(UserError, match=said):
            convert("other/t", files, Options(shards=1, dtype=[dtype]))


def test_a_killed_conversion_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = sources(tmp_path)["compressed npz"][0]
    options = Options(shards=3, shuffle=True)
    convert("whole/t", files, options)
    killed: list[str] = []

    def report(what: str, done: int, total: int) -> None:
        if "t-00001" in what and not killed:
            killed.append(what)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert("again/t", files, options, report)
    assert sorted(p.name for p in Path("again").glob(".t.spool*")) == [".t.spool-0", ".t.spool-0.1"]
    filled: list[Path] = []
    monkeypatch.setattr(
        "hpc_train.data.writing.writer.fill", lambda *given: filled.append(given[1]) or spool.fill(*given)
    )
    (written,) = convert("again/t", files, options)
    assert (written.kept, filled) == (1, [])
    for path in Path("whole").glob("*.h5"):
        assert contents(path) == contents(Path("again") / path.name)
    with h5py.File("again/t-00002.h5", "a") as file:
        del file["word"]
    with pytest.raises(UserError, match=r"t-00002.h5: is not the shard that this command writes"):
        convert("again/t", files, options)
