from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.checkpoint.arena import Arena, ArraySpec
from hpc_train.checkpoint.async_saver import BackgroundSaver
from hpc_train.checkpoint.disk_io import retried
from hpc_train.checkpoint.format import NotFiniteError, Snapshot
from hpc_train.checkpoint.manager import Best, CheckpointManager
from hpc_train.checkpoint.manifest import DamagedError
from hpc_train.checkpoint.names import (
    Retention,
    damaged_name,
    is_damaged,
    is_temporary,
    passing_name,
)
from hpc_train.data.sampling.sampler import DataOrder, DataProgress
from hpc_train.distributed.tensors import ALIGNMENT
from hpc_train.jobdir.paths import checkpoint_name, step_of
from tests.support import environment


def snapshot(step: int, time: float | None = None, size: int = 4) -> Snapshot:
    model = {
        "gate": np.float32(step) * np.ones((2, 3), np.float32),
        "gate/kernel": np.arange(size, dtype=np.uint32),
        "gate.kernel": np.array(2.5, np.float16),
        "narrow": np.array([1.5, -2], ml_dtypes.bfloat16),
        "mask": np.array([True, False]),
        "none": np.zeros((0, 3), np.float32),
    }
    progress = DataProgress(step, 64 * step, ((0, 4), (128, 2)))
    order = DataOrder(2**63 - 1, "block", 1000, "ab12")
    taken = step + 0.5 if time is None else time
    rng = {"numpy": np.arange(8, dtype=np.uint32).reshape(4, 2)}
    best = {"metric": "loss", "mode": "min", "value": 0.5, "step": 3}
    return Snapshot(
        model, {"adam/iteration": np.array(step, np.int64)}, progress, order, 4, taken, rng, 7, best, SETTINGS
    )


SETTINGS = {"params.rate": "0.1", "params.\u00e9": "\ud800 \x1b", "": "null"}


def manager_of(folder: Path, keep: int = 2, every_hours: float | None = None) -> CheckpointManager:
    return CheckpointManager(folder, Retention(keep, every_hours))


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    manager = manager_of(tmp_path / "c")
    assert manager.latest_step() is None
    assert manager.find_whole().step is None
    assert not (tmp_path / "c").exists()
    saved = snapshot(7)
    path = manager.save(saved)
    assert manager.find_whole() == manager.find_whole().__class__(7, ())
    loaded = manager.load(7)
    assert (loaded.step, loaded.world_size, loaded.time) == (7, 4, 7.5)
    assert (loaded.tf_random_seed, loaded.best, loaded.settings) == (7, saved.best, SETTINGS)
    assert manager.settings(7) == SETTINGS
    assert (loaded.progress, loaded.order) == (saved.progress, saved.order) == manager.progress(7)
    for kind in ("model", "optimizer", "rng"):
        ours, theirs = getattr(saved, kind), getattr(loaded, kind)
        assert list(ours) == list(theirs)
        for name, array in ours.items():
            assert theirs[name].dtype == array.dtype
            np.testing.assert_array_equal(theirs[name], array)
    with h5py.File(path / "state.h5") as file:
        assert file["model/gate.kernel"].attrs["path"] == "gate/kernel"
        assert file["model/mask"].dtype == np.bool_
        assert len(file.attrs["fingerprint"]) == 64
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["step-00000007"]
    assert sorted(p.name for p in path.iterdir()) == ["manifest.json", "state.h5"]


def test_the_newest_stay_and_a_repeated_step_is_replaced(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    for step in (10, 20, 30, 30):
        manager.save(snapshot(step))
    assert manager.steps() == [20, 30]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000020", "step-00000030"]


def test_the_best_stays_until_there_is_a_better_one(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    for step in (10, 20, 30, 40):
        manager.save(snapshot(step))
        if step == 10:
            manager.note_best(Best("loss", "min", 0.5, 10))
    assert manager.steps() == [10, 30, 40]
    assert manager_of(tmp_path).best() == Best("loss", "min", 0.5, 10), "another start remembers it"
    manager.note_best(Best("loss", "min", 0.4, 40))
    manager.save(snapshot(50))
    assert manager.steps() == [40, 50]
    shutil.rmtree(manager.path(40))
    assert manager.best() is None
    best = Best("accuracy", "max", 0.9, 1)
    assert best.beaten_by(0.91)
    assert not best.beaten_by(0.9)
    assert not best.beaten_by(float("nan"))


def test_a_checkpoint_that_another_process_reads_stays(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    manager.save(snapshot(10))
    reader = """
import sys
from pathlib import Path
from hpc_train.checkpoint.names import Retention
from hpc_train.checkpoint.manager import CheckpointManager
with CheckpointManager(Path(sys.argv[1]), Retention(1)).reading(10) as path:
    print(path.name, flush=True)
    sys.stdin.readline()
"""
    with subprocess.Popen(
        [sys.executable, "-c", reader, str(tmp_path)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "step-00000010\n"
            with manager.reading(10):
                for step in (20, 30, 40):
                    manager.save(snapshot(step))
            assert manager.steps() == [10, 30, 40]
            process.communicate("\n", timeout=600)
        finally:
            process.kill()
    manager.thin_out()
    assert manager.steps() == [30, 40]
    with pytest.raises(FileNotFoundError), manager.reading(10):
        pass


def test_what_was_cut_short_is_not_seen_and_is_cleaned_up(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    manager.save(snapshot(10))
    half = tmp_path / passing_name(20, "host-1", "tmp")
    half.mkdir()
    (half / "state.h5").write_bytes(b"half")
    manager.save(snapshot(5)).rename(tmp_path / passing_name(5, "host-1", "gone"))
    (tmp_path / "notes").mkdir()
    assert manager.latest_step() == manager.find_whole().step == 10
    manager.clean()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes", "step-00000010"]


def test_a_save_that_was_cut_short_while_it_replaced_another_is_undone(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    manager.save(snapshot(10)).rename(tmp_path / passing_name(10, "host-1", "old"))
    assert manager.find_whole().step == 10
    manager.clean()
    assert manager.load(10).step == 10
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000010"]


def test_a_damaged_checkpoint_is_passed_over_and_set_aside(tmp_path: Path) -> None:
    manager = manager_of(tmp_path, keep=9)
    for step in (10, 20, 30, 40, 50):
        manager.save(snapshot(step))
    state = manager.path(50) / "state.h5"
    state.write_bytes(state.read_bytes()[:-1])
    (manager.path(40) / "manifest.json").unlink()
    (manager.path(30) / "state.h5").unlink()
    manifest = manager.path(20) / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"step": 20', '"step": 21'))
    found = manager.find_whole()
    assert found.step == 10
    assert [step for step, _ in found.damaged] == [50, 40, 30, 20]
    why = [why for _, why in found.damaged]
    assert "state.h5: " in why[0] and "bytes, but it had" in why[0]
    assert why[1].endswith("step-00000040/manifest.json: missing")
    assert why[2].endswith("step-00000030/state.h5: missing")
    assert "does not match its own digest" in why[3]
    for step, _ in found.damaged:
        manager.put_aside(step)
    assert manager.steps() == [10]
    assert [p.name for p in manager.set_aside()] == [f"step-000000{n}.damaged" for n in (20, 30, 40, 50)]
    manager.save(snapshot(20))
    manager.path(20).joinpath("state.h5").write_bytes(b"")
    assert manager.put_aside(20).name == "step-00000020.damaged-2"


def test_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    manager.save(snapshot(10))
    choose = random.Random(1)
    for name in ("state.h5", "manifest.json"):
        path = manager.path(10) / name
        whole = path.read_bytes()
        for _ in range(150):
            at, bit = choose.randrange(len(whole)), 1 << choose.randrange(8)
            path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
            with pytest.raises(DamagedError):
                manager.check(10, digests=True)
        path.write_bytes(whole)
    assert manager.check(10, digests=True).step == 10


def test_nan_is_not_committed(tmp_path: Path) -> None:
    manager, said = manager_of(tmp_path), []
    saver = BackgroundSaver(
        manager, lambda path, secs, nbytes: said.append(path.name), lambda e, _: said.append(str(e))
    )
    bad = snapshot(20)
    bad.model["gate"][1, 2] = np.nan
    with saver:
        saver.begin(snapshot(10))
        saver.begin(bad)
        with pytest.raises(NotFiniteError, match="model variable gate holds NaN"):
            saver.wait()
        good = snapshot(30)
        good.model["gate"][0] = -np.inf, np.inf, 0
        saver.begin(good)
        saver.wait()
    assert manager.steps() == [10, 30]
    assert said == ["step-00000010", "model variable gate holds NaN", "step-00000030"]


def test_an_error_of_the_writer_is_raised_at_the_next_wait(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("in the way")
    told: list[tuple[BaseException, int]] = []
    failed = lambda *of: told.append(of)
    with BackgroundSaver(manager_of(tmp_path / "c"), lambda *_: None, failed) as saver:
        saver.begin(snapshot(10))
        with pytest.raises(OSError, match="is a file, not a folder"):
            saver.wait()
        assert [nbytes for _, nbytes in told] == [snapshot(10).nbytes]
        (tmp_path / "c").unlink()
        saver.begin(snapshot(20))
        saver.wait()
    assert (tmp_path / "c/step-00000020").is_dir()


def test_passing_errors_are_waited_out_and_others_are_not(monkeypatch: pytest.MonkeyPatch, logged: list[str]) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    errors = [OSError(5, "Input/output error", "f"), OSError(116, "Stale file handle", "f")]

    def falter() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    assert retried(falter) == "done"
    assert len(waits) == 2
    assert "Input/output error: 'f'; trying again in" in logged[0]

    def lasting() -> None:
        raise OSError(5, "Input/output error", "f")

    with pytest.raises(OSError, match="Input/output error"):
        retried(lasting)
    assert 10 < sum(waits) < 60
    waits.clear()

    def full() -> None:
        raise OSError(28, "No space left on device", "f")

    with pytest.raises(OSError, match="No space"):
        retried(full)
    assert not waits


def test_the_arena_is_aligned_and_holds_any_shape() -> None:
    specs = {
        "a": ArraySpec((3, 5), np.dtype(np.float32)),
        "scalar": ArraySpec((), np.dtype(np.int64)),
        "none": ArraySpec((0, 4), np.dtype(np.float32)),
        "narrow": ArraySpec((7,), np.dtype(ml_dtypes.bfloat16)),
    }
    arena = Arena(specs)
    assert arena.nbytes == 60 + 8 + 14
    for i, (name, spec) in enumerate(specs.items()):
        array = arena.arrays[name]
        assert (array.shape, array.dtype) == (spec.shape, spec.dtype)
        assert array.flags.c_contiguous
        if array.size:
            assert array.ctypes.data % ALIGNMENT == 0
            array[...] = i
    assert [float(a.sum()) for a in arena.arrays.values()] == [0, 1, 0, 21]


def test_json_of_the_manifest_tells_what_a_list_needs(tmp_path: Path) -> None:
    manifest = json.loads((manager_of(tmp_path).save(snapshot(10, size=5_000_000)) / "manifest.json").read_text())
    size = (tmp_path / "step-00000010/state.h5").stat().st_size
    assert (manifest["step"], manifest["time"], manifest["world_size"], manifest["bytes"]) == (10, 10.5, 4, size)
    assert len(manifest["sha256"]) == 3, "8 MiB a piece"


@given(st.integers(0, 10**12), st.text(alphabet="abc-.1", min_size=1))
def test_names(step: int, owner: str) -> None:
    assert step_of(checkpoint_name(step)) == step
    for name in (passing_name(step, owner, "tmp"), passing_name(step, owner, "gone"), passing_name(step, owner, "old")):
        assert step_of(name) is None
        assert is_temporary(name)
    assert not is_temporary(checkpoint_name(step))
    aside = damaged_name(step, [])
    assert step_of(aside) is None and is_damaged(aside) and not is_temporary(aside)
    assert damaged_name(step, [aside]) != aside and is_damaged(damaged_name(step, [aside]))


times = st.dictionaries(st.integers(0, 100), st.floats(0, 1e6), max_size=12).map(
    lambda found: list(zip(sorted(found), sorted(found.values()), strict=True))
)


@given(times, st.integers(0, 10), st.none() | st.floats(0.01, 100), st.none() | st.integers(0, 100))
def test_retention(found: list[tuple[int, float]], keep: int, hours: float | None, best: int | None) -> None:
    retention = Retention(keep, hours)
    gone = retention.expired(found, best)
    steps = [step for step, _ in found]
    stay = [item for item in found if item[0] not in gone]
    assert set(gone) <= set(steps)
    assert gone == sorted(gone)
    assert best not in gone
    assert set(steps[-keep:]) <= {step for step, _ in stay}, "the newest stay"
    if keep == 0:
        assert not gone
    if hours is None:
        assert len(stay) <= keep + 1 or keep == 0
    else:
        periods = {int(time // (3600 * hours)) for _, time in found}
        assert periods == {int(time // (3600 * hours)) for _, time in stay}, "one of each period stays"
    assert retention.expired(stay, best) == [], "and no more go when it is asked again"
