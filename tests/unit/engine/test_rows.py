"""Gradients of embeddings that reach the optimizer as rows, and which do not."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hpc_train.distributed.allreduce import GradientAllreduce
from hpc_train.distributed.collectives import Collectives, OneRank
from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.optimizer_trials import leaves_rows
from hpc_train.distributed.placement import placed
from hpc_train.distributed.world import World
from hpc_train.engine.own_train_step import make_own_train_step
from hpc_train.engine.step_report import Flags
from hpc_train.engine.train_step import make_train_step
from hpc_train.errors import UserError
from hpc_train.model.loss_terms import LossPlan
from hpc_train.model.model_state import ModelState
from hpc_train.model.own_steps import updates_of
from hpc_train.parallel import ShardedEmbedding


class FirstOfTwo(OneRank):
    """A rank whose like asks it for nothing, and has no gradients."""

    def __init__(self) -> None:
        Collectives.__init__(self, 2, 0, "two")
        self.reduced = []

    def _allreduce(self, name, tensors, op):
        self.reduced += [tensor.shape for tensor in tensors]
        return list(tensors)


class OwnStep(keras.Model):
    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = self.changed(tape.gradient(loss, self.trainable_variables))
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}

    def changed(self, gradients):
        return gradients


class InTurn(OwnStep):
    """Applies its optimizer to one variable after the other."""

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        for gradient, variable in zip(
            tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True
        ):
            self.optimizer.apply([gradient], [variable])
        return {"loss": loss}


class Clipping(OwnStep):
    def changed(self, gradients):
        return tf.clip_by_global_norm(gradients, 0.1)[0]


def model_of(layer, optimizer, kind=keras.Model, eagerly=False):
    """Looks ids up twice."""
    ids = keras.Input((3,), dtype="int32")
    rows = keras.layers.Concatenate()([layer(ids), layer((ids + 2) % 4)])
    model = kind(ids, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))
    model.compile(optimizer, "mse", run_eagerly=eagerly)
    return model


def step_of(model, ranks=None):
    allreduce = GradientAllreduce(ranks or FirstOfTwo())
    if not isinstance(model, OwnStep):
        return make_train_step(model, allreduce, [], False)
    dataset = tf.data.Dataset.from_tensors((tf.zeros([1, 3], tf.int32), tf.zeros([1, 1])))
    with placed(Mesh(2, 1, 0)):
        state = ModelState(model, World.alone(), updates_of(model, dataset, "model"))
    return make_own_train_step(model, state, allreduce, False, LossPlan(2))


def test_ranks_cannot_update_the_rows_of_a_table_that_each_has():
    model = model_of(keras.layers.Embedding(8, 2, name="words"), "sgd")
    step = make_train_step(model, GradientAllreduce(FirstOfTwo()), [], False, rows_apart=True)
    with pytest.raises(UserError, match=r"2 ranks have other rows of words/embeddings each"):
        step((tf.zeros([2, 3], tf.int32), tf.zeros([2, 1])), Flags())


@pytest.mark.parametrize(
    ("optimizer", "rows_apart", "as_rows"), [("sgd", False, True), ("adam", False, False), ("adam", True, True)]
)
def test_a_table_in_parts_gives_rows_to_optimizers_that_take_them(optimizer, rows_apart, as_rows):
    with placed(Mesh(2, 1, 0)):
        model = model_of(ShardedEmbedding(8, 2), optimizer)
        model.optimizer.build(model.trainable_variables)
    seen = []
    apply = model.optimizer.apply

    def noting(gradients, variables):
        seen.append(gradients[0])
        return apply(gradients, variables)

    model.optimizer.apply = noting
    before = model.trainable_variables[0].numpy()
    step = make_train_step(model, GradientAllreduce(FirstOfTwo()), [], False, rows_apart=rows_apart)
    step((tf.constant([[1, 3, 1]]), tf.ones([1, 1])), Flags())()
    assert isinstance(seen[0], tf.IndexedSlices) == as_rows
    moved = np.any(model.trainable_variables[0].numpy() != before, axis=1)
    assert moved.tolist() == [False, True, False, True]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("kind", [keras.Model, OwnStep])
def test_a_row_that_is_looked_up_twice_has_one_gradient(optimizer, kind):
    with placed(Mesh(2, 1, 0)):
        model = model_of(ShardedEmbedding(8, 2), optimizer, kind)
    expected = model_of(keras.layers.Embedding(4, 2), optimizer)
    expected.set_weights(model.get_weights())
    ids, targets = tf.constant([[0, 1, 1], [3, 1, 0]]), tf.ones([2, 1])
    step = step_of(model)
    for _ in range(3):
        step((ids, targets), Flags())()
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(expected(ids) - targets))
        table, *others = map(tf.convert_to_tensor, tape.gradient(loss, expected.trainable_variables))
        expected.optimizer.apply([table / 2, *others], expected.trainable_variables)  # the other rank's are 0
    for found, wanted in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_norm_of_this_ranks_rows_of_a_table_is_refused_by_name(eagerly):
    with placed(Mesh(2, 1, 0)):
        model = model_of(ShardedEmbedding(8, 2, name="words"), "sgd", Clipping, eagerly)
    said = r"train_step of Clipping: .*/kernel is computed from gradients of words/embeddings .* global_clipnorm"
    with pytest.raises(UserError, match=said):
        step_of(model)((tf.constant([[1, 3, 1]]), tf.ones([1, 1])), Flags())
    whole = model_of(keras.layers.Embedding(8, 2), "sgd", Clipping, eagerly)
    assert step_of(whole)((tf.constant([[1, 3, 1]]), tf.ones([1, 1])), Flags())().applied


@pytest.mark.parametrize("eagerly", [False, True])
def test_an_optimizer_may_be_applied_to_some_variables_and_then_to_others(eagerly):
    with placed(Mesh(2, 1, 0)):
        model = model_of(ShardedEmbedding(8, 2), "sgd", InTurn, eagerly)
    before = model.get_weights()
    assert step_of(model)((tf.constant([[1, 3, 1]]), tf.ones([1, 1])), Flags())().applied
    assert not any(np.array_equal(old, new) for old, new in zip(before, model.get_weights(), strict=True))


def test_what_a_norm_of_all_ranks_has_clipped_is_not_exchanged_again():
    with placed(Mesh(2, 1, 0)):
        model = model_of(ShardedEmbedding(8, 2), keras.optimizers.SGD(0.1, global_clipnorm=0.1), OwnStep)
    ranks = FirstOfTwo()
    assert step_of(model, ranks)((tf.constant([[1, 3, 1]]), tf.ones([1, 1])), Flags())().applied
    kernel = model.trainable_variables[1].shape
    assert ranks.reduced.count(kernel) == 1


@pytest.mark.parametrize(
    ("optimizer", "leaves"),
    [
        (keras.optimizers.SGD(0.1), True),
        (keras.optimizers.Adagrad(0.1), True),
        (keras.optimizers.SGD(0.1, momentum=0.9), False),
        (keras.optimizers.Adam(0.1), False),
        (keras.optimizers.RMSprop(0.1), True),
        (keras.optimizers.SGD(0.1, weight_decay=0.1), False),
    ],
)
def test_which_optimizers_leave_rows_without_a_gradient_alone(optimizer, leaves):
    assert leaves_rows(optimizer) == leaves
