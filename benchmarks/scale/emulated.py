"""A model whose compute is a wait that takes no core, and whose gradients are real bytes."""

from __future__ import annotations

import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

VARIABLES = 8
"""The parameters are so many variables of the same size."""


@keras.saving.register_keras_serializable("hpc_train_benchmarks")
class EmulatedModel(keras.Model):
    """Waits for `step_ms` in each forward pass; the backward pass hands out gradients of `gradient_bytes` bytes.

    Nothing is computed: the gradients are read from variables of their own, zeros, without a copy. What is measured
    around it is true: allreduce or push of that many bytes, update, input, the loop.
    """

    def __init__(self, step_ms: float, gradient_bytes: int, **more: Any) -> None:
        super().__init__(**more)
        self.step_ms, self.gradient_bytes = step_ms, gradient_bytes
        numbers = max(1, round(gradient_bytes / 4 / VARIABLES))
        self._parts = [
            self.add_weight(shape=(numbers,), initializer="zeros", name=f"part{i}") for i in range(VARIABLES)
        ]
        self._zeros = [tf.Variable(tf.zeros([numbers]), trainable=False) for _ in range(VARIABLES)]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "step_ms": self.step_ms, "gradient_bytes": self.gradient_bytes}

    def build(self, input_shape: Any) -> None:
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        secs, zeros = self.step_ms / 1e3, self._zeros

        def wait(rows: np.ndarray) -> np.ndarray:
            time.sleep(secs)
            return rows

        @tf.custom_gradient
        def pretend(rows: tf.Tensor, *parts: tf.Tensor) -> Any:
            waited = tf.numpy_function(wait, [rows], tf.float32)
            waited.set_shape(rows.shape)

            def gradients(upstream: tf.Tensor) -> tuple[Any, ...]:
                with tf.control_dependencies([waited]):
                    return (upstream, *[zero.read_value() for zero in zeros])

            return waited, gradients

        return pretend(x, *[part.value for part in self._parts])


def build_model(params: dict[str, Any]) -> keras.Model:
    """An EmulatedModel with `step_ms` and `gradient_bytes` of `params`, compiled."""
    model = EmulatedModel(params["step_ms"], params["gradient_bytes"])
    model.compile(keras.optimizers.SGD(1e-3), keras.losses.MeanSquaredError())
    model(tf.zeros([1, 1]))
    return model
