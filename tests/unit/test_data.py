from __future__ import annotations

import gzip
import json
import struct
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train import HDF5Input, UserError
from hpc_train.data import write_shards
from hpc_train.data.convert import read_idx
from hpc_train.data.reader import Reader
from hpc_train.data.shards import ShardSet, find_shards
from tests.support import environment


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=5),
    st.sampled_from(["<u1", ">i4", "<f4", ">f8", "<f2", "?"]),
    st.sampled_from([(), (3,), (2, 2)]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_rows_come_as_asked_for(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    dtype: str,
    shape: tuple[int, ...],
    chunked: bool,
    random,
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    whole = (np.random.default_rng(1).random((sum(sizes), *shape)) * 200).astype(dtype)
    start = 0
    for i, size in enumerate(sizes):
        options = {"chunks": (1, *shape), "compression": "gzip"} if chunked else {}
        with h5py.File(folder / f"s{i}.h5", "w") as file:
            file.create_dataset("x", data=whole[start : start + size], **options)
            file["y"] = np.arange(start, start + size)
        start += size
    shards = find_shards(HDF5Input(str(folder / "s*.h5")))
    assert shards == ShardSet.from_json(json.loads(json.dumps(shards.to_json())))
    assert [c.name for c in shards.features] == ["x"]
    assert [c.name for c in shards.labels] == ["y"]
    rows = np.array(random.sample(range(shards.rows), random.randint(1, shards.rows)))
    with Reader(shards) as reader:
        x, y = reader.read(rows)
    assert y.tolist() == rows.tolist()
    assert x.dtype.isnative
    np.testing.assert_array_equal(x, whole[rows])


def test_a_file_that_vanishes_is_named(tmp_path: Path) -> None:
    (path,) = write_shards(tmp_path / "a", {"x": np.zeros((4, 2)), "y": np.arange(4)}, shards=1)
    shards = find_shards(HDF5Input(str(path)))
    path.unlink()
    with Reader(shards) as reader, pytest.raises(OSError, match=r"a-00000.h5: cannot be read"):
        reader.read(np.arange(2))


def test_shards_are_written_whole_with_a_schema(tmp_path: Path) -> None:
    x, y = np.arange(30).reshape(10, 3).astype(np.uint8), np.arange(10)
    paths = write_shards(tmp_path / "new" / "train", {"x": x, "y": y}, shards=3)
    assert [p.name for p in sorted((tmp_path / "new").iterdir())] == [p.name for p in paths]
    joined = []
    for path in paths:
        with h5py.File(path) as file:
            schema = json.loads(file.attrs["hpc_train_schema"])
            assert schema["columns"]["x"] == {"shape": [3], "dtype": "uint8"}
            assert schema["rows"] == len(file["y"]) in (3, 4)
            joined += file["y"][()].tolist()
    assert joined == y.tolist()
    with pytest.raises(UserError, match="already there, with 2 more"):
        write_shards(tmp_path / "new" / "train", {"x": x}, shards=2)


@pytest.mark.parametrize(
    ("columns", "shards", "said"),
    [
        ({}, 1, "no columns"),
        ({"x": np.zeros(3), "y": np.zeros(4)}, 1, "different lengths: x has 3 rows, y has 4 rows"),
        ({"x": np.zeros(3)}, 4, "cannot write 3 rows to 4 shards"),
        ({"x": np.array(["a"])}, 1, "does not hold numbers"),
        ({"x": np.array(3.0)}, 1, "does not hold numbers"),
        ({"a/b": np.zeros(3)}, 1, "no '/'"),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, columns: dict[str, np.ndarray], shards: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        write_shards(tmp_path / "out" / "x", columns, shards)
    assert not (tmp_path / "out").exists()


def idx(array: np.ndarray, code: int) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape) + array.tobytes()


def test_idx_files(tmp_path: Path) -> None:
    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "plain").write_bytes(idx(images, 8))
    (tmp_path / "zipped.gz").write_bytes(gzip.compress(idx(np.array([1, -2], ">i2"), 0x0B)))
    np.testing.assert_array_equal(read_idx(tmp_path / "plain"), images)
    assert read_idx(tmp_path / "zipped.gz").tolist() == [1, -2]
    for name, content in (
        ("cut", idx(images, 8)[:-1]),
        ("text", b"hello"),
        ("short", b"\0\0\x08\x03\0"),
        ("empty", b""),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"{name}: (not an IDX file|IDX file cut short)"):
            read_idx(tmp_path / name)


def test_hpc_train_shard(tmp_path: Path) -> None:
    x, y = np.arange(20.0).reshape(10, 2), np.arange(10)
    np.savez(tmp_path / "both.npz", x=x, y=y)
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "y.idx").write_bytes(idx(y.astype(np.uint8), 8))
    with h5py.File(tmp_path / "both.h5", "w") as file:
        file["x"], file["y"] = x, y

    def shard(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hpc_train", "shard", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60)

    for i, sources in enumerate((["both.npz"], ["x=x.npy", "y=y.idx"], ["both.h5"])):
        done = shard(f"out{i}/train", *sources, "--shards", "2")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("10 rows of x, y in 2 files: ")
        with Reader(find_shards(HDF5Input(str(tmp_path / f"out{i}" / "train-*.h5")))) as reader:
            read_x, read_y = reader.read(np.arange(10))
        assert read_x.tolist() == x.tolist()
        assert read_y.tolist() == y.tolist()
    for arguments, said in (
        (["o/t", "none.npz"], "none.npz: cannot be read"),
        (["o/t", "what.csv"], "cannot tell what this is; give FILE.npz"),
        (["o/t", "both.npz", "x=x.npy"], "column 'x' given twice"),
        (["o/t", "both.npz", "--shards", "11"], "cannot write 10 rows to 11 shards"),
    ):
        done = shard(*arguments)
        assert done.returncode == 2, arguments
        assert f"hpc-train: error: {said}" in done.stderr or said in done.stderr
        assert not (tmp_path / "o").exists()
