"""A batch shared by ranks, or cut into pieces, has the gradients of the whole one, whatever its loss divides by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hpc_train.config.run_config import RunConfig
from hpc_train.distributed.world import World
from hpc_train.model.backward import Backward, loss_and_gradients, shares_scale
from hpc_train.model.loss_plan import plan_loss
from hpc_train.model.loss_terms import LossPlan

ROWS, STEPS, CLASSES = 12, 5, 4


class AddedRows(keras.layers.Layer):
    """Adds a loss for each row."""

    def call(self, inputs: Any) -> Any:
        self.add_loss(tf.reduce_mean(tf.square(inputs), axis=[1, 2]))
        return inputs


class AddedMean(keras.layers.Layer):
    """Adds the mean of a loss over rows."""

    def call(self, inputs: Any) -> Any:
        self.add_loss(tf.reduce_mean(tf.square(inputs)))
        return inputs


class AddedSum(keras.layers.Layer):
    """Adds the sum of a loss over rows."""

    def call(self, inputs: Any) -> Any:
        self.add_loss(tf.reduce_sum(tf.square(inputs)))
        return inputs


class Coupled(keras.layers.Layer):
    """Adds a loss that compares rows."""

    def call(self, inputs: Any) -> Any:
        self.add_loss(tf.math.log(tf.reduce_sum(tf.exp(inputs))))
        return inputs


def tokens() -> Any:
    inputs = keras.Input((STEPS,), dtype="int32")
    embedded = keras.layers.Embedding(7, 6, mask_zero=True, embeddings_regularizer="l2")(inputs)
    return inputs, embedded


def tagger(loss: Any = "sparse_categorical_crossentropy", layer: Any = None, **compiled: Any) -> keras.Model:
    inputs, hidden = tokens()
    hidden = hidden if layer is None else layer(hidden)
    model = keras.Model(inputs, keras.layers.Dense(CLASSES, "softmax")(hidden))
    model.compile("sgd", loss, **compiled)
    return model


def two_outputs(first: Any, second: Any) -> keras.Model:
    inputs, hidden = tokens()
    tags = keras.layers.Dense(CLASSES, "softmax", name="tags")(hidden)
    plain = keras.layers.Lambda(lambda t: t * 1.0, output_shape=(STEPS, 6))(hidden)
    kinds = keras.layers.Dense(CLASSES, "softmax", name="kinds")(plain)
    model = keras.Model(inputs, {"tags": tags, "kinds": kinds})
    model.compile("sgd", {"tags": first, "kinds": second}, loss_weights={"tags": 0.7, "kinds": 1.3})
    return model


def sparse(**how: Any) -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(**how)


def scalar_mean(y: Any, predicted: Any) -> Any:
    return tf.reduce_mean(tf.square(predicted))


def scalar_sum(y: Any, predicted: Any) -> Any:
    return tf.reduce_sum(tf.square(predicted))


MODELS: dict[str, Callable[[], keras.Model]] = {
    "mask": tagger,
    "sum": lambda: tagger(sparse(reduction="sum")),
    "mean_with_sample_weight": lambda: tagger(sparse(reduction="mean_with_sample_weight")),
    "ignore_class": lambda: two_outputs(sparse(ignore_class=0), sparse()),
    "two ignored": lambda: two_outputs(sparse(ignore_class=0), sparse(ignore_class=3)),
    "sum beside a mask": lambda: two_outputs(sparse(reduction="sum"), sparse()),
    "a mask and weights": lambda: two_outputs(sparse(), sparse(reduction="mean_with_sample_weight")),
    "rows added": lambda: tagger(layer=AddedRows()),
    "mean added": lambda: tagger(layer=AddedMean()),
    "sum added": lambda: tagger(layer=AddedSum()),
    "a number": lambda: plain(scalar_mean),
    "a sum": lambda: plain(scalar_sum),
    "scaled": lambda: scaled(),
}


def plain(loss: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((STEPS,), dtype="int32"), keras.layers.Embedding(7, 6)])
    model.compile("sgd", loss)
    return model


def scaled() -> keras.Model:
    model = tagger()
    model.optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=64.0)
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture(autouse=True)
def doubles() -> Any:
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before)
    keras.config.set_dtype_policy("float32")


def batch_for(model: keras.Model) -> tuple[Any, ...]:
    random = np.random.default_rng(3)
    x = random.integers(0, 7, (ROWS, STEPS)) * (np.arange(STEPS) < random.integers(1, STEPS + 1, (ROWS, 1)))
    labels = random.integers(0, CLASSES, (ROWS, STEPS))
    weights = random.uniform(0, 2, (ROWS, STEPS))
    if not isinstance(model, keras.Sequential) and isinstance(model.output, dict):
        return {"tags": labels, "kinds": labels[::-1].copy()}, {"tags": weights, "kinds": weights[::-1].copy()}, x
    return labels, weights, x


def tensors(model: keras.Model) -> Any:
    labels, weights, x = batch_for(model)
    batch = (x, labels) if isinstance(model, keras.Sequential) else (x, labels, weights)
    return tf.nest.map_structure(tf.constant, batch)


def part_of(batch: Any, rank: int, ranks: int) -> Any:
    rows = ROWS // ranks
    return tf.nest.map_structure(lambda t: t[rank * rows : (rank + 1) * rows], batch)


def planned(model: keras.Model, batch: Any, ranks: int, pieces: int) -> LossPlan:
    dataset = tf.data.Dataset.from_tensors(part_of(batch, 0, ranks))
    return plan_loss(World.alone(), model, dataset, ranks, RunConfig("x", accumulate_steps=pieces), "model")


def gradients_of_ranks(model: keras.Model, batch: Any, ranks: int, pieces: int) -> tuple[float, list[Any]]:
    """Loss and gradients as the ranks' training step averages them."""
    plan, seen = planned(model, batch, ranks, pieces), []

    def note(divisors: Any) -> Any:
        seen.append(divisors)
        return divisors

    for rank in range(ranks):
        loss_and_gradients(model, part_of(batch, rank, ranks), pieces, plan, note)
    mean = tf.add_n(seen) / ranks if seen else None
    found = [loss_and_gradients(model, part_of(batch, r, ranks), pieces, plan, lambda d: mean) for r in range(ranks)]
    weight = sum(1.0 if one.weight is None else float(one.weight) for one in found)
    factor = ranks if shares_scale(model) else 1
    by_variable = zip(*(one.gradients for one in found), strict=True)
    total = [factor * sum(tf.convert_to_tensor(g) for g in own) / weight for own in by_variable]
    return sum(float(one.loss) for one in found) / weight, total


def whole(model: keras.Model, batch: Any) -> Backward:
    return loss_and_gradients(model, batch)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("ranks", "pieces"), [(2, 1), (3, 1), (1, 3), (2, 2)])
def test_gradients_are_those_of_the_whole_batch(name: str, ranks: int, pieces: int) -> None:
    keras.utils.set_random_seed(1)
    model = MODELS[name]()
    batch = tensors(model)
    expected = whole(model, batch)
    loss, gradients = gradients_of_ranks(model, batch, ranks, pieces)
    np.testing.assert_allclose(loss, float(expected.loss), rtol=1e-6)
    for mine, right in zip(gradients, expected.gradients, strict=True):
        right = tf.convert_to_tensor(right).numpy()
        np.testing.assert_allclose(mine, right, rtol=1e-6, atol=1e-10 * np.abs(right).max())


def test_a_rank_without_a_valid_value_counts_nothing() -> None:
    model = tagger()
    x, labels, weights = tensors(model)
    x = tf.concat([tf.zeros_like(x[: ROWS // 2]), x[ROWS // 2 :]], axis=0)
    expected = whole(model, (x, labels, weights))
    loss, gradients = gradients_of_ranks(model, (x, labels, weights), 2, 1)
    np.testing.assert_allclose(loss, float(expected.loss), rtol=1e-6)
    for mine, right in zip(gradients, expected.gradients, strict=True):
        np.testing.assert_allclose(mine, tf.convert_to_tensor(right), rtol=1e-6, atol=1e-12)


def test_one_divisor_goes_along_and_several_are_exchanged_first() -> None:
    def exchanged(model: keras.Model) -> int:
        calls = []

        def exchange(divisors: Any) -> Any:
            calls.append(divisors)
            return divisors

        batch = tensors(model)
        loss_and_gradients(model, part_of(batch, 0, 2), 1, planned(model, batch, 2, 1), exchange)
        return len(calls)

    assert exchanged(tagger()) == 0
    assert exchanged(MODELS["sum"]()) == 0
    assert exchanged(MODELS["two ignored"]()) == 1


def test_a_loss_that_couples_rows_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    model = tagger(layer=Coupled())
    plan = planned(model, tensors(model), 2, 1)
    assert plan.numbers == ("mean",)
    assert "ht.all_gather" in caplog.text


def test_a_loss_divided_by_hand_is_found_where_all_tokens_have_the_same_loss(caplog: pytest.LogCaptureFixture) -> None:
    """At the beginning of training, when logits are all alike: by gradients."""

    def kept(labels: Any) -> Any:
        return tf.cast(labels != 0, tf.float64)

    def by_hand(labels: Any, predicted: Any) -> Any:
        losses = keras.losses.sparse_categorical_crossentropy(labels, predicted, from_logits=True)
        return tf.reduce_sum(losses * kept(labels)) / tf.reduce_sum(kept(labels))

    def by_row(labels: Any, predicted: Any) -> Any:
        return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, predicted, from_logits=True))

    labels = np.random.default_rng(0).integers(1, 6, (12, STEPS))
    labels[1, 1:] = 0
    batch = tf.constant(labels), tf.constant(labels)
    dataset = tf.data.Dataset.from_tensors(batch)
    for loss, expected in ((by_row, False), (by_hand, True)):
        model = plain(loss)
        model.layers[0].embeddings.assign(1e-7 * model.layers[0].embeddings)
        plan_loss(World.alone(), model, dataset, 2, RunConfig("x"), "model")
        assert ("ht.all_gather" in caplog.text) == expected


def test_numbers_that_are_not_of_rows_are_tried_out(caplog: pytest.LogCaptureFixture) -> None:
    def overlap_of_classes(y: Any, predicted: Any) -> Any:  # one for each class
        return 1 - tf.reduce_sum(predicted, [0, 1]) / tf.reduce_sum(predicted**2, [0, 1])

    model = plain(overlap_of_classes)
    assert planned(model, tensors(model), 3, 1).numbers == ("mean",)  # of 4 rows, and 6 numbers
    assert "ht.all_gather" in caplog.text
