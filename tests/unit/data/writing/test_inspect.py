from __future__ import annotations

import json
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest

from hpc_train import UserError
from hpc_train.data import write_shards
from hpc_train.data.writing.inspect import inspect
from tests.unit.data.writing.test_writer import shard

X, Y = np.zeros((100, 28, 28), np.uint8), np.arange(100)


def test_shards_alike_are_one_table(tmp_path: Path) -> None:
    write_shards(tmp_path / "a", {"a_rather_long_name_of_a_column_with_images": X, "y": Y}, 3)
    write_shards(tmp_path / "b", {"a_rather_long_name_of_a_column_with_images": X, "y": Y}, 1, compression="gzip")
    done = shard(tmp_path, "inspect", "a-*.h5", "b-00000.h5")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines() if line]
    sizes = [f"{sum(path.stat().st_size for path in tmp_path.glob(f'{name}-*')) / 1000:.1f}" for name in "ab"]
    assert lines[0] == f"a-00000.h5 … a-00002.h5: 3 files: 100 rows (33 to 34 each), {sizes[0]} kB".split()
    assert lines[1] == ["dataset", "type,", "row,", "order", "layout", "filters", "bytes", "raw", "read", "by"]
    name = "a_rather_long_name_of_a_column_with_images"
    assert lines[2] == f"{name} uint8 [28, 28] contiguous none 78.4 kB 78.4 kB memory map".split()
    assert " ".join(lines[3]) == "y int64 [] little contiguous none 800 B 800 B memory map"
    assert lines[4] == f"b-00000.h5: 100 rows, {sizes[1]} kB".split()
    assert " ".join(lines[6]).startswith(f"{name} uint8 [28, 28] chunked [100, 28, 28] gzip")
    assert " ".join(lines[7]).endswith("800 B parallel chunks")


def test_json_has_everything(tmp_path: Path) -> None:
    write_shards(tmp_path / "a", {"x": X.astype(">f4"), "y": Y}, 1, compression="lzf", chunk_rows=10)
    done = shard(tmp_path, "inspect", "a-00000.h5", "--json")
    (file,) = json.loads(done.stdout)
    assert (file["path"], file["rows"], file["problems"]) == ("a-00000.h5", 100, [])
    x, _ = file["datasets"]
    assert x.pop("stored_bytes") < x["raw_bytes"]
    assert x == {
        "name": "x",
        "dtype": "float32",
        "shape": [28, 28],
        "rows": 100,
        "layout": "chunked",
        "chunk": [10, 28, 28],
        "compression": "lzf+shuffle",
        "byte_order": "little",
        "raw_bytes": 313_600,
        "read_by": "parallel chunks",
        "reason": None,
        "outside": [],
        "lengths": False,
    }


def test_what_is_not_on_the_fast_path_says_why(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["big"] = np.arange(3, dtype=">i4")
        file.create_dataset("bz", data=np.arange(3.0), chunks=(2,), scaleoffset=2)
        file["text"] = np.array([b"a", b"b", b"c"])
        file["texts"] = ["a", "bc", "déf"]
        file["ragged/values"], file["ragged/ends"] = np.arange(5.0), np.array([1, 1, 5])
        file["scalar"] = 3
        file.create_dataset("never", (3,), "i4")
        file.create_group("group")
    (report,) = inspect([str(tmp_path / "a.h5")])
    assert report.problems == ()
    assert {d.name: d.read_by for d in report.datasets} == {
        "big": "memory map",
        "bz": "through HDF5",
        "never": "through HDF5",
        "scalar": "not at all",
        "text": "memory map",
        "texts": "heaps",
        "ragged": "memory map",
    }
    reasons = {d.name: d.reason for d in report.datasets}
    assert "scaleoffset" in (reasons["bz"] or "")
    assert reasons["scalar"] == "it does not hold numbers or texts in rows"
    rows = {d.name: d.row for d in report.datasets}
    assert (rows["text"], rows["texts"], rows["ragged"]) == ("S1 [] ", "text [] ", "float64 [any] little")
    assert next(d.byte_order for d in report.datasets if d.name == "big") == "big"


def test_problems_are_told_per_file(tmp_path: Path) -> None:
    (good,) = write_shards(tmp_path / "a", {"x": X, "y": Y}, 1)
    (tmp_path / "b-cut.h5").write_bytes(good.read_bytes()[:-1000])
    (tmp_path / "c-text.h5").write_text("no HDF5")
    (tmp_path / "d-empty.h5").write_bytes(b"")
    for name, x, y in (
        ("e-uneven", X, Y[:-1]),
        ("f-type", X.astype(np.float32), Y),
        ("g-shape", X[:, :27], Y),
        ("h-rows", X[:0], Y[:0]),
    ):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"], file["y"] = x, y
    with h5py.File(tmp_path / "i-missing.h5", "w") as file:
        file["x"], file["z"] = X, Y
        file["gone"] = h5py.SoftLink("/nowhere")
    with h5py.File(tmp_path / "j-none.h5", "w") as file:
        file.create_group("group")
    (tmp_path / "k").mkdir()
    done = shard(tmp_path, "inspect", "a-00000.h5", "?-*.h5", "k")
    assert done.returncode == 2
    told = [line.removeprefix("hpc-train: error: ") for line in done.stderr.splitlines()]
    for said in (
        "b-cut.h5: is cut short: write or copy it again",
        "2 files: is not an HDF5 file: c-text.h5, d-empty.h5",
        "e-uneven.h5: rows differ: 'x' has 100, 'y' has 99",
        "f-type.h5: dataset 'x' is float32 [rows, 28, 28], but uint8 [rows, 28, 28] in a-00000.h5",
        "g-shape.h5: dataset 'x' is uint8 [rows, 27, 28], but uint8 [rows, 28, 28] in a-00000.h5",
        "h-rows.h5: has no rows",
        "i-missing.h5: dataset 'gone' leads to nothing: i-missing.h5 has no 'nowhere'",
        "j-none.h5: has no dataset of numbers or texts in rows at its top level",
        "k: is a folder",
    ):
        assert said in told, done.stderr
    assert "a-00000.h5: 100 rows" in done.stdout
    with pytest.raises(UserError, match=r"none-\*: no such file"):
        inspect(["none-*"])


def test_filters_that_are_not_installed_are_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=X, chunks=(10, 28, 28), **hdf5plugin.Bitshuffle(cname="zstd"))
    (report,) = inspect([str(tmp_path / "a.h5")])
    assert report.datasets[0].compression != "none"
    assert report.datasets[0].read_by in ("parallel chunks", "through HDF5")
