"""Canned estimators against those of TensorFlow 2.15: their checkpoints, predictions, measures and steps."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpc_train as ht
from hpc_train.canned.model_fn import canned_model
from hpc_train.distributed.world import World
from hpc_train.warm_start.apply import warm_start
from tests.support import REPOSITORY

KEPT = REPOSITORY / "tests/data/estimator_2_15"
"""What TensorFlow 2.15 wrote; make.py there has the same estimators."""
FEATURES = ("age", "size", "colour", "city", "tags", "day", "weight")
BATCH, STEPS = 8, 20
BEGUN = "dnn_linear_combined_regressor"


@functools.cache
def estimators() -> dict[str, tuple[ht.Estimator, str]]:
    """By the name of its folder: the estimator, and the name of its labels."""
    column: Any = ht.feature_column
    age, size = column.numeric_column("age"), column.numeric_column("size", shape=(2,))
    ages = column.bucketized_column(age, [-1.0, 0.0, 1.0])
    colour = column.categorical_column_with_vocabulary_list("colour", ["red", "green", "blue"], num_oov_buckets=1)
    city = column.categorical_column_with_hash_bucket("city", 5)
    wide = [ages, colour, city, column.crossed_column([ages, "colour"], 7)]
    deep = [age, size, ages, column.indicator_column(colour), column.embedding_column(city, 3)]
    tags = column.categorical_column_with_vocabulary_list("tags", ["a", "b", "c"])
    day = column.categorical_column_with_identity("day", 7)
    return {
        "linear_classifier": (ht.LinearClassifier([age, size, *wide], n_classes=3), "class"),
        "linear_regressor": (ht.LinearRegressor([age, size, *wide]), "value"),
        "dnn_classifier": (ht.DNNClassifier([8, 4], [age, size], n_classes=3), "class"),
        "dnn_regressor": (ht.DNNRegressor([4], deep, optimizer="Adam"), "value"),
        "dnn_linear_combined_classifier": (
            ht.DNNLinearCombinedClassifier(
                linear_feature_columns=wide,
                dnn_feature_columns=deep,
                dnn_hidden_units=[4],
                n_classes=3,
                batch_norm=True,
            ),
            "class",
        ),
        "linear_classifier_of_texts": (
            ht.LinearClassifier(
                [age, tags, column.crossed_column(["colour", "city", day], 11, hash_key=3)],
                label_vocabulary=["no", "yes"],
                weight_column="weight",
                sparse_combiner="mean",
            ),
            "answer",
        ),
        BEGUN: (
            ht.DNNLinearCombinedRegressor(
                linear_feature_columns=[tags, ages, column.crossed_column([ages, tags], 9)],
                dnn_feature_columns=[
                    *(size, column.embedding_column(tags, 3, combiner="sqrtn"), column.indicator_column(day)),
                ],
                dnn_hidden_units=[5],
                label_dimension=2,
                weight_column=column.numeric_column("weight"),
                loss_reduction="SUM",
            ),
            "pair",
        ),
    }


@functools.cache
def rows() -> dict[str, Any]:
    """What the kept estimators were trained on, as tensors."""
    import tensorflow as tf

    with np.load(KEPT / "inputs.npz", allow_pickle=False) as inputs:
        return {name: tf.constant(a.tolist() if a.dtype.kind == "U" else a) for name, a in inputs.items()}


def features() -> dict[str, Any]:
    return {name: rows()[name] for name in FEATURES}


def batches(label: str, count: int) -> Iterator[Any]:
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((features(), rows()[label]))
    yield from data.repeat().batch(BATCH).take(count)


def started(name: str, folder: Path) -> Any:
    """The model with the values of a kept checkpoint, all of which it takes."""
    model = canned_model(estimators()[name][0].params)
    done = warm_start(World.alone(), model, ht.WarmStartSettings(folder), Path("/nowhere/new"))
    assert (done.record["missing"], done.record["skipped"], done.record["unused"]) == ([], [], [])
    assert all(taken["name"] == taken["from"] for taken in done.record["taken"]), "they are called alike"
    return model


def check_predictions(model: Any, name: str) -> None:
    predicted = model.predict_step((features(),))
    with np.load(KEPT / name / "predictions.npz", allow_pickle=False) as recorded:
        assert set(predicted) == set(recorded)
        for key, values in recorded.items():
            if values.dtype.kind == "S":
                np.testing.assert_array_equal(predicted[key].numpy().astype("S"), values)
            else:
                np.testing.assert_allclose(predicted[key], values, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("name", estimators())
def test_a_kept_checkpoint_predicts_and_measures_the_same(name: str, tmp_path: Path) -> None:
    import keras

    model = started(name, KEPT / name)
    check_predictions(model, name)
    for batch in batches(estimators()[name][1], 4):
        measured = model.test_step(batch)
    recorded = json.loads((KEPT / name / "evaluation.json").read_text())
    assert recorded.pop("global_step") == STEPS
    loss = recorded.pop("loss")
    if name != BEGUN:  # Estimator has the mean over batches of their sums, Keras that over rows
        assert float(measured["loss"]) == pytest.approx(loss, rel=1e-5)
    assert {key: float(value) for key, value in measured.items() if key != "loss"} == pytest.approx(recorded, rel=1e-4)

    model.save(tmp_path / "model.keras")
    check_predictions(keras.saving.load_model(tmp_path / "model.keras"), name)


@pytest.mark.parametrize("name", ["linear_classifier", "linear_regressor", "linear_classifier_of_texts", BEGUN])
def test_training_from_the_beginning_ends_where_estimator_ended(name: str) -> None:
    """Defaults of optimizers, losses, weights and gradients are the same: linear models begin with zeros."""
    import tensorflow as tf

    from hpc_train.model.backward import loss_and_gradients

    estimator, label = estimators()[name]
    model = started(name, KEPT / name / "begun") if name == BEGUN else canned_model(estimator.params)
    variables = model.trainable_variables
    model.optimizer.build(variables)

    @tf.function(autograph=False)
    def step(batch: Any) -> None:
        found = loss_and_gradients(model, batch).gradients
        model.optimizer.apply([tf.convert_to_tensor(gradient) for gradient in found], variables)

    for batch in batches(label, STEPS):
        step(batch)
    check_predictions(model, name)
    kept = started(name, KEPT / name)
    for ours, theirs in zip(variables, kept.trainable_variables, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5, err_msg=ours.path)
