"""run.learning_rate_cycle: the rate at each step, what of an optimizer stays, and which models it is not for."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train import UserError
from hpc_train.model.learning_rate import with_cycle

optimizers = keras.optimizers


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 500), st.integers(0, 5000), st.floats(1e-5, 1.0))
def test_the_rate_is_that_of_snapshot_ensembles(cycle: int, step: int, begin: float) -> None:
    made = with_cycle(optimizers.SGD(begin), cycle, "build")
    made.iterations.assign(step)
    expected = begin / 2 * (math.cos(math.pi * (step % cycle) / cycle) + 1)
    assert float(made.learning_rate) == pytest.approx(expected, rel=1e-4, abs=begin * 1e-3)


def test_all_else_of_the_optimizer_stays() -> None:
    given = optimizers.AdamW(0.01, beta_1=0.8, weight_decay=0.1, clipnorm=2.0, use_ema=True, name="mine")
    given.exclude_from_weight_decay(var_names=["bias"])
    made = with_cycle(given, 5, "build")
    assert type(made) is optimizers.AdamW
    rate = made.get_config().pop("learning_rate")["config"]
    assert (rate["initial_learning_rate"], rate["first_decay_steps"], rate["t_mul"]) == (0.01, 5, 1.0)
    same = [{k: v for k, v in one.get_config().items() if k != "learning_rate"} for one in (given, made)]
    assert same[0] == same[1]
    kernel, bias = keras.Variable(np.ones(2), name="kernel"), keras.Variable(np.ones(2), name="bias")
    made.build([kernel, bias])
    assert made._use_weight_decay(kernel) and not made._use_weight_decay(bias)


def test_a_loss_scale_stays() -> None:
    made = with_cycle(optimizers.LossScaleOptimizer(optimizers.SGD(0.5), initial_scale=64), 4, "build")
    assert made.initial_scale == 64 and float(made.learning_rate) == 0.5
    made.inner_optimizer.iterations.assign(2)
    assert float(made.learning_rate) == pytest.approx(0.25)


class Own(optimizers.SGD):
    def __init__(self, secret: int) -> None:
        super().__init__(0.1)


@pytest.mark.parametrize(
    ("optimizer", "wanted"),
    [
        (
            optimizers.SGD(optimizers.schedules.CosineDecay(0.1, 9)),
            "build has a learning rate of its own course, CosineDecay; give",
        ),
        (optimizers.SGD(lambda: 0.1), "build has a learning rate of its own course"),
        (None, "build has several optimizers, or none"),
        (Own(3), "the Own of build cannot be made again from its get_config"),
    ],
)
def test_what_has_no_constant_rate_is_refused(optimizer: Any, wanted: str) -> None:
    with pytest.raises(UserError, match=f"run.learning_rate_cycle: {wanted}"):
        with_cycle(optimizer, 5, "build")
