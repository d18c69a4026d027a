"""Shards with mistakes: all of them are looked at, and what many have in common is one line."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from hpc_train import HDF5Input, UserError
from hpc_train.data.hdf5.shards import find_shards


def shards(folder: Path, count: int = 80) -> HDF5Input:
    for number in range(count):
        with h5py.File(folder / f"{number:02}.h5", "w") as file:
            file["x"], file["y"] = np.zeros((4, 2), "f4"), np.zeros(4, "i8")
    return HDF5Input(str(folder / "*.h5"), features="x", label="y", batch_size=2)


def refused(source: HDF5Input) -> list[str]:
    with pytest.raises(UserError) as caught:
        find_shards(source)
    return str(caught.value).splitlines()


def test_what_many_shards_lack_is_one_line(tmp_path: Path) -> None:
    source = shards(tmp_path)
    for number in range(1, 80):
        with h5py.File(tmp_path / f"{number:02}.h5", "a") as file:
            del file["y"]
            if number == 7:
                file["y"] = np.zeros(3, "i8")
    names = ", ".join(f"{tmp_path}/{number:02}.h5" for number in range(1, 6))
    assert refused(source) == [
        f"78 files: has no dataset 'y'; it has x (float32 [rows, 2]): {names} and 73 more",
        f"{tmp_path}/07.h5: dataset 'y' has 3 rows, but 'x' has 4",
    ]


def test_what_cannot_be_read_is_named_before_anything_else(tmp_path: Path) -> None:
    source = shards(tmp_path)
    with h5py.File(tmp_path / "00.h5", "a") as file:
        del file["x"]
    for number in range(40, 80):
        (tmp_path / f"{number:02}.h5").write_text("no HDF5")
    (line,) = refused(source)
    assert line.startswith("40 files: ") and f": {tmp_path}/40.h5, " in line and line.endswith(" and 35 more")


def test_patterns_that_match_nothing_are_one_line(tmp_path: Path) -> None:
    source = shards(tmp_path, 1)
    many = HDF5Input([f"gone-{number}.h5" for number in range(80)], features="x", label="y")
    named = ", ".join(f"gone-{number}.h5" for number in range(5))
    assert refused(many) == [f"no such shard: {named} and 75 more match no file"]
    assert find_shards(source).rows == 4
