"""FTRL that begins from the weights it finds, as a warm start needs it."""

from __future__ import annotations

from typing import Any

import keras


@keras.saving.register_keras_serializable(package="hpc_train")
class Ftrl(keras.optimizers.Ftrl):  # type: ignore[misc]
    """Keras's Ftrl, the same to the bit for weights that begin with zero.

    FTRL (McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013) computes weights from the sum of
    all gradients, which Keras and TensorFlow begin with zero: so weights that are not zero, such as those of a warm
    start, are lost at their first update. Here that sum begins as the one of which those weights come.
    """

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One update of one variable."""
        ops, place = keras.ops, self._get_variable_index(variable)
        rate = ops.cast(learning_rate, variable.dtype)
        linear, weights = self._linears[place], ops.convert_to_tensor(variable)
        quadratic = (
            ops.power(self._accumulators[place], -self.learning_rate_power) / rate
            + 2 * self.l2_regularization_strength
            + self.beta / rate
        )
        begun = -(weights * quadratic + ops.sign(weights) * self.l1_regularization_strength)
        self.assign(linear, ops.where(ops.logical_and(ops.equal(linear, 0), ops.not_equal(weights, 0)), begun, linear))
        super().update_step(gradient, variable, learning_rate)
