"""Variables of which a rank holds a part: their slots, their names, and what a warm start gives them."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention
from hpc_train.config.warm_start import WarmStartSettings
from hpc_train.data.sampling.sampler import DataProgress
from hpc_train.distributed.share import Share, averaged_over, set_share, share_of
from hpc_train.distributed.world import World
from hpc_train.model.model_state import ModelState, by_path
from hpc_train.model.own_steps import updates_of
from hpc_train.warm_start.apply import warm_start

SHARE = Share((4, 6), 1, 2, 5)


class Divided(keras.layers.Layer):
    """A layer that holds three of the six columns of its kernel, or all."""

    def __init__(self, divided: bool) -> None:
        super().__init__(name="divided")
        self._divided = divided

    def build(self, _: object) -> None:
        self.kernel = self.add_weight(shape=SHARE.held if self._divided else SHARE.shape, name="kernel")
        self.bias = self.add_weight(shape=(3,), name="bias")
        if self._divided:
            set_share(self.kernel, SHARE, "data")

    def call(self, inputs: object) -> object:
        return inputs


def model_with(optimizer: keras.optimizers.Optimizer, divided: bool = True) -> keras.Model:
    keras.utils.clear_session()
    model = keras.Sequential([keras.Input((4,)), Divided(divided), keras.layers.Dense(1, name="last")])
    model.compile(optimizer, "mse")
    return model


OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(),
    "momentum and averages": lambda: keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
    "rows and columns": lambda: keras.optimizers.Adafactor(),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_state_has_the_names_and_shapes_of_the_model_on_one_rank(name: str) -> None:
    models = [model_with(OPTIMIZERS[name](), divided) for divided in (True, False)]
    updates = [updates_of(model, None, "model_fn") for model in models]
    ours, theirs = (ModelState(m, World.alone(), u) for m, u in zip(models, updates, strict=True))
    slots = [slot for own in updates[0].variables.slots for slot in own if tuple(slot.shape) == SHARE.held]
    assert len(ours.divided) == 1 + len(slots)
    assert all(share_of(slot) == SHARE and averaged_over(slot) == "data" for slot in slots)
    if name != "rows and columns":  # whose other slots tell the shape of what it was built on
        assert len(slots) == 2
        assert ours.signatures() == theirs.signatures()
    assert not theirs.divided


def test_a_warm_start_gives_each_rank_its_part(tmp_path: Path) -> None:
    model = model_with(keras.optimizers.Adam())
    kernel = np.arange(24, dtype=np.float32).reshape(SHARE.shape)
    there = {name: np.ones(v.shape, np.float32) for name, v in by_path(model.variables).items()}
    path = next(name for name in there if name.endswith("divided/kernel"))
    saved = Snapshot({**there, path: kernel}, {}, DataProgress(1, 0, ((0, 1),)), None, 1, 1.0)
    at = CheckpointManager(tmp_path / "checkpoints", Retention(0)).save(saved)
    warm_start(World.alone(), model, WarmStartSettings(ckpt_to_initialize_from=str(at)), tmp_path / "other")
    assert np.array_equal(by_path(model.variables)[path].numpy(), SHARE.of(kernel))
