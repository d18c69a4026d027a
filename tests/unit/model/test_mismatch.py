"""Models that do not take the rows they are given are refused in a sentence; errors of a user's own code are raised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import Input, layers

import hpc_train as ht
from hpc_train.errors import UserError
from hpc_train.model.builder import build_model

FOUR = np.zeros((8, 4), np.float32)
BY_NAME = {"a": FOUR[:, 0], "b": FOUR[:, 1], "c": FOUR[:, 2]}
GIVEN = r"^build: the model does not take the rows that it is given: features "
CASES: dict[str, tuple[Any, str, Any, Any, str]] = {
    "columns": (
        lambda: [Input((5,)), layers.Dense(1)], "mse", FOUR, FOUR[:, :1],
        GIVEN + r"float32 \[rows, 4\], label float32 \[rows, 1\]; Keras: .* axis -1 of input shape to have value 5",
    ),
    "names": (
        lambda: [Input((3,)), layers.Dense(1)], "mse", BY_NAME, FOUR[:, :1],
        r"'a' float32 \[rows\], .*one input, but features are 3 by name: .*\{'a': …, 'b': …\}.*--stack x=a,b,…\)",
    ),
    "loss": (
        lambda: [Input((4,)), layers.Dense(3)], "categorical_crossentropy", FOUR, np.zeros(8, np.int32),
        GIVEN + r".*label int32 \[rows\]; Keras: Arguments `target` and `output` must have the same rank",
    ),
    "label": (
        lambda: [Input((4,)), layers.Dense(3)], "mse", FOUR, np.zeros((8, 7), np.float32),
        GIVEN + r".*; Keras: Incompatible shapes: \[1,7\] vs\. \[1,3\]$",
    ),
    "rank": (
        lambda: [layers.Conv2D(3, 3)], "mse", FOUR, FOUR,
        GIVEN + r".*; Keras: Input 0 .* expected min_ndim=4, found ndim=2\. Full shape received: \(1, 4\)$",
    ),
    "texts": (
        lambda: [Input((4,)), layers.Dense(3)], "mse", FOUR.astype(str), FOUR,
        GIVEN + r"string \[rows, 4\].*; Keras: Cast string to float is not supported$",
    ),
    "a number a row": (
        lambda: [layers.Dense(1)], keras.losses.MeanSquaredError(reduction="none"), FOUR, FOUR[:, :1],
        r"^build: the loss is an array \[1\] and no single number; .*reduction='sum_over_batch_size' or",
    ),
    "no such loss": (
        lambda: [layers.Dense(1)], "mean_squared_eror", FOUR, FOUR[:, :1],
        r"^build: Keras has no loss 'mean_squared_eror'; did you mean `mean_squared_error`\? name one of keras\.losses",
    ),
    "None": (
        lambda: [layers.Dense(1)], lambda y, x: None, FOUR, FOUR[:, :1],
        r"^build: a loss function returns None; let it return one number a row",
    ),
    "no gradient": (
        lambda: [layers.Dense(4)], lambda y, x: tf.cast(tf.argmax(x, -1), tf.float32), FOUR, FOUR,
        r"^build: the loss has no gradient: .*\(argmax, rounding, comparisons, numpy\)$",
    ),
}  # fmt: skip


def built(make: Any, loss: Any, features: Any, label: Any, folder: Path) -> keras.Model:
    def build(params: dict[str, Any]) -> keras.Model:
        model = keras.Sequential(make())
        model.compile("sgd", loss)
        return model

    build.__qualname__ = "build"
    dataset = tf.data.Dataset.from_tensor_slices((features, label)).batch(4)
    return build_model(ht.Estimator(build, ht.RunConfig(str(folder))), dataset)


def test_a_loss_without_a_label_is_told_of_it(tmp_path: Path) -> None:
    def build(params: dict[str, Any]) -> keras.Model:
        model = keras.Sequential([layers.Dense(2)])
        model.compile("sgd", "mse")
        return model

    with pytest.raises(UserError, match="compares with a label, but batches have features alone; give the data a `lab"):
        build_model(ht.Estimator(build, ht.RunConfig(tmp_path)), tf.data.Dataset.from_tensors((FOUR,)))


@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit_is_named(case: str, tmp_path: Path) -> None:
    *given, said = CASES[case]
    with pytest.raises(UserError, match=said) as error:
        built(*given, tmp_path)
    assert "\x1b" not in str(error.value) and "\n" not in str(error.value)


def test_a_loss_that_cannot_be_differentiated_but_in_training_is_let_through(tmp_path: Path) -> None:
    class Quantized(layers.Layer):
        def call(self, x: Any, training: bool = False) -> Any:
            return x if training else tf.round(tf.stop_gradient(x))

    model = built(lambda: [layers.Dense(4), Quantized()], "mse", FOUR, FOUR, tmp_path)
    assert "compute_loss" not in vars(model)


def test_what_a_layer_of_the_users_own_raises_is_theirs(tmp_path: Path) -> None:
    class Own(layers.Layer):
        def call(self, x: Any) -> Any:
            return keras.ops.matmul(x, keras.ops.ones((7, 7)))

    with pytest.raises(ValueError, match="Dimensions must be equal") as error:
        built(lambda: [Own()], "mse", FOUR, FOUR, tmp_path)
    assert not isinstance(error.value, UserError)
    assert built(lambda: [layers.Dense(4)], "mse", FOUR, FOUR, tmp_path).built


@pytest.mark.parametrize("kind", ["Embedding", "ShardedEmbedding"])
def test_what_a_layer_of_ours_refuses_as_a_model_is_made_is_said_without_the_words_of_keras(kind: str) -> None:
    def build(params: dict[str, Any]) -> keras.Model:
        x = Input(())
        model = keras.Model(x, getattr(ht.parallel, kind)(9, 4, name="words")(x))
        model.compile("sgd", "mse")
        return model

    batches = tf.data.Dataset.from_tensors((np.zeros(8, np.float32), FOUR))
    with pytest.raises(UserError) as refused:
        build_model(ht.Estimator(build, ht.RunConfig("unused")), batches)
    assert str(refused.value) == (
        f"words ({kind}) got ids of float32; give it whole numbers, such as those of keras.Input(shape, dtype='int32')"
    )
