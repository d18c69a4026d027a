"""What TensorBoard is shown on request: weights, the graph, a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpc_train.callbacks.hook import Hook
from hpc_train.callbacks.profiler import Profiler
from hpc_train.config.specs import EvalSpec, HDF5Input, RunConfig, TrainSpec
from hpc_train.jobdir.paths import JOB_FILE
from hpc_train.model import rng_state
from hpc_train.telemetry.metrics import MetricsWriter

if TYPE_CHECKING:
    import keras


class WeightsShown(Hook):
    """Writes histograms of a model's trainable variables every so many steps. For the chief that trains."""

    def __init__(self, metrics: MetricsWriter, model: keras.Model, every_steps: int) -> None:
        self._metrics, self._model, self._every = metrics, model, every_steps

    def after_step(self, step: int, loss: float) -> None:
        if step % self._every == 0:
            self._metrics.weights(step, {v.path: np.asarray(v.numpy()) for v in self._model.trainable_variables})


class Profiled(Hook):
    """Profiles the steps that `profiler` is for. For the first rank that trains."""

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler

    def before_step(self, step: int) -> None:
        self._profiler.before_step(step)

    def after_step(self, step: int, loss: float) -> None:
        self._profiler.after_step(step)


def show_job(
    metrics: MetricsWriter,
    job_dir: Path,
    config: RunConfig,
    params: Mapping[str, Any],
    train_spec: TrainSpec,
    eval_specs: Sequence[EvalSpec],
    ranks: int,
    model: keras.Model,
    x_spec: Any,
) -> None:
    """Writes hyper-parameters, the job file's text, and the model's graph. For the chief."""
    source = train_spec.input_fn
    about = {
        "strategy": config.strategy,
        "ranks": ranks,
        "batch_size": source.batch_size if isinstance(source, HDF5Input) else None,
        "optimizer": type(model.optimizer).__name__,
        "mixed_precision": config.mixed_precision,
    }
    known = {name: value for name, value in about.items() if value is not None}
    metrics.hyperparameters({**known, **params}, [spec.kind for spec in eval_specs])
    metrics.text("job", f"```yaml\n{(job_dir / JOB_FILE).read_text()}\n```")
    with rng_state.unchanged():
        graph = _graph(model, x_spec)
    if graph is not None:
        metrics.graph(graph)


def _graph(model: keras.Model, x_spec: Any) -> Any:
    """The forward pass as a concrete function; None where it cannot be traced by itself."""
    import tensorflow as tf

    try:
        return tf.function(lambda x: model(x)).get_concrete_function(x_spec)
    except Exception:  # a picture less; training does not depend on it
        return None
