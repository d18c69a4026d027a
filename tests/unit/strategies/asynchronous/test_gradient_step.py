"""A worker's step: what it finds out about gradients and state, and what it leaves behind where numbers are bad."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from hpc_train.distributed.partition import VariableSpec, partition
from hpc_train.distributed.tensors import aligned_zeros, dtype_of
from hpc_train.engine.steps_in_flight import Stream
from hpc_train.strategies.asynchronous.gradient_step import GradientStep
from hpc_train.strategies.asynchronous.worker import Bound

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")


class Gathers(keras.layers.Layer):
    """Takes rows out of a variable with TensorFlow's own gather; it then copies what it is assigned."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=(10, 3), name="table")

    def call(self, x: Any) -> Any:
        return tf.gather(self.table.value, tf.cast(tf.abs(x) * 2, tf.int32) % 10)


class Counts(keras.layers.Layer):
    """Counts its calls, in an integer, and keeps a running sum though it is frozen."""

    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls")
        self.total = self.add_weight(shape=(), initializer="zeros", trainable=False, name="total")
        self.unused = self.add_weight(shape=(4,), initializer="zeros", trainable=False, name="unused")

    def call(self, x: Any) -> Any:
        self.calls.assign_add(1)
        self.total.assign_add(tf.reduce_sum(x))
        return x + self.unused[0]


def step_of(*layers: Any, clip: bool = False, optimizer: Any = "sgd") -> tuple[Any, GradientStep, Any]:
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    batch = tf.constant(np.random.default_rng(0).normal(size=(5, 8)), tf.float32), tf.constant([0, 1, 2, 3, 0])
    spec = tf.TensorSpec([None, 8], tf.float32), tf.TensorSpec([None], tf.int32)
    return model, GradientStep(model, spec, model.non_trainable_variables, clip), batch


def test_state_that_layers_change_is_found_and_taken_back_where_numbers_are_bad() -> None:
    counts = Counts(trainable=False)
    model, step, (x, y) = step_of(counts, keras.layers.BatchNormalization(), keras.layers.Dense(4))
    names = [model.non_trainable_variables[number].name for number in step.changed]
    assert names == ["calls", "total", "moving_mean", "moving_variance"]
    assert step((x, y))().finite
    before = [v.numpy() for v in model.non_trainable_variables]
    assert counts.calls.numpy() == 1
    assert not step((x * np.nan, y))().finite
    for variable, value in zip(model.non_trainable_variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert step((x, y))().finite
    assert counts.calls.numpy() == 2


def test_kinds_of_gradients() -> None:
    class Idle(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.unused = self.add_weight(shape=(2,), name="unused")

        def call(self, x: Any) -> Any:
            return x

    integers = keras.layers.Lambda(lambda x: keras.ops.cast(keras.ops.abs(x) * 2, "int32") % 10)
    flat = keras.layers.Flatten()
    _, step, (x, y) = step_of(integers, keras.layers.Embedding(10, 3), flat, Idle(), keras.layers.Dense(4))
    assert step.kinds == ["rows", "none", "dense", "dense"]
    assert step.only_reads
    rows, unused, kernel, _ = step((x, y))().gradients
    assert isinstance(rows, tuple)
    assert len(set(rows[0].tolist())) == len(rows[0]) == len(rows[1]), "each row once"
    assert unused is None
    assert isinstance(kernel, np.ndarray)
    assert kernel.shape == (24, 4)


@pytest.mark.parametrize("clip", [{"clipnorm": 0.1}, {"global_clipnorm": 0.1}, {"clipvalue": 0.01}])
def test_gradients_are_clipped_as_the_optimizer_would(clip: dict[str, float]) -> None:
    layers = [keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(4)]
    model, clipped, batch = step_of(*layers, clip=True, optimizer=keras.optimizers.SGD(0.1, **clip))
    plain = GradientStep(model, (batch[0], batch[1]), model.non_trainable_variables, clip=False)
    wanted = model.optimizer._clip_gradients([tf.constant(g) for g in plain(batch)().gradients])
    for ours, theirs in zip(clipped(batch)().gradients, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-8)


def spectral() -> Any:
    return keras.layers.SpectralNormalization(keras.layers.Dense(3))


@pytest.mark.parametrize(
    ("layer", "reads"), [(lambda: keras.layers.Dense(3), True), (Gathers, False), (spectral, False)]
)
def test_variables_follow_the_arena_whatever_layers_do_to_them(layer: Any, reads: bool) -> None:
    model, step, batch = step_of(layer(), keras.layers.Flatten(), keras.layers.Dense(4))
    assert step.only_reads == reads
    assert step.assigned == ([model.layers[0].layer.kernel.path] if layer is spectral else [])
    variables = model.trainable_variables
    plan = partition([VariableSpec(tuple(v.shape), dtype_of(v)) for v in variables], 1)
    arena = aligned_zeros(plan.nbytes)
    views = [piece.view(arena) for piece in plan.pieces(0)]
    bound = Bound(variables, plan, arena, step.only_reads)
    for number in range(1, 4):
        for view in views:
            view[...] = number
        bound.refresh()
        for variable in variables:
            np.testing.assert_array_equal(variable.numpy(), np.full(variable.shape, number, np.float32))
        step(batch)()


@pytest.mark.parametrize("depth", [1, 3])
def test_each_step_in_flight_computes_with_the_parameters_that_it_was_dispatched_with(depth: int) -> None:
    may_run = threading.Event()

    class Waits(keras.layers.Layer):
        """Reads its weight when it may; the gradient of the loss is the weight itself."""

        def build(self, shape: Any) -> None:
            self.weight = self.add_weight(shape=(4,), initializer="ones")

        def call(self, x: Any) -> Any:
            def wait(rows: np.ndarray) -> np.ndarray:
                may_run.wait()
                return rows

            with tf.control_dependencies([tf.numpy_function(wait, [x], tf.float32)]):
                return x[:, :1] * keras.ops.sum(keras.ops.square(self.weight)) / 2

    model = keras.Sequential([keras.Input((1,)), Waits()])
    model.compile(keras.optimizers.SGD(), lambda y, predicted: predicted)
    batch = tf.ones([1, 1]), tf.ones([1, 1])
    step = GradientStep(model, batch, [], clip=False)
    variables, stream = model.trainable_variables, Stream(depth)
    plan = partition([VariableSpec((4,), np.dtype(np.float32))], 1)
    bound = Bound(variables, plan, aligned_zeros(plan.nbytes), step.only_reads, depth)
    for _ in range(2):  # the arenas are used again
        may_run.clear()
        in_flight = []
        for number in range(depth + 1):
            plan.pieces(0)[0].view(bound.arena)[...] = number
            with stream.dispatching():
                bound.refresh()
                in_flight.append(step(batch))
        may_run.set()
        for number, gradients in enumerate(in_flight):
            np.testing.assert_array_equal(gradients().gradients[0], np.full(4, number, np.float32))
