"""The loop that somebody would write by hand with Horovod, as its documentation has it; nothing of hpc_train in it."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf

from peers.told import LAST_LOSSES, Took


def dataset_of(x: np.ndarray, y: np.ndarray) -> tf.data.Dataset:
    """Batches that lie in memory, over and over in the same order, two of them taken out ahead of their use."""
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().prefetch(2)


class PlainLoop:
    """Trains `model` on this rank, averaging gradients by one grouped allreduce a step.

    Args:
        horovod: Horovod's TensorFlow module, started; None: this rank trains by itself, without an allreduce.

    Attributes:
        losses: The first step's, and the mean of the last ones.
    """

    def __init__(self, model: Any, dataset: tf.data.Dataset, horovod: Any = None) -> None:
        optimizer, variables = model.optimizer, model.trainable_variables
        optimizer.build(variables)
        if horovod is not None:
            horovod.broadcast_variables([v.value for v in model.variables], root_rank=0)

        @tf.function
        def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
            gradients = tape.gradient(loss, variables)
            if horovod is not None:
                gradients = horovod.grouped_allreduce(gradients, op=horovod.Average)
            optimizer.apply(gradients, variables)
            return loss

        self._step, self._batches = step, iter(dataset)
        self._first: tf.Tensor | None = None
        self._last: deque[tf.Tensor] = deque(maxlen=LAST_LOSSES)

    def run(self, warm_up: int, steps: int) -> Took:
        """Makes `warm_up` steps, then so many more; returns what these took. Collective with Horovod."""
        self._go(warm_up)
        begun = Took.now()
        self._go(steps)
        return Took.until_now(begun)

    def _go(self, steps: int) -> None:
        last, step = self._last, self._step
        for x, y in islice(self._batches, steps):
            last.append(step(x, y))
        if last:
            float(last[-1])  # is there
            self._first = last[0] if self._first is None else self._first

    @property
    def losses(self) -> tuple[float, float]:
        assert self._first is not None, "no step was made"
        return float(self._first), float(np.mean([float(loss) for loss in self._last]))
