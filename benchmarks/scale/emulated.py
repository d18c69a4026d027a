"""A device that is emulated: a queue of work that goes on beside the host, and a model whose steps are put there.

It behaves as a GPU's stream does. A function that is run puts its work into the queue, and returns; the work begins
when what was queued before is over and its input has been transferred; who reads a result waits. No thread is needed
for that: when work ends is known as soon as it is queued, so that nothing on the host can hold it up, or hurry it.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hpc_train.engine import step_report

VARIABLES = 8
"""The parameters are so many variables of the same size."""
TRANSFER_BYTES_A_SEC = 12e9
"""Of input to the device, as over PCI Express 3.0."""
MOST_STEPS = 20_000
"""Whose times are kept."""


class Device:
    """The queue of an emulated device, and the one that copies input to it. Times are those of time.perf_counter()."""

    def __init__(self) -> None:
        self._free = self._copied = 0.0
        self._steps: deque[tuple[float, float]] = deque(maxlen=MOST_STEPS)
        self._unread: deque[float] = deque(maxlen=MOST_STEPS)

    def begin(self) -> None:
        """Training begins: nobody will ask for what was queued before."""
        self._unread.clear()

    def queue(self, secs: float, input_bytes: int) -> float:
        """Queues a step; returns when it will end."""
        now = time.perf_counter()
        self._copied = max(now, self._copied) + input_bytes / TRANSFER_BYTES_A_SEC
        begins = max(now, self._free, self._copied)
        self._free = begins + secs
        self._steps.append((begins, self._free))
        self._unread.append(self._free)
        return self._free

    def read(self) -> None:
        """Waits for the oldest step that nobody has waited for."""
        if self._unread:
            wait_until(self._unread.popleft())

    def busy(self, steps: int) -> float | None:
        """The part of the time in which it worked during the last `steps` steps; None where there were not so many."""
        last = list(self._steps)[-steps:]
        if steps < 2 or len(last) < steps:
            return None
        return sum(end - begin for begin, end in last) / (last[-1][1] - last[0][0])


def wait_until(end: float) -> None:
    """Sleeps until time.perf_counter() is `end`, without Python's lock."""
    while (left := end - time.perf_counter()) > 0:
        time.sleep(left)


DEVICE = Device()
"""This rank's."""


@keras.saving.register_keras_serializable("hpc_train_benchmarks")
class EmulatedModel(keras.Model):
    """Its steps take `step_ms` of the device, and have gradients of `gradient_bytes` bytes.

    Nothing is computed: the gradients are read from variables of their own, zeros, without a copy. What is measured
    around it is true: allreduce or push of that many bytes, update, input, the loop. The update belongs to the step
    that the queue holds, and is made by the cores meanwhile.

    Args:
        exchanges: Whether the host sends the gradients to other ranks: they leave the device once it has computed them.
    """

    def __init__(self, step_ms: float, gradient_bytes: int, exchanges: bool, **more: Any) -> None:
        super().__init__(**more)
        self.step_ms, self.gradient_bytes, self.exchanges = step_ms, gradient_bytes, exchanges
        numbers = max(1, round(gradient_bytes / 4 / VARIABLES))
        self._parts = [
            self.add_weight(shape=(numbers,), initializer="zeros", name=f"part{i}") for i in range(VARIABLES)
        ]
        self._zeros = [tf.Variable(tf.zeros([numbers]), trainable=False) for _ in range(VARIABLES)]

    def get_config(self) -> dict[str, Any]:
        about = {"step_ms": self.step_ms, "gradient_bytes": self.gradient_bytes, "exchanges": self.exchanges}
        return {**super().get_config(), **about}

    def build(self, input_shape: Any) -> None:
        self.built = True

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        secs, zeros, exchanges = self.step_ms / 1e3, self._zeros, self.exchanges

        def step(rows: np.ndarray) -> np.ndarray:
            end = DEVICE.queue(secs, 2 * rows.nbytes)  # features and labels
            if exchanges:
                wait_until(end)
            return rows

        @tf.custom_gradient
        def pretend(rows: tf.Tensor, *parts: tf.Tensor) -> Any:
            queued = tf.numpy_function(step, [rows], tf.float32) if training else rows
            queued.set_shape(rows.shape)

            def gradients(upstream: tf.Tensor) -> tuple[Any, ...]:
                with tf.control_dependencies([queued]):
                    return (upstream, *[zero.read_value() for zero in zeros])

            return queued, gradients

        return pretend(x, *[part.value for part in self._parts])


def build_model(case: dict[str, Any]) -> keras.Model:
    """An EmulatedModel as `case` asks for it, compiled; what a step reports is waited for from now on."""
    step_report.to_host = _to_host
    alone = case["workers"] == 1 and case["run"]["strategy"] == "sync"
    model = EmulatedModel(case["emulate_step_ms"], case["gradient_bytes"], exchanges=not alone)
    model.compile(keras.optimizers.SGD(1e-3), keras.losses.MeanSquaredError())
    model(tf.zeros([1, 1]))
    return model


def _to_host(report: tf.Tensor) -> tuple[np.ndarray, float]:
    """The report of a step, once the device has made it."""
    numbers = report.numpy()
    DEVICE.read()
    return numbers, time.time()
