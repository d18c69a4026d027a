"""`hpc-train predict` gives the same files on any number of ranks, and goes on where a killed run was."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.support import REPOSITORY, run_ranks

PROGRAM = REPOSITORY / "tests" / "parallel" / "programs" / "predict.py"
ROWS = (3000, 17, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    tf = pytest.importorskip("tensorflow")
    place = tmp_path_factory.mktemp("predict")
    module = tf.Module()
    module.weights = tf.Variable(np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32))
    module.serve = tf.function(
        lambda x: {"scores": tf.nn.softmax(x @ module.weights)}, input_signature=[tf.TensorSpec([None, 8], name="x")]
    )
    tf.saved_model.save(module, str(place / "export" / "1"), signatures=module.serve)
    for i, count in enumerate(ROWS):
        with h5py.File(place / f"x-{i}.h5", "w") as file:
            file["x"] = np.random.default_rng(i).normal(size=(count, 8)).astype(np.float32)
    return place


def predict(folder: Path, ranks: int, out: str, shards: str = "x-*.h5", **env: str):
    program = [PROGRAM, "export", "--shards", shards, "--out", f"{out}/p-*.h5", "--batch-size", "32"]
    return run_ranks(ranks, program, folder, **env)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def alone(folder) -> dict[str, bytes]:
    ended = predict(folder, 0, "alone")
    assert ended.returncode == 0, ended.stderr
    assert f"done: {sum(ROWS):,} rows predicted" in ended.stdout
    return files(folder / "alone")


def test_several_ranks_write_the_same_bytes(folder, alone):
    ended = predict(folder, 4, "on-4")
    assert ended.returncode == 0, ended.stderr
    assert files(folder / "on-4") == alone
    assert ended.stdout.count("done: ") == 1
    assert [f"p-{i}.h5: {rows:,} rows" in ended.stdout for i, rows in enumerate(ROWS)] == [True] * 3


def test_a_killed_run_goes_on_from_its_parts_on_another_number_of_ranks(folder, alone):
    killed = predict(folder, 2, "killed", KILL_AFTER="640")
    assert killed.returncode != 0
    parts = [path for path in (folder / "killed").iterdir() if path.name.endswith(".part")]
    assert parts and not (folder / "killed" / "p-0.h5").exists()
    ended = predict(folder, 1, "killed")
    assert ended.returncode == 0, ended.stderr
    assert "rows were there" in ended.stdout
    assert files(folder / "killed") == alone


def test_a_mistake_is_told_once_and_nothing_is_written(folder):
    ended = predict(folder, 2, "bad", shards="y-*.h5")
    assert ended.returncode == 2
    assert ended.stderr.count("hpc-train: error: no such shard: y-*.h5 matches no file") == 1
    assert not (folder / "bad").exists()
