"""One step of a worker in an asynchronous job: forward and backward, and no update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from hpc_train.distributed.exchange import alone
from hpc_train.distributed.optimizer_variables import clipped
from hpc_train.distributed.tensors import on_host, view_of
from hpc_train.engine.step_report import now_that
from hpc_train.lazy import keras, tf
from hpc_train.model.backward import loss_and_gradients, uses_of
from hpc_train.model.batch import left_alone, zeros
from hpc_train.model.loss_terms import LossPlan
from hpc_train.telemetry.start_timeline import start_timeline

Kind = Literal["dense", "rows", "none"]
READING = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"}


@dataclass(frozen=True)
class LocalGradients:
    """What a worker's step gives.

    Attributes:
        gradients: Of each trainable variable: an array; the numbers (int64) of rows and these rows, each once; None.
        finite: Whether loss and gradients are. weight: by which both are multiplied.
        begun_at, done_at: When the step's first operation ran, and when all of this was in the host's memory; seconds
            since 1970. 0 under TensorFlow's op determinism, which allows a graph no clock.
    """

    loss: float
    finite: bool
    gradients: list[np.ndarray | tuple[np.ndarray, np.ndarray] | None]
    weight: float = 1.0
    begun_at: float = 0.0
    done_at: float = 0.0


class GradientStep:
    """Loss and gradients of a batch, clipped as the model's optimizer would clip them. Local.

    Args:
        spec: Of the batches.
        state: Variables that are not trained. Those that the step changes keep their values where the gradient is not
            finite.
        clip: Whether to clip here: a server that has part of a gradient cannot.
        accumulate_steps, plan: Pieces in which a batch is computed, and what the loss is made of; see
            loss_and_gradients.

    Attributes:
        kinds: Of each trainable variable's gradient. changed: places in `state` of the variables that the step may
            change. only_reads: Whether all that it does to trainable variables is to read them whole. assigned: paths
            of those to which the model itself assigns values, which no server would see. exchange: what
            gives the mean over all workers of numbers (float64 `[n]`) that the loss divides by, where it needs that.
    """

    def __init__(
        self,
        model: keras.Model,
        spec: Any,
        state: Sequence[Any],
        clip: bool,
        accumulate_steps: int = 1,
        plan: LossPlan | None = None,
    ) -> None:
        self.kinds: list[Kind] = ["none" for _ in model.trainable_variables]
        self.changed: list[int] = []
        self.only_reads = True
        self.exchange: Callable[[np.ndarray], np.ndarray] = lambda numbers: numbers
        optimizer, weighed = model.optimizer, plan is not None and plan.parts > 1

        def mean(numbers: tf.Tensor) -> tf.Tensor:
            found = tf.numpy_function(lambda own: self.exchange(own), [tf.cast(numbers, tf.float64)], tf.float64)
            return tf.cast(tf.ensure_shape(found, numbers.shape), numbers.dtype)

        def step(batch: Any) -> tuple[tf.Tensor, tf.Tensor, list[Any]]:
            begun = now_that([])
            with tf.control_dependencies([begun]):
                batch = tf.nest.map_structure(tf.identity, batch)
            before = [tf.identity(variable.value) for variable in state]
            with alone("workers of an asynchronous job compute each in its own time"):
                backward = loss_and_gradients(model, batch, accumulate_steps, plan, mean)
            loss, gradients, weight = backward.loss, backward.gradients, tf.ones([])
            if backward.weight is not None:
                weight = tf.cast(backward.weight, tf.float32)
                if not weighed:  # the pieces of a batch that is an update by itself
                    gradients = [None if g is None else _divided(g, backward.weight) for g in gradients]
                    loss, weight = loss / tf.cast(backward.weight, loss.dtype), tf.ones([])
            self.changed = [number for number, variable in enumerate(state) if backward.may_assign(variable)]
            self.only_reads = not any(map(backward.may_assign, model.trainable_variables))
            self.kinds = [_kind(gradient) for gradient in gradients]
            parts = [_parts(gradient) for gradient in gradients if gradient is not None]
            values = [values for values, _ in parts]
            if optimizer.loss_scale_factor is not None:
                values = [v / tf.cast(optimizer.loss_scale_factor, v.dtype) for v in values]
            sums = [tf.reduce_sum(tf.cast(v, tf.float32)) for v in values]
            finite = tf.math.is_finite(tf.add_n([tf.cast(loss, tf.float32), *sums]))

            def leave() -> tf.Tensor:
                for number in self.changed:
                    state[number].assign(before[number])
                return finite

            finite = tf.cond(finite, lambda: finite, leave)
            if clip:
                known = [v for v, g in zip(model.trainable_variables, gradients, strict=True) if g is not None]
                values = [tf.convert_to_tensor(v) for v in clipped(optimizer, values, known)]
            report = tf.stack([tf.cast(loss, tf.float32), tf.cast(finite, tf.float32), weight])
            with on_host():  # as part of the step: what is read later would wait for the next step, too
                report = tf.identity(report)
                found = [(tf.identity(v), tf.identity(numbers)) for v, (_, numbers) in zip(values, parts, strict=True)]
                return report, tf.stack([begun, now_that([report, *tf.nest.flatten(found)])]), found

        trained = model.trainable_variables
        if model.run_eagerly:
            self._step: Callable[[Any], tuple[tf.Tensor, tf.Tensor, list[Any]]] = step
            self.assigned = self._changed_by_zeros(model, spec)
        else:
            self._step = traced = tf.function(step, reduce_retracing=True, autograph=False)
            with start_timeline.within("trace"):
                graph = traced.get_concrete_function(spec).graph
            more = {variable.path: uses_of(graph, variable) - READING for variable in trained}
            self.assigned = [path for path, uses in more.items() if any(map(_assigns, uses))]
            if not self.assigned and any(more.values()):  # inside of functions of its own
                self.assigned = self._changed_by_zeros(model, spec)

    def _changed_by_zeros(self, model: keras.Model, spec: Any) -> list[str]:
        """Paths of the trainable variables that have other values after a step with zeros; it is undone."""
        before = [tf.identity(variable.value) for variable in model.trainable_variables]
        with left_alone(model):
            self._step(tf.nest.map_structure(lambda one: zeros([rows or 1 for rows in one.shape], one.dtype), spec))
        pairs = list(zip(model.trainable_variables, before, strict=True))
        changed = [v for v, old in pairs if not np.array_equal(v.numpy(), old.numpy(), equal_nan=False)]
        for variable, old in pairs:
            variable.assign(old)
        return [variable.path for variable in changed]

    def __call__(self, batch: Any) -> Callable[[], LocalGradients]:
        """Dispatches the step; what it returns waits for it, and gives arrays that share memory with its tensors."""
        return partial(self._read, *self._step(batch))

    def _read(self, report: tf.Tensor, times: tf.Tensor, parts: list[Any]) -> LocalGradients:
        loss, finite, weight = report.numpy()
        begun_at, done_at = times.numpy().tolist()
        found = iter(parts)
        gradients: list[Any] = []
        for kind in self.kinds:
            if kind == "none":
                gradients.append(None)
                continue
            values, numbers = next(found)
            gradients.append(view_of(values) if kind == "dense" else (view_of(numbers), view_of(values)))
        return LocalGradients(float(loss), bool(finite), gradients, float(weight), begun_at, done_at)


def _divided(gradient: Any, by: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / tf.cast(by, gradient.dtype), gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(by, gradient.dtype)


def _assigns(operation: str) -> bool:
    return operation.startswith(("Assign", "ResourceScatter", "ResourceApply"))


def _kind(gradient: Any) -> Kind:
    return "none" if gradient is None else "rows" if isinstance(gradient, tf.IndexedSlices) else "dense"


def _parts(gradient: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """The values of a gradient, and, where it is rows, their numbers; each row once."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient, tf.zeros([0], tf.int64)
    numbers, places = tf.unique(tf.cast(gradient.indices, tf.int64))
    return tf.math.unsorted_segment_sum(gradient.values, places, tf.size(numbers)), numbers
