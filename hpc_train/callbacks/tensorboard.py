"""What TensorBoard is shown on request of the steps: weights, a profile."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from hpc_train.callbacks.hook import Hook
from hpc_train.folders import held, make_folder
from hpc_train.lazy import keras, tf
from hpc_train.telemetry.metrics import MetricsWriter

log = logging.getLogger(__name__)


class WeightHistograms(Hook):
    """Writes histograms of a model's trainable variables every so many steps. For the chief that trains."""

    needs_state = False  # but after those steps, at which nothing is in flight

    def __init__(self, metrics: MetricsWriter, model: keras.Model, every_steps: int) -> None:
        self._metrics, self._model, self._every = metrics, model, every_steps

    def after_step(self, step: int, loss: float) -> None:
        if step % self._every == 0:
            self._metrics.weights(step, {v.path: np.asarray(v.numpy()) for v in self._model.trainable_variables})


class Profiler(Hook):
    """Profiles steps `first` to `last` (counted from 1, both with) on this rank: a hook. Local. A context manager.

    Writes `<folder>/plugins/profile/<time>/<host>.xplane.pb`. It holds whole steps that this run makes: a run that
    begins inside the range profiles the rest, one that begins beyond it nothing, one that ends inside it what it has.
    What goes wrong is logged and ends the profile, never training.

    Args:
        folder: The run that TensorBoard shows it in, `<job_dir>/train`.
        steps: `first` and `last`; None profiles nothing.
    """

    needs_state = False  # but around those steps, at which nothing is in flight

    def __init__(self, folder: Path, steps: tuple[int, int] | None) -> None:
        self._folder, self._steps = folder, steps
        self._running, self._held = False, ExitStack()
        self._trace: tf.profiler.experimental.Trace | None = None

    def __enter__(self) -> Profiler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def before_step(self, step: int) -> None:
        if self._steps is None:
            return
        if not self._running and self._steps[0] <= step <= self._steps[1]:
            self._running = self._guarded(self._start)
        if self._running:
            self._guarded(lambda: self._enter(step))

    def after_step(self, step: int, loss: float) -> None:
        if self._steps is None:
            return
        self._leave()
        if self._running and step >= self._steps[1]:
            self.close()

    def close(self) -> None:
        """Writes the profile, where one is being made."""
        self._leave()
        if self._running:
            self._running, self._steps = False, None
            if self._guarded(lambda: tf.profiler.experimental.stop()):
                log.info(f"profile: written to {self._folder / 'plugins' / 'profile'}", extra={"any_rank": True})
        self._held.close()

    def _start(self) -> None:
        make_folder(self._folder / "plugins" / "profile", top=self._folder.parent)  # TensorFlow would follow links
        tf.profiler.experimental.start(str(self._held.enter_context(held(self._folder))))

    def _enter(self, step: int) -> None:
        self._trace = tf.profiler.experimental.Trace("train", step_num=step, _r=1)
        self._trace.__enter__()

    def _leave(self) -> None:
        trace, self._trace = self._trace, None
        if trace is not None:
            self._guarded(lambda: trace.__exit__(None, None, None))

    def _guarded(self, action: Callable[[], object]) -> bool:
        try:
            action()
        except Exception as error:  # whatever a profiler of another maker raises
            self._steps = None
            log.warning(f"the profile of chosen steps has failed: {error}; training goes on without")
            return False
        return True
