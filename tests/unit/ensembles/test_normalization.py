"""Batch normalization's averages over a pass of training rows, against numpy and Keras itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hpc_train.ensembles.normalization import normalizing_layers, renew

layers = keras.layers
RANDOM = np.random.default_rng(0)


def batches_of(x: np.ndarray, sizes: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    for part in np.split(x, np.cumsum(sizes)[:-1]):
        yield tf.constant(part), tf.zeros(len(part))


def renewed(model: keras.Model, x: np.ndarray, sizes: Sequence[int]) -> list[Any]:
    spec = tf.TensorSpec([None, *x.shape[1:]], x.dtype)
    rows, found = renew(model, normalizing_layers(model), batches_of(x, sizes), spec)
    assert rows == len(x)
    return found


def check(layer: Any, values: np.ndarray) -> None:
    """Its averages are the moments of `values` over all axes but the last."""
    axes = tuple(range(values.ndim - 1))
    values = values.astype(np.float64)
    np.testing.assert_allclose(layer.moving_mean, values.mean(axes), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer.moving_variance, values.var(axes), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", [[40], [16, 16, 8], [39, 1], [8] * 5])
@pytest.mark.parametrize("shape", [(3,), (4, 5, 3)])
def test_they_are_the_moments_of_all_rows_whatever_the_batches(sizes: list[int], shape: tuple[int, ...]) -> None:
    x = (RANDOM.normal(size=(40, *shape)) * 3 + np.arange(40).reshape(-1, *[1] * len(shape))).astype(np.float32)
    model = keras.Sequential([keras.Input(shape), layers.BatchNormalization()])
    (layer,) = renewed(model, x, sizes)
    check(layer, x)
    assert layer.momentum == 0.99 and "call" not in vars(layer)


def test_layers_inside_of_others_and_behind_others() -> None:
    inner = keras.Sequential([keras.Input((3,)), layers.Dense(4), layers.BatchNormalization()])
    inputs = keras.Input((3,))
    first = layers.BatchNormalization()(inputs)
    model = keras.Model(inputs, layers.BatchNormalization(synchronized=True)(inner(first)))
    x = RANDOM.normal(size=(32, 3)).astype(np.float32)
    assert len(renewed(model, x, [32])) == 3
    scaled = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3)
    dense, inner_norm = inner.layers
    hidden = np.asarray(dense(scaled))
    check(model.layers[1], x)
    check(inner_norm, hidden)
    check(model.layers[-1], (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-3))


def test_a_layer_called_twice_sees_both() -> None:
    shared = layers.BatchNormalization()
    inputs = keras.Input((3,))
    model = keras.Model(inputs, shared(inputs) + shared(inputs * 5.0 + 1.0))
    x = RANDOM.normal(size=(20, 3)).astype(np.float32)
    renewed(model, x, [12, 8])
    check(shared, np.concatenate([x, x * 5 + 1]))


def test_steps_of_a_sequence_and_masked_ones() -> None:
    x = RANDOM.normal(size=(20, 6, 3)).astype(np.float32)
    model = keras.Sequential([keras.Input((6, 3)), layers.TimeDistributed(layers.BatchNormalization())])
    renewed(model, x, [20])
    check(model.layers[0].layer, x)

    x[:, 4:] = 0
    x[10:, 1:] = 0
    masked = keras.Sequential([keras.Input((6, 3)), layers.Masking(), layers.BatchNormalization()])
    (layer,) = renewed(masked, x, [10, 10])
    np.testing.assert_allclose(layer.moving_mean, x[(x != 0).any(-1)].mean(0), rtol=1e-4, atol=1e-6)


def test_renormalization_and_lower_precision() -> None:
    x = RANDOM.normal(size=(30, 3)).astype(np.float32)
    for layer in (layers.BatchNormalization(renorm=True), layers.BatchNormalization(dtype="mixed_bfloat16")):
        model = keras.Sequential([keras.Input((3,)), layer])
        assert renewed(model, x, [20, 10]) == [layer]
        np.testing.assert_allclose(layer.moving_mean, x.mean(0), atol=3e-3)
        np.testing.assert_allclose(layer.moving_variance, x.var(0), rtol=1e-2)


def test_frozen_layers_and_those_called_for_inference_stay_as_they_are() -> None:
    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.for_inference = layers.BatchNormalization(trainable=False), layers.BatchNormalization()

        def call(self, inputs: Any, training: bool = False) -> Any:
            return self.for_inference(self.frozen(inputs, training=training), training=False)

    model = Model()
    x = RANDOM.normal(size=(9, 3)).astype(np.float32)
    model(x)
    model.frozen.moving_mean.assign([1.0, 2.0, 3.0])
    assert renewed(model, x, [9]) == []
    np.testing.assert_array_equal(model.frozen.moving_mean, [1, 2, 3])
    np.testing.assert_array_equal(model.for_inference.moving_variance, [1, 1, 1])


def test_they_are_exact_for_values_far_from_zero() -> None:
    x = (1e4 + RANDOM.normal(size=(64, 2))).astype(np.float32)
    model = keras.Sequential([keras.Input((2,)), layers.BatchNormalization()])
    (layer,) = renewed(model, x, [8] * 8)
    np.testing.assert_allclose(layer.moving_mean, x.astype(np.float64).mean(0), rtol=1e-6)
    np.testing.assert_allclose(layer.moving_variance, x.astype(np.float64).var(0), rtol=1e-3)
