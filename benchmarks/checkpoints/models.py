"""The models whose state is saved: dense layers and Adam, so that the state is the weights and two slots of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hpc_train.distributed.allreduce import GradientAllreduce
from hpc_train.distributed.collectives import OneRank
from hpc_train.distributed.world import World
from hpc_train.engine.train_step import Flags, make_train_step
from hpc_train.model.model_state import ModelState

if TYPE_CHECKING:
    import keras

FEATURES, CLASSES = 64, 10


@dataclass(frozen=True)
class Size:
    """How large a state is, and how often it is measured.

    Attributes:
        width: Units of each hidden layer; `layers` counts the output layer, too.
        batch: Rows of a training step.
        rounds: A B B A rounds, two repeats each.
    """

    name: str
    layers: int
    width: int
    batch: int
    rounds: int


@dataclass(frozen=True)
class Subject:
    """A model that trains, and its state as hpc_train sees it.

    Attributes:
        variables: Of the model and of its optimizer, as TensorFlow's.
        nbytes: Of all of them.
        train: Makes one training step, as a job's loop does.
    """

    size: Size
    model: keras.Model
    state: ModelState
    variables: list[Any]
    nbytes: int
    train: Callable[[], None]


def make_subject(size: Size) -> Subject:
    """Builds the model and makes a training step, so that no variable is as it was at first."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    hidden = [keras.layers.Dense(size.width, activation="relu") for _ in range(size.layers - 1)]
    model = keras.Sequential([keras.Input((FEATURES,)), *hidden, keras.layers.Dense(CLASSES)])
    model.compile(keras.optimizers.Adam(1e-4), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.build(model.trainable_variables)
    state = ModelState(model, World(None, local_rank=0, local_size=1))
    state.reserve()
    step = make_train_step(model, GradientAllreduce(OneRank()), state.carried, undo=False)
    random = np.random.default_rng(1)
    rows = tf.constant(random.normal(size=(size.batch, FEATURES)).astype(np.float32))
    batch = (rows, tf.constant(random.integers(CLASSES, size=size.batch)))

    def train() -> None:
        if not step(batch, Flags()).applied:
            raise RuntimeError("a training step failed: nothing here is worth measuring")

    train()
    variables = [*model.variables, *model.optimizer.variables]
    return Subject(
        size,
        model,
        state,
        [v.value for v in variables],
        sum(_nbytes(v) for v in variables),
        train,
    )


def _nbytes(variable: Any) -> int:
    return int(np.prod(variable.shape, dtype=np.int64)) * np.dtype(variable.dtype).itemsize
