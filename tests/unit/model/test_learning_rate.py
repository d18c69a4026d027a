"""What is known of an optimizer, and how a checkpoint's learning rate fits another one."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from hpc_train.model.learning_rate import constant_rate, optimizer_settings, with_rate

COSINE = keras.optimizers.schedules.CosineDecay(0.5, 100)
STATE = {"adam/iteration": np.array(7), "adam/learning_rate": np.array(0.5, np.float32), "adam/m": np.ones(3)}


class Own(keras.optimizers.SGD):
    def get_config(self):
        raise NotImplementedError("no idea")


def test_settings_are_what_the_optimizer_was_made_with() -> None:
    adam = optimizer_settings(keras.optimizers.Adam(0.001, beta_1=0.8))
    assert (adam["class"], adam["learning_rate"], adam["beta_1"]) == ("Adam", 0.001, 0.8)
    assert "name" not in adam
    cosine = optimizer_settings(keras.optimizers.SGD(COSINE))["learning_rate"]
    assert cosine["class_name"] == "CosineDecay" and cosine["config"]["decay_steps"] == 100
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)
    found = optimizer_settings(scaled)
    assert (found["class"], found["learning_rate"], found["initial_scale"]) == ("SGD", 0.1, 8.0)
    assert optimizer_settings(Own(0.25)) == {"class": "Own", "learning_rate": 0.25}
    assert constant_rate(keras.optimizers.SGD(COSINE)) is None
    assert constant_rate(keras.optimizers.SGD(lambda: 0.1)) is None


@pytest.mark.parametrize("prefix", ["adam", "adam_3"])
def test_a_rate_stays_is_renewed_put_in_or_left_out(prefix: str) -> None:
    names = [name.replace("adam", prefix) for name in STATE]
    rate = (f"{prefix}/learning_rate", np.array(0.1, np.float64))
    without = [name for name in names if not name.endswith("rate")]
    assert with_rate(STATE, names, rate, renewed=False) == STATE
    renewed = with_rate(STATE, names, rate, renewed=True)
    assert list(renewed) == list(STATE)
    assert renewed["adam/learning_rate"] == np.float32(0.1) and renewed["adam/learning_rate"].dtype == np.float32
    constant = with_rate(STATE, without, None, renewed=True)
    assert list(constant) == ["adam/iteration", "adam/m"]
    again = with_rate(constant, names, rate, renewed=True)
    assert list(again) == ["adam/iteration", rate[0], "adam/m"] and again[rate[0]] == 0.1
    assert STATE["adam/learning_rate"] == np.float32(0.5)


def test_both_rates_of_a_scaled_optimizer_have_their_place() -> None:
    outer, inner = "loss_scale_optimizer/learning_rate", "sgd/learning_rate"
    saved = {outer: np.array(0.0), "sgd/iteration": np.array(3), inner: np.array(0.5)}
    rate = (inner, np.array(0.25))
    assert with_rate(saved, list(saved), rate, renewed=True) == {**saved, inner: np.array(0.25)}
    assert list(with_rate(saved, [outer, "sgd/iteration"], None, renewed=True)) == [outer, "sgd/iteration"]
