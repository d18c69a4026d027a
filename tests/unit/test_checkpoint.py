from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.layout import checkpoint_name, expired, is_temporary, replaced_name, step_of, temporary_name
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.data.sampler import DataOrder, DataProgress


def snapshot(step: int) -> Snapshot:
    import ml_dtypes

    model = {
        "gate": np.float32(step) * np.ones((2, 3), np.float32),
        "gate/kernel": np.arange(4, dtype=np.uint32),
        "gate.kernel": np.array(2.5, np.float16),
        "narrow": np.array([1.5, -2], ml_dtypes.bfloat16),
    }
    progress = DataProgress(step, 64 * step, ((0, 4), (128, 2)))
    order = DataOrder(2**63 - 1, "block", 1000, "ab12")
    return Snapshot(model, {"adam/iteration": np.array(step, np.int64)}, progress, order, 4, step + 0.5)


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path / "c", 5)
    assert manager.latest_step() is None
    assert not (tmp_path / "c").exists()
    saved = snapshot(7)
    path = manager.save(saved)
    loaded = manager.load(7)
    assert (loaded.step, loaded.world_size, loaded.time) == (7, 4, 7.5)
    assert (loaded.progress, loaded.order) == (saved.progress, saved.order) == manager.progress(7)
    assert list(loaded.model) == list(saved.model)
    for name, array in saved.model.items():
        assert loaded.model[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded.model[name], array)
    with h5py.File(path / "state.h5") as file:
        assert file["model/gate.kernel"].attrs["path"] == "gate/kernel"
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["step-00000007"]


def test_the_newest_stay_and_a_repeated_step_is_replaced(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, 2)
    for step in (10, 20, 30, 30):
        manager.save(snapshot(step))
    assert manager.steps() == [20, 30]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000020", "step-00000030"]


def test_a_save_that_was_cut_short_is_not_seen_and_is_cleaned_up(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, 2)
    manager.save(snapshot(10))
    half = tmp_path / temporary_name(20, "host-1")
    half.mkdir()
    (half / "state.h5").write_bytes(b"half")
    (tmp_path / "notes").mkdir()
    assert manager.latest_step() == 10
    manager.clean()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes", "step-00000010"]


def test_a_save_that_was_cut_short_while_it_replaced_another_is_undone(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, 2)
    manager.save(snapshot(10)).rename(tmp_path / replaced_name(10, "host-1"))
    manager.clean()
    assert manager.load(10).step == 10
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000010"]


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, 2)
    path = manager.save(snapshot(10)) / "state.h5"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(OSError, match=r"step-00000010/state.h5: not a readable checkpoint"):
        manager.load(10)


@given(st.integers(0, 10**12), st.text(alphabet="abc-.1", min_size=1))
def test_names(step: int, owner: str) -> None:
    assert step_of(checkpoint_name(step)) == step
    assert step_of(temporary_name(step, owner)) is None
    assert is_temporary(temporary_name(step, owner))
    assert not is_temporary(checkpoint_name(step))


@given(st.sets(st.integers(0, 100)), st.integers(0, 10))
def test_retention(steps: set[int], keep: int) -> None:
    gone = expired(steps, keep)
    stay = steps - set(gone)
    assert len(stay) == (min(keep, len(steps)) if keep else len(steps))
    assert not gone or max(gone) < min(stay)
