"""Statistics over ranks: the same to the bit on any number, and one message where a rank fails."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.support import BIN, REPOSITORY, run_ranks

PROGRAM = REPOSITORY / "tests" / "parallel" / "programs" / "map_reduce.py"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Slices of 1 to 9, a tenth and nine tenths of the rows, with values that differ."""
    folder, chance = tmp_path_factory.mktemp("shards"), np.random.default_rng(0)
    for number, rows in enumerate([3000, 27_000]):
        with h5py.File(folder / f"train-{number}.h5", "w") as file:
            file["x"] = chance.normal(number, 3, (rows, 2))
            file["code"] = chance.zipf(1.5, rows) % 1000
            words = chance.choice(np.array(["a", "ö", "the", ""], object), rows)
            file.create_dataset("word", data=words, dtype=h5py.string_dtype(), chunks=(500,), compression="gzip")
    return folder


def test_results_are_the_same_on_any_number_of_ranks_and_equal_numpys(shards: Path, tmp_path: Path) -> None:
    for ranks in (1, 2, 3, 4):
        done = run_ranks(ranks, [PROGRAM, str(shards / "train-*.h5"), tmp_path], tmp_path, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads((tmp_path / f"{ranks}.json").read_text()) for ranks in (1, 2, 3, 4)]
    assert all(one == found[0] for one in found)
    parts = []
    for number in range(2):
        with h5py.File(shards / f"train-{number}.h5") as file:
            parts.append(file["x"][:])
    whole = np.concatenate(parts).mean(axis=0)
    np.testing.assert_allclose(found[0]["mean"], whole, rtol=0, atol=1e-12)
    without_weights = np.mean([part.mean(axis=0) for part in parts], axis=0)
    assert np.abs(without_weights - whole).min() > 0.3


FAILING = """\
import sys
import threading
import time
from pathlib import Path
import numpy as np
import hpc_train as ht
from hpc_train.distributed.startup import join_world
from hpc_train.errors import UserError

world, r, kind, rank = join_world(), ht.reducers, sys.argv[2], int(sys.argv[3])
calls = []

def map_fn(rows):
    calls.append(1)
    Path(f"begun-{world.rank}").touch()
    while len(list(Path().glob("begun-*"))) < world.size:
        time.sleep(0.01)  # so that each rank has a block
    while kind == "interrupt" and world.rank != rank and not Path("waiting").exists():
        time.sleep(0.01)  # so that the chief has to wait for the others
    if world.rank == rank:
        if kind == "user":
            raise UserError("column x: what it holds is not allowed")
        if kind == "map":
            raise ZeroDivisionError("by hand")
    return rows["x"]

def merge(one, two):
    if kind in ("merge", "exit") and world.rank == rank and one["ranks"] != two["ranks"]:
        raise ZeroDivisionError("by hand") if kind == "merge" else SystemExit(7)
    return {"ranks": sorted({*one["ranks"], *two["ranks"]})}

def join(thread, timeout=None):
    if thread.name == "hpc_train-dealer" and not calls[-1] is None:
        calls.append(None)
        Path("waiting").touch()
        raise KeyboardInterrupt
    return real_join(thread, timeout)

real_join = threading.Thread.join
if kind == "interrupt":
    threading.Thread.join = join

mine = r.Custom(lambda: {"ranks": [world.rank]}, lambda state, values: state, merge)
try:
    ht.map_reduce(map_fn, mine if kind in ("merge", "exit") else r.Mean(),
                  ht.HDF5Input(sys.argv[1], features="x", label=()))
except BaseException as error:
    print(f"rank {world.rank} of {world.size}: {type(error).__name__}: {error}", flush=True)
    raise
"""


@pytest.mark.parametrize(
    ("kind", "rank", "said", "code"),
    [
        ("user", 0, "column x: what it holds is not allowed", 2),
        ("user", 2, "column x: what it holds is not allowed", 2),
        ("map", 0, "ZeroDivisionError: by hand", 1),
        ("map", 1, "ZeroDivisionError: by hand", 1),
        ("merge", 0, "ZeroDivisionError: by hand", 1),
    ],
)
def test_a_rank_that_fails_ends_all_with_one_message(
    shards: Path, tmp_path: Path, kind: str, rank: int, said: str, code: int
) -> None:
    (tmp_path / "program.py").write_text(FAILING)
    words = [tmp_path / "program.py", str(shards / "train-*.h5"), kind, str(rank)]
    done = run_ranks(3, words, tmp_path, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr.count(said) == 1, done.stderr
    assert done.stdout.count("of 3: ") == 3, "all ranks are given an error"
    assert ("Traceback" in done.stderr) == (kind != "user")


@pytest.mark.parametrize(
    ("kind", "rank", "said"), [("exit", 0, "SystemExit: 7"), ("interrupt", 0, "KeyboardInterrupt")]
)
def test_a_rank_that_is_told_to_leave_leaves_no_one_waiting(
    shards: Path, tmp_path: Path, kind: str, rank: int, said: str
) -> None:
    (tmp_path / "program.py").write_text(FAILING)
    words = [tmp_path / "program.py", str(shards / "train-*.h5"), kind, str(rank)]
    done = run_ranks(3, words, tmp_path, timeout=300)
    assert done.returncode != 0
    assert done.stdout.count("of 3: RankError: rank 0: ") == 2, done.stdout
    assert f"rank {rank} of 3: {said}" in done.stdout


def test_the_command_on_several_ranks_is_that_on_one(shards: Path, tmp_path: Path) -> None:
    command = [BIN / "hpc-train", "stats", str(shards / "train-*.h5"), "--json"]
    printed = []
    for ranks in (1, 3):
        done = run_ranks(ranks, command, tmp_path, timeout=300)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0] == printed[1]
    assert json.loads(printed[0])["rows"] == 30_000
    done = run_ranks(2, [BIN / "hpc-train", "stats", str(tmp_path / "no-*.h5")], tmp_path, timeout=300)
    assert done.returncode == 2
    assert done.stderr.count("hpc-train: error:") == 1, done.stderr
