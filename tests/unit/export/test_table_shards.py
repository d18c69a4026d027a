"""Tables in shards: what is written, what is read of it, and what somebody else may have made of it."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.errors import UserError
from hpc_train.export import table_shards
from hpc_train.export.table_shards import TableSource, open_tables, write_tables


def source(table: np.ndarray, name: str = "words", cuts: tuple[int, ...] = (), backwards: bool = False) -> TableSource:
    """A table that comes in blocks, cut at these elements."""

    def stream(put):
        blocks = np.split(table.reshape(-1), cuts)
        begins = [0, *cuts]
        for begin, block in sorted(zip(begins, blocks, strict=True), key=lambda one: one[0], reverse=backwards):
            put(begin, block)

    return TableSource(name, table.shape, table.dtype, stream)


def written(folder: Path, *sources: TableSource, shard_bytes: int = 48) -> Path:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(table_shards, "SHARD_BYTES", shard_bytes)
        folder.mkdir()
        write_tables(folder, sources)
    return folder


@given(st.data())
def test_rows_are_those_of_the_table_whatever_blocks_they_came_in(tmp_path_factory, data):
    rows, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 5))
    dtype = data.draw(st.sampled_from([np.float32, np.float64, np.float16, ml_dtypes.bfloat16]))
    table = np.random.default_rng(1).normal(size=(rows, width)).astype(dtype)
    cuts = tuple(sorted(data.draw(st.sets(st.integers(1, rows * width), max_size=5)) - {rows * width}))
    given = source(table, cuts=cuts, backwards=data.draw(st.booleans()))
    folder = tmp_path_factory.mktemp("tables") / "export"
    made = open_tables(written(folder, given, shard_bytes=data.draw(st.integers(1, 200))), digests=True)["words"]
    ids = np.array(data.draw(st.lists(st.integers(0, rows - 1), max_size=20)), np.int64)
    found = made.rows(ids)
    assert found.tobytes() == table[ids].tobytes()


def test_files_are_of_a_bounded_size_and_numpy_alone_reads_them(tmp_path):
    table = np.arange(60, dtype=np.float32).reshape(20, 3)
    folder = written(tmp_path / "export", source(table), source(table[:4] * 2, "items")) / "tables"
    index = json.loads((folder / "index.json").read_text())
    words, items = index["tables"]
    assert (words["name"], words["rows"], words["width"], words["dtype"]) == ("words", 20, 3, "float32")
    parts = [np.load(folder / file["file"], allow_pickle=False) for file in words["files"]]
    assert {part.shape for part in parts} == {(4, 3)}
    np.testing.assert_array_equal(np.concatenate(parts), table)
    assert [file["file"] for file in items["files"]] == ["table-1-00000.npy"]
    assert [file["bytes"] for file in items["files"]] == [(folder / "table-1-00000.npy").stat().st_size]


def test_a_table_that_is_larger_than_memory_may_be_is_not_read(tmp_path):
    rows, width = (1 << 40) // 256, 64

    def a_few(put):
        for row in (0, 1 << 22, rows - 1):
            put(row * width, np.full(width, row, np.float32))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(table_shards, "_on_disk", lambda path, moved: "0" * 64)  # of a terabyte, mostly holes
        patched.setattr(table_shards, "SHARD_BYTES", 1 << 36)
        write_tables(tmp_path, [TableSource("words", (rows, width), np.dtype(np.float32), a_few)])
    found = open_tables(tmp_path)["words"].rows(np.array([rows - 1, 0, 5, 1 << 22]))
    np.testing.assert_array_equal(found[:, 3], np.array([rows - 1, 0, 0, 1 << 22], np.float32))


def changed(index: dict, path: str, value) -> None:
    *places, last = path.split(".")
    for place in places:
        index = index[int(place)] if place.isdigit() else index[place]
    index[last] = value


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("format", 2, r"index.json: format 2, but this version of hpc_train reads format 1"),
        ("format", "\x1b[2J", r"format \\x1b\[2J, but"),
        ("tables", 3, "tables is not as it was written"),
        ("tables.0.rows", "20", "tables.0.rows is not as it was written"),
        ("tables.0.rows", -1, "tables.0.rows is not as it was written"),
        ("tables.0.rows", 21, "the files of 'words' do not hold its rows 0 to 20 in order"),
        ("tables.0.rows", 10**30, "tables.0.rows is not"),
        ("tables.0.dtype", "object", "tables.0.dtype is not"),
        ("tables.0.more", 3, "tables.0.more is not as it was written"),
        ("tables.0.files.1.file", "../../secret.npy", "tables.0.files.1.file is not"),
        ("tables.0.files.1.file", "/etc/passwd", "tables.0.files.1.file is not"),
        ("tables.0.files.1.file", "table-0-00001.npy\n", "tables.0.files.1.file is not"),
        ("tables.0.files.1.file", "table-0-00009.npy", r"table-0-00009.npy: cannot be read: No such file"),
        ("tables.0.files.1.begin", 3, "do not hold its rows 0 to 19 in order"),
        ("tables.0.files", [], "do not hold its rows 0 to 19 in order"),
        ("tables.0.files.1.bytes", 7, "176 bytes, but it had 7; copy the export anew"),
        ("tables.0.files.1.sha256", "0" * 64, "its bytes do not match their digest; copy the export anew"),
        ("tables.0.width", 4, "is no .npy file of 4 rows of 4 float32, as index.json says"),
        ("tables.1.name", "words", "has two tables of one name"),
    ],
)
def test_an_index_that_somebody_has_changed_is_refused(tmp_path, path, value, said):
    table = np.arange(60, dtype=np.float32).reshape(20, 3)
    folder = written(tmp_path / "export", source(table), source(table, "items"))
    index = json.loads((folder / "tables" / "index.json").read_text())
    changed(index, path, value)
    (folder / "tables" / "index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=said):
        open_tables(folder, digests=True)


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, "\xff"])
def test_an_index_that_is_none_is_refused(tmp_path, text):
    folder = written(tmp_path / "export", source(np.zeros((2, 2))))
    (folder / "tables" / "index.json").write_text(text)
    with pytest.raises(UserError, match=r"index\.json: "):
        open_tables(folder)
    (folder / "tables" / "index.json").unlink()
    with pytest.raises(UserError, match=r"index\.json: cannot be read: No such file or directory"):
        open_tables(folder)


def put_pickle(path: Path) -> None:
    np.save(path, np.array([{"a": 1}] * 8, dtype=object), allow_pickle=True)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def other_shape(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"(4, 3)", b"(3, 4)"))


def other_order(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"False", b"True "))


def no_header(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (Path.unlink, "cannot be read: No such file"),
        (cut_short, "175 bytes, but it had 176"),
        (linked, "is a symbolic link, not a regular file"),
        (put_pickle, "bytes, but it had 176"),
        (other_shape, "is no .npy file of 4 rows of 3 float32"),
        (other_order, "is no .npy file of 4 rows"),
        (no_header, "is no .npy file of 4 rows"),
    ],
)
def test_a_shard_that_is_missing_or_another_one_is_refused(tmp_path, change, said):
    folder = written(tmp_path / "export", source(np.arange(60, dtype=np.float32).reshape(20, 3)))
    change(folder / "tables" / "table-0-00002.npy")
    with pytest.raises(UserError, match=said) as refused:
        open_tables(folder)
    assert "table-0-00002.npy" in str(refused.value)


def test_what_a_stream_raises_is_raised(tmp_path):
    def full(put):
        raise OSError(28, "No space left on device", "x")

    with pytest.raises(OSError, match="No space left"):
        write_tables(tmp_path, [TableSource("words", (2, 2), np.dtype(np.float32), full)])


def test_an_export_without_tables_has_none(tmp_path):
    assert open_tables(tmp_path) == {}
