"""Parts of a checkpoint's arrays, read block by block."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train.checkpoint import format as checkpoint_format
from hpc_train.checkpoint.format import Snapshot, StoredArray
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.manifest import DamagedError
from hpc_train.checkpoint.names import Retention
from hpc_train.data.sampling.sampler import DataProgress
from hpc_train.distributed.share import Share
from tests.support import examples

SHAPES = [(7,), (5, 4), (3, 1, 6), (0, 3), (2, 3, 4, 2)]


@st.composite
def shares(draw: st.DrawFn) -> Share:
    """Any part of an array of one of SHAPES."""
    shape = draw(st.sampled_from(SHAPES))
    axis = draw(st.integers(0, len(shape) - 1))
    start, stop = sorted(draw(st.lists(st.integers(0, shape[axis]), min_size=2, max_size=2)))
    box = Share(shape, axis, start, stop)
    first, last = sorted(draw(st.lists(st.integers(0, box.size), min_size=2, max_size=2)))
    return box.narrowed(first, last) if draw(st.booleans()) else box


def whole(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(math.prod(shape)).astype(ml_dtypes.bfloat16).reshape(shape)


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> CheckpointManager:
    """With a checkpoint of arrays of SHAPES, each named by Keras as the second of its kind."""
    found = CheckpointManager(tmp_path_factory.mktemp("parts"), Retention(0))
    model = {f"layer_{shape}_1/kernel": whole(shape) for shape in SHAPES}
    found.save(Snapshot(model, {"rate": np.array(0.5)}, DataProgress(3, 0, ((0, 1),)), None, 1, 1.0))
    return found


@given(share=shares(), block=st.integers(1, 40))
@settings(max_examples=examples(150), deadline=None)
@pytest.mark.random
def test_blocks_put_together_are_the_part(share: Share, block: int, manager: CheckpointManager) -> None:
    name = f"model/layer_{share.shape}_7/kernel"
    left = manager.load(3, [name]).model[f"layer_{share.shape}_1/kernel"]
    assert isinstance(left, StoredArray)
    assert (left.shape, left.dtype) == (share.shape, np.dtype(ml_dtypes.bfloat16))
    taken: list[tuple[str, np.ndarray]] = []
    read, sizes = checkpoint_format._rows, []

    def rows(*given: Any) -> np.ndarray:
        sizes.append((found := read(*given)).nbytes)
        return found

    with patch.object(checkpoint_format, "BLOCK_BYTES", block), patch.object(checkpoint_format, "_rows", rows):
        manager.load_parts(3, {"part": (left.dataset, share)}, lambda *part: taken.append(part))
    ((given, part),) = taken
    assert all(size <= block + 2 * 2 * math.prod(share.box[1:]) for size in sizes), "a block, and two rows"
    assert (given, part.shape, part.dtype) == ("part", share.held, left.dtype)
    assert part.tobytes() == share.of(whole(share.shape)).tobytes()


def test_what_is_not_left_is_there_and_what_has_changed_is_damage(manager: CheckpointManager) -> None:
    snapshot = manager.load(3, ["model/layer_(7,)/kernel"])
    assert snapshot.optimizer == {"rate": 0.5}
    assert isinstance(snapshot.model["layer_(7,)_1/kernel"], StoredArray)
    assert snapshot.model["layer_(5, 4)_1/kernel"].tobytes() == whole((5, 4)).tobytes()
    taken: list[np.ndarray] = []
    left = snapshot.model["layer_(7,)_1/kernel"].dataset
    manager.load_parts(3, {"": (left, None)}, lambda name, part: taken.append(part))
    assert taken[0].tobytes() == whole((7,)).tobytes()
    with pytest.raises(DamagedError, match="is not of the shape that it had"):
        manager.load_parts(3, {"": (left, Share((8,)))}, lambda name, part: None)
    with pytest.raises(DamagedError, match="its values do not lie in the file as a checkpoint's do"):
        manager.load_parts(3, {"": ("/model/none", None)}, lambda name, part: None)
    with pytest.raises(FileNotFoundError):
        manager.load_parts(4, {}, lambda name, part: None)
