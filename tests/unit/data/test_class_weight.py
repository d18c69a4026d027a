"""Weights of classes have Keras's effect."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hpc_train as ht
from hpc_train.data.loading.class_weight import weighted
from hpc_train.errors import UserError

WEIGHTS = {0: 0.5, 2: 3.0, 3: 1.5}
CLASSES = np.array([0, 1, 2, 3, 2, 0])


@pytest.mark.parametrize(
    "labels",
    [
        CLASSES.astype("int64"),
        CLASSES.astype("uint8"),
        CLASSES.astype("float32"),
        CLASSES[:, None].astype("int32"),
        np.eye(4, dtype="float32")[CLASSES],
        np.eye(4, dtype="int64")[CLASSES],
    ],
    ids=lambda labels: f"{labels.dtype}{list(labels.shape)}",
)
def test_rows_weigh_as_keras_weighs_them(labels: Any) -> None:
    make = keras.src.trainers.data_adapters.tf_dataset_adapter.make_class_weight_map_fn
    data = tf.data.Dataset.from_tensors((np.zeros((6, 2)), labels))
    ours, theirs = next(iter(weighted(data, WEIGHTS)))[2], next(iter(data.map(make(WEIGHTS))))[2]
    np.testing.assert_array_equal(ours, theirs)


def test_a_class_beyond_those_named_weighs_1() -> None:
    data = tf.data.Dataset.from_tensors((np.zeros((3, 2)), np.array([0, 9, -1])))
    np.testing.assert_array_equal(next(iter(weighted(data, {0: 2.0})))[2], [2, 1, 1])


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (np.zeros((2, 2)), "no label"),
        ((np.zeros((2, 2)), np.zeros(2), np.ones(2)), "sample weights already"),
        ((np.zeros((2, 2)), {"a": np.zeros(2), "b": np.zeros(2)}), "models with one label"),
        ((np.zeros((2, 2)), np.array(["a", "b"])), "labels are string"),
    ],
)
def test_what_keras_does_not_take_is_refused(batch: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        weighted(tf.data.Dataset.from_tensors(batch), WEIGHTS)


@pytest.mark.parametrize(
    "given", [{}, {"a": 1.0}, {0: "b"}, {-1: 1.0}, {0: -1.0}, {0: float("nan")}, [1.0], 3, {1.5: 1}]
)
def test_only_classes_and_weights_are_taken(given: Any) -> None:
    with pytest.raises(UserError, match=r"class_weight.*allowed: a mapping of classes"):
        ht.TrainSpec(lambda: None, max_steps=1, class_weight=given)


def test_classes_may_be_text_as_json_has_them() -> None:
    assert ht.TrainSpec(lambda: None, max_steps=1, class_weight={"0": 1, "3": 2.5}).class_weight == {0: 1.0, 3: 2.5}
