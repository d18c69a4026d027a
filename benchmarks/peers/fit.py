"""Keras `model.fit` on one rank, timed between two of its batches."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from peers.told import Took


class _Clock(keras.callbacks.Callback):
    """Takes the time when batch number `warm_up` begins, and when the last one, which is not counted, does.

    Only the beginning of a batch is asked for: a callback at the end of batches has Keras fetch the logs each time.
    """

    def __init__(self, warm_up: int, steps: int) -> None:
        super().__init__()
        self._from, self._to = warm_up, warm_up + steps
        self._begun = Took(0.0, 0.0)
        self.took = Took(0.0, 0.0)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == self._from:
            self._begun = Took.now()
        elif batch == self._to:
            self.took = Took.until_now(self._begun)


class KerasFit:
    """Trains `model` by fit, without a progress bar and without metrics. Local.

    Without XLA, as by itself without a GPU: with it steps of these models take 1.7 to 3 times as long on a processor.

    Attributes:
        losses: The mean of the first call, and of the last one.
    """

    def __init__(self, model: keras.Model, dataset: tf.data.Dataset, jit_compile: bool = False) -> None:
        model.jit_compile = jit_compile
        self._model, self._dataset = model, dataset
        self._losses: list[float] = []

    def run(self, warm_up: int, steps: int) -> Took:
        """Fits `warm_up` steps, then so many more, and one; returns what the second part took."""
        clock = _Clock(warm_up, steps)
        done = self._model.fit(
            self._dataset, epochs=1, steps_per_epoch=warm_up + steps + 1, callbacks=[clock], verbose=0, shuffle=False
        )
        self._losses.append(float(done.history["loss"][0]))
        return clock.took

    @property
    def losses(self) -> tuple[float, float]:
        assert self._losses, "no step was made"
        return self._losses[0], self._losses[-1]
