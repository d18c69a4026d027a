"""A model's sizes are those of the real model; what it takes to compute a step is near to what it really takes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hpc_train.config.estimator import Estimator
from hpc_train.config.run_config import RunConfig
from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.tensors import nbytes_of
from hpc_train.planning.holdings import ModelSizes
from hpc_train.planning.model_sizes import sizes_of
from tests.support import LIMIT_SECS, environment

layers = keras.layers
BATCH = 8


def model_of(inner: list[Any], shape: tuple[int, ...], optimizer: Any) -> keras.Model:
    model = keras.Sequential([keras.Input(shape), *inner, layers.Dense(4)])
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def dense(optimizer: Any) -> keras.Model:
    return model_of(
        [layers.Dense(32, activation="relu"), layers.BatchNormalization(), layers.Dropout(0.1)], (8,), optimizer
    )


def measured(model: Callable[[], keras.Model], shape: tuple[int, ...], **config: Any) -> ModelSizes:
    rows = np.zeros((BATCH, *shape), np.float32), np.zeros(BATCH, np.int64)
    dataset = tf.data.Dataset.from_tensor_slices(rows).batch(BATCH, drop_remainder=True)
    estimator = Estimator(lambda params: model(), RunConfig(model_dir=None, **config), {})
    return sizes_of(estimator, dataset, Mesh(), config.get("accumulate_steps", 1))[0]


OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(),
    "sgd": lambda: keras.optimizers.SGD(),
    "averages": lambda: keras.optimizers.SGD(momentum=0.9, use_ema=True),
    "adafactor": lambda: keras.optimizers.Adafactor(),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
    "accumulating": lambda: keras.optimizers.Adam(gradient_accumulation_steps=2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bytes_are_those_of_the_real_model(name: str) -> None:
    found = measured(lambda: dense(OPTIMIZERS[name]()), (8,))
    model = dense(OPTIMIZERS[name]())
    model.optimizer.build(model.trainable_variables)
    assert found.parameters == sum(map(nbytes_of, model.trainable_variables))
    assert found.optimizer == sum(map(nbytes_of, model.optimizer.variables))
    assert found.state == sum(map(nbytes_of, model.non_trainable_variables))
    assert found.carried == 2 * 32 * 4, "batch normalization's moving mean and variance"
    assert [v.elements for v in found.variables] == [int(np.prod(v.shape)) for v in model.trainable_variables]


def test_a_model_far_larger_than_the_memory_takes_none() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    found = measured(lambda: model_of([layers.Dense(200_000), layers.Dense(200_000)], (8,), "adam"), (8,))
    assert found.parameters > 160e9
    assert found.optimizer == pytest.approx(2 * found.parameters)
    assert resident() - before < 1e9
    assert keras.Variable(keras.initializers.Ones(), shape=(1 << 20,)).numpy().all(), "Keras is as it was"


def test_pieces_of_a_batch_need_less() -> None:
    inner = lambda: [layers.Dense(256, activation="relu"), layers.Dense(256, activation="relu")]
    whole = measured(lambda: model_of(inner(), (8,), "sgd"), (8,))
    piece = measured(lambda: model_of(inner(), (8,), "sgd"), (8,), accumulate_steps=4)
    assert whole.activations is not None
    assert piece.activations is not None
    assert piece.activations < whole.activations / 3


def test_a_model_with_a_train_step_of_its_own() -> None:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = layers.Dense(4)

        def call(self, x: Any) -> Any:
            return self.inner(x)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x=x, y=y, y_pred=self(x))
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    def own() -> keras.Model:
        model = Own()
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    found = measured(own, (8,))
    assert found.parameters == (8 * 4 + 4) * 4
    assert found.optimizer == 2 * found.parameters + found.common
    assert found.activations


def test_activations_of_a_model_that_runs_as_python_are_not_known() -> None:
    def eager() -> keras.Model:
        model = dense("adam")
        model.run_eagerly = True
        return model

    assert measured(eager, (8,)).activations is None


PEAK = """
import sys
import numpy as np, tensorflow as tf, keras
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
from hpc_train.config.estimator import Estimator
from hpc_train.config.run_config import RunConfig
from hpc_train.distributed.mesh import Mesh
from hpc_train.model.backward import loss_and_gradients
from hpc_train.planning.model_sizes import sizes_of
L = keras.layers
def image():
    found = [L.Conv2D(32, 3, padding="same"), L.BatchNormalization(), L.ReLU(), L.MaxPooling2D()]
    return (64, 64, 3), 64, [*found, L.Conv2D(64, 3, padding="same"), L.ReLU(), L.GlobalAveragePooling2D()]
def recurrent(): return (64, 64), 128, [L.LSTM(256, return_sequences=True), L.LSTM(256)]
def attention():
    i = keras.Input((128, 128))
    x = i
    for _ in range(3):
        x = x + L.MultiHeadAttention(4, 32)(L.LayerNormalization()(x), x, use_causal_mask=True)
        x = x + L.Dense(128)(L.Dense(512, activation="gelu")(L.LayerNormalization()(x)))
    return (128, 128), 32, [keras.Model(i, x), L.GlobalAveragePooling1D()]
shape, batch, _ = globals()[sys.argv[1]]()
def build(params=None):
    model = keras.Sequential([keras.Input(shape), *globals()[sys.argv[1]]()[2], L.Dense(10)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
rows = np.ones((batch, *shape), np.float32), np.ones(batch, np.int64)
dataset = tf.data.Dataset.from_tensor_slices(rows).batch(batch, drop_remainder=True)
found = sizes_of(Estimator(lambda params: build(), RunConfig(model_dir="unused"), {}), dataset, Mesh())[0]
model, given = build(), tuple(map(tf.constant, rows))
step = tf.function(lambda b: loss_and_gradients(model, b).gradients, autograph=False)
step = step.get_concrete_function(tf.nest.map_structure(tf.type_spec_from_value, given))
def status(name):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(name))
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
kept = step(given)
print((found.activations + found.parameters) / (status("VmHWM") - before))
"""


@pytest.mark.parametrize("kind", ["image", "recurrent", "attention"])
def test_activations_are_near_to_what_a_step_takes(kind: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PEAK, kind],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECS,
    )
    assert done.returncode == 0, done.stderr
    assert 0.5 < float(done.stdout.split()[-1]) < 1.5
