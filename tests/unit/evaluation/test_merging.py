"""Which metrics ranks can compute apart and add up."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hpc_train.evaluation.merging import flat_results, merging
from hpc_train.model.builder import try_out


class Largest(keras.metrics.Metric):
    """The largest prediction: no sum."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.value.assign(tf.maximum(self.value, tf.reduce_max(predicted)))

    def result(self) -> Any:
        return self.value.value


class Kept(keras.metrics.Metric):
    """Keeps predictions in a list."""

    def __init__(self) -> None:
        super().__init__(name="kept")
        self.values: list[float] = []

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.values = [*self.values, float(tf.reduce_sum(predicted))]

    def result(self) -> Any:
        return tf.constant(float(np.median(self.values)) if self.values else 0.0)


class Total(Largest):
    """Adds up, and gives a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "total"

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.value.assign_add(tf.reduce_sum(predicted))

    def result(self) -> Any:
        return {"sum": self.value.value, "twice": 2 * self.value.value}


def model_with(*metrics: Any, kind: Any = keras.Model) -> keras.Model:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3,))
    model = kind(inputs, keras.layers.Dense(1, "exponential")(inputs))
    model.compile("sgd", "mse", metrics=list(metrics), run_eagerly=True)
    try_out(model, data())
    return model


def data(rows: int = 12, batch: int = 4) -> tf.data.Dataset:
    random = np.random.default_rng(0)
    arrays = random.normal(size=(rows, 3)).astype("float32"), random.normal(size=(rows, 1)).astype("float32")
    return tf.data.Dataset.from_tensor_slices(arrays).batch(batch)


@pytest.mark.parametrize("batch", [4, 12])
def test_what_adds_up_is_computed_by_all_ranks(batch: int) -> None:
    for metric in ("mae", keras.metrics.AUC(), Total()):
        model = model_with(metric)
        found = merging(model, data(batch=batch), ranks=2)
        assert not found.obstacle


@pytest.mark.parametrize("metric", [Largest, Kept])
def test_what_does_not_add_up_is_found(metric: Any) -> None:
    assert metric().name in merging(model_with(metric()), data(), ranks=2).obstacle
    assert not merging(model_with(metric()), data(), ranks=1).obstacle


def test_numbers_that_are_not_finite_do_not_show_that_they_add_up() -> None:
    model = model_with(Largest())
    model.layers[-1].bias.assign([np.nan])
    assert "is not finite, and does not show" in merging(model, data(), ranks=2).obstacle


def test_a_dict_of_results_has_its_own_names_as_in_keras() -> None:
    model = model_with(Total())
    model.run_eagerly = False
    theirs = model.evaluate(data(), return_dict=True, verbose=0)
    assert flat_results(model) == pytest.approx({name: float(value) for name, value in theirs.items()})
    assert {"sum", "twice"} <= flat_results(model).keys()


class Named(keras.Model):
    def test_step(self, batch: Any) -> dict[str, Any]:
        logs = super().test_step(batch)
        return {"mae": logs["mae"], "loss": logs["loss"]}


class Strange(keras.Model):
    def test_step(self, batch: Any) -> dict[str, Any]:
        return {**super().test_step(batch), "rows": tf.cast(tf.shape(batch[0])[0], tf.float32)}


def test_the_names_are_those_that_test_step_returns() -> None:
    found = merging(model_with("mae", kind=Named), data(), ranks=2)
    assert (found.names, found.obstacle) == (("mae", "loss"), "")


def test_a_value_of_one_batch_is_the_last_ones_as_in_keras() -> None:
    found = merging(model_with("mae", kind=Strange), data(), ranks=2)
    assert found.last_batch
    assert "'rows'" in found.obstacle
