"""A batch computed in pieces gives what it gives at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpc_train.distributed.allreduce import GradientAllreduce
from hpc_train.distributed.collectives import OneRank
from hpc_train.engine.step_report import Flags
from hpc_train.engine.train_step import make_train_step
from hpc_train.errors import UserError
from hpc_train.model.backward import check_accumulation, loss_and_gradients
from hpc_train.strategies.asynchronous.gradient_step import GradientStep

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
layers = keras.layers


class Unused(layers.Layer):
    def build(self, shape: Any) -> None:
        self.unused = self.add_weight(shape=(2,), name="unused")

    def call(self, x: Any) -> Any:
        self.add_loss(keras.ops.mean(keras.ops.square(x)))
        return x


def compiled(*parts: Any, optimizer: Any = "sgd") -> Any:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((8,)), *parts])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    model.optimizer.build(model.trainable_variables)
    model(tf.zeros([1, 8]))
    return model


def batch_of(rows: int, weighted: bool = False) -> tuple[Any, ...]:
    random = np.random.default_rng(rows)
    x = tf.constant(random.normal(size=(rows, 8)), tf.float32)
    y = tf.constant(random.integers(0, 4, rows))
    return (x, y, tf.constant(random.uniform(0, 3, rows), tf.float32)) if weighted else (x, y)


def gradients_of(model: Any, batch: Any, pieces: int) -> tuple[float, list[Any]]:
    backward = tf.function(lambda batch: (lambda b: (b.loss, b.gradients))(loss_and_gradients(model, batch, pieces)))
    loss, gradients = backward(batch)
    return float(loss), [None if g is None else tf.convert_to_tensor(g).numpy() for g in gradients]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("rows", "pieces"), [(12, 4), (10, 4), (5, 4), (3, 7), (1, 2)])
def test_loss_and_gradients_are_those_of_the_whole_batch(rows: int, pieces: int, weighted: bool) -> None:
    """Even and uneven pieces, pieces without rows, sample weights, regularisation, an embedding, an unused variable."""
    integers = layers.Lambda(lambda x: keras.ops.cast(keras.ops.abs(x) * 2, "int32") % 10)
    regular = layers.Dense(4, kernel_regularizer="l2", activity_regularizer="l2")
    model = compiled(integers, layers.Embedding(10, 3), layers.Flatten(), Unused(), regular)
    loss, whole = gradients_of(model, batch_of(rows, weighted), 1)
    loss_in_pieces, in_pieces = gradients_of(model, batch_of(rows, weighted), pieces)
    assert loss_in_pieces == pytest.approx(loss, rel=1e-6)
    assert [g is None for g in in_pieces] == [False, True, False, False]
    for ours, theirs in zip(in_pieces, whole, strict=True):
        if theirs is not None:
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_a_step_in_pieces_is_a_step_and_takes_back_state_where_numbers_are_bad() -> None:
    parts = layers.Dense(8, activation="tanh"), layers.Dense(4)
    one, two = (compiled(*map(clone, parts), optimizer=keras.optimizers.Adam(0.01)) for _ in range(2))
    two.set_weights(one.get_weights())
    for model, pieces in ((one, 1), (two, 3)):
        step = make_train_step(
            model, GradientAllreduce(OneRank()), model.non_trainable_variables, undo=True, accumulate_steps=pieces
        )
        reports = [step(batch_of(rows), Flags())() for rows in (12, 12, 10, 2)]
        assert all(report.applied and report.communication_secs == 0 < report.apply_secs < 60 for report in reports)
        assert step(batch_of(12), Flags(finish=True))().raised == Flags(finish=True)
        assert int(model.optimizer.iterations) == 5
    for ours, theirs in zip(one.variables, two.variables, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-6)
    model = compiled(layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(4), layers.Rescaling(2.0))
    state = model.non_trainable_variables
    step = make_train_step(model, GradientAllreduce(OneRank()), state, undo=True, accumulate_steps=2)
    before = [v.numpy() for v in state]
    x, y = batch_of(6)
    bad = step((tf.concat([x[:5], x[5:] * np.nan], axis=0), y), Flags())()
    assert not bad.applied
    assert bad.to_blame
    assert all(np.array_equal(v.numpy(), b) for v, b in zip(state, before, strict=True))
    assert step((x, y), Flags())().applied
    assert not any(np.array_equal(v.numpy(), b) for v, b in zip(state, before, strict=True))


def clone(layer: Any) -> Any:
    return type(layer).from_config(layer.get_config())


def test_a_worker_finds_out_the_same_about_a_batch_in_pieces() -> None:
    """Which state changes, that trainable variables are only read; gradients of embeddings are whole."""
    integers = layers.Lambda(lambda x: keras.ops.cast(keras.ops.abs(x) * 2, "int32") % 10)
    frozen = layers.Dense(6, trainable=False)
    parts = frozen, integers, layers.Embedding(10, 3), layers.Flatten(), layers.BatchNormalization(), layers.Dense(4)
    model = compiled(*parts)
    spec = tf.TensorSpec([None, 8], tf.float32), tf.TensorSpec([None], tf.int64)
    step = GradientStep(model, spec, model.non_trainable_variables, clip=False, accumulate_steps=3)
    names = [model.non_trainable_variables[number].name for number in step.changed]
    assert names == ["moving_mean", "moving_variance"]
    assert step.only_reads
    assert step.kinds == ["dense"] * len(model.trainable_variables)
    assert step(batch_of(7))().finite


def test_more_pieces_than_rows_are_refused_before_work_begins() -> None:
    check_accumulation(4, 4)
    with pytest.raises(UserError, match=r"4 rows .* cannot be cut into 5 pieces; allowed are 1 to 4"):
        check_accumulation(4, 5)
