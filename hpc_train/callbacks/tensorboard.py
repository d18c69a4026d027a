"""What TensorBoard is shown on request of the steps: weights, a profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpc_train.callbacks.hook import Hook
from hpc_train.callbacks.profiler import Profiler
from hpc_train.telemetry.metrics import MetricsWriter

if TYPE_CHECKING:
    import keras


class WeightHistograms(Hook):
    """Writes histograms of a model's trainable variables every so many steps. For the chief that trains."""

    def __init__(self, metrics: MetricsWriter, model: keras.Model, every_steps: int) -> None:
        self._metrics, self._model, self._every = metrics, model, every_steps

    def after_step(self, step: int, loss: float) -> None:
        if step % self._every == 0:
            self._metrics.weights(step, {v.path: np.asarray(v.numpy()) for v in self._model.trainable_variables})


class ProfilerHook(Hook):
    """Profiles the steps that `profiler` is for. For the first rank that trains."""

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler

    def before_step(self, step: int) -> None:
        self._profiler.before_step(step)

    def after_step(self, step: int, loss: float) -> None:
        self._profiler.after_step(step)
