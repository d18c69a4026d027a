"""FTRL from zero is Keras's, and from other weights goes on from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"l1_regularization_strength": 0.02, "l2_regularization_strength": 0.1, "beta": 0.3},
    {"learning_rate_power": -0.4, "l2_shrinkage_regularization_strength": 0.01},
]


def gradients(step: int) -> np.ndarray:
    found = np.random.default_rng(step).normal(size=(4, 3)).astype(np.float32)
    found[step % 4] = 0
    return found


def updated(optimizer: Any, weights: np.ndarray, steps: int) -> list[np.ndarray]:
    variable, found = keras.Variable(weights), []
    for step in range(steps):
        optimizer.apply([keras.ops.convert_to_tensor(gradients(step))], [variable])
        found.append(variable.numpy())
    return found


@pytest.mark.parametrize("options", OPTIONS)
def test_from_zero_it_is_that_of_keras(options: dict[str, Any]) -> None:
    from hpc_train.optimizers.ftrl import Ftrl

    zeros = np.zeros((4, 3), np.float32)
    ours, theirs = (updated(kind(0.2, **options), zeros, 8) for kind in (Ftrl, keras.optimizers.Ftrl))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("options", OPTIONS)
def test_from_weights_it_goes_on_as_if_it_had_come_to_them(options: dict[str, Any]) -> None:
    """Weights without a gradient stay, and a small gradient moves them a little, not to zero."""
    from hpc_train.optimizers.ftrl import Ftrl

    weights = np.random.default_rng(9).normal(size=(4, 3)).astype(np.float32)
    after = updated(Ftrl(0.2, **options), weights, 1)[0]
    accumulated = (0.1 + gradients(0) ** 2) ** -options.get("learning_rate_power", -0.5)
    shrunk = gradients(0) + 2 * options.get("l2_shrinkage_regularization_strength", 0.0) * weights
    least = accumulated / 0.2 + 2 * options.get("l2_regularization_strength", 0.0) + options.get("beta", 0.0) / 0.2
    np.testing.assert_allclose(after, weights - shrunk / least, rtol=1e-4, atol=1e-5)
    again = Ftrl.from_config(Ftrl(0.2, **options).get_config())
    np.testing.assert_array_equal(updated(again, weights, 1)[0], after)
