"""Several Keras models as one: what it gives, what it is saved as, and which models cannot be combined."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from hpc_train import UserError
from hpc_train.ensembles.combination import Combination, combined
from hpc_train.ensembles.task import Task, task_of
from hpc_train.export.signature import signature_of_inputs

ROWS = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def model(*layers: Any, loss: Any = "sparse_categorical_crossentropy", seed: int = 0) -> keras.Model:
    keras.utils.set_random_seed(seed)
    made = keras.Sequential([keras.Input((4,), name="x"), *layers])
    made.compile("adam", loss=loss)
    return made


def softmax(seed: int = 0, units: int = 3) -> keras.Model:
    return model(keras.layers.Dense(8, "tanh"), keras.layers.Dense(units, "softmax"), seed=seed)


def combination(models: Sequence[keras.Model]) -> Combination:
    members = [
        SimpleNamespace(job=SimpleNamespace(name="model.py:build"), model=each, signature=signature_of_inputs(each))
        for each in models
    ]
    return combined(members)  # type: ignore[arg-type]


def check(found: Combination, expected: Sequence[np.ndarray], features: Any = ROWS) -> None:
    each = np.stack(expected, axis=1)
    for outputs in (found.outputs()(features), found.model(features)):
        assert set(outputs) == {"mean", "spread", "members"}
        np.testing.assert_allclose(outputs["members"], each, atol=1e-6)
        np.testing.assert_allclose(outputs["mean"], each.mean(1), atol=1e-6)
        np.testing.assert_allclose(outputs["spread"], each.std(1), atol=1e-6)


def test_the_mean_of_probabilities() -> None:
    models = [softmax(seed) for seed in range(3)]
    expected = [np.asarray(each(ROWS)) for each in models]
    found = combination(models)
    assert found.task == Task("classes")
    check(found, expected)


@pytest.mark.parametrize(
    ("loss", "units", "made", "kind"),
    [
        (LOGITS, 3, lambda y: np.exp(y) / np.exp(y).sum(-1, keepdims=True), "classes"),
        (keras.losses.BinaryCrossentropy(from_logits=True), 1, lambda y: 1 / (1 + np.exp(-y)), "binary"),
        ("mse", 2, lambda y: y, "values"),
    ],
)
def test_logits_become_probabilities_first(loss: Any, units: int, made: Any, kind: str) -> None:
    models = [model(keras.layers.Dense(units), loss=loss, seed=seed) for seed in range(2)]
    expected = [made(np.asarray(each(ROWS))) for each in models]
    found = combination(models)
    assert found.task.kind == kind
    check(found, expected)


def test_batch_norm_and_dropout_are_those_of_inference() -> None:
    layers = [
        [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), keras.layers.Dense(3, "softmax")]
        for _ in range(2)
    ]
    models = [model(*each, seed=seed) for seed, each in enumerate(layers)]
    expected = [np.asarray(each(ROWS, training=False)) for each in models]
    check(combination(models), expected)


def test_half_precision_is_averaged_in_single() -> None:
    models = [model(keras.layers.Dense(3, "softmax", dtype="mixed_bfloat16"), seed=seed) for seed in range(2)]
    outputs = combination(models).model(ROWS)
    assert {tensor.dtype.name for tensor in outputs.values()} == {"float32"}


def test_several_inputs_by_name() -> None:
    def build(seed: int) -> keras.Model:
        keras.utils.set_random_seed(seed)
        inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((), dtype="int32", name="b")}
        hidden = keras.layers.Concatenate()([inputs["a"], keras.layers.Embedding(5, 2)(inputs["b"])])
        made = keras.Model(inputs, keras.layers.Dense(2)(hidden))
        made.compile("adam", loss="mse")
        return made

    features = {"a": ROWS, "b": np.arange(7, dtype=np.int32) % 5}
    models = [build(seed) for seed in range(2)]
    check(combination(models), [np.asarray(each(features)) for each in models], features)


def test_the_keras_file_is_read_without_this_package(tmp_path: Path) -> None:
    found = combination([softmax(seed) for seed in range(2)])
    found.model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for name, tensor in found.model(ROWS).items():
        np.testing.assert_allclose(loaded(ROWS)[name], tensor, atol=1e-6)


class OwnPredictStep(keras.Sequential):
    def predict_step(self, data: Any) -> Any:
        return self(data[0]) * 2


def outputs_by_name() -> keras.Model:
    inputs = keras.Input((4,), name="x")
    made = keras.Model(inputs, {"p": keras.layers.Dense(2)(inputs)})
    made.compile("adam", loss={"p": "mse"})
    return made


def own_predict_step() -> keras.Model:
    made = OwnPredictStep([keras.Input((4,), name="x"), keras.layers.Dense(2)])
    made.compile("adam", loss="mse")
    return made


@pytest.mark.parametrize(
    ("models", "wanted"),
    [
        (
            lambda: [softmax(), softmax(units=4)],
            r"member 1: gives classes \[None, 4\], and member 0 classes \[None, 3\]",
        ),
        (lambda: [softmax(), model(keras.layers.Dense(3), loss="mse")], "member 1: gives values .* member 0 classes"),
        (lambda: [outputs_by_name()], "member 0: gives several outputs"),
        (lambda: [own_predict_step()], "member 0: has a predict_step of its own"),
        (lambda: [model(keras.layers.Dense(3), loss=lambda y, p: p)], "member 0: is compiled with the loss <lambda>"),
        (
            lambda: [model(keras.layers.Dense(3), loss="cosine_similarity")],
            "the loss cosine_similarity, which does not",
        ),
    ],
)
def test_what_cannot_be_combined_is_refused(models: Any, wanted: str) -> None:
    with pytest.raises(UserError, match=wanted):
        combination(models())


def test_losses_are_known_by_name_function_and_object() -> None:
    for loss in ("mse", keras.losses.mean_squared_error, keras.losses.MeanSquaredError(), {"y": "mse"}, ["mse"]):
        assert task_of(SimpleNamespace(loss=loss), "m") == Task("values")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="has 2 losses"):
        task_of(SimpleNamespace(loss=["mse", "mse"]), "m")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="compiled with no loss of its own"):
        task_of(SimpleNamespace(loss=None), "m")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="`ignore_class`"):
        task_of(SimpleNamespace(loss=keras.losses.SparseCategoricalCrossentropy(ignore_class=0)), "m")  # type: ignore[arg-type]
