"""One training step as one tf.function: forward, backward, average over ranks, apply unless the numbers went bad."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from typing import Any

import numpy as np

from hpc_train.distributed.allreduce import GradientAllreduce
from hpc_train.lazy import keras, tf
from hpc_train.model.backward import loss_and_gradients

TrainStep = Callable[[Any, "Flags"], "StepReport"]


@dataclass(frozen=True)
class Flags:
    """What a rank signals to the others with a step: each is known to all of them once any has raised it.

    Attributes:
        stop: A signal asks to stop. save: the chief's clock asks for a checkpoint.
        exhausted: This rank has no further batch. finish: a hook or a rule asks to end training normally.
        news: The first rank has something to send to the others.
        leave_out: The batch is not to change the model.
    """

    stop: bool = False
    save: bool = False
    exhausted: bool = False
    finish: bool = False
    news: bool = False
    leave_out: bool = False


@dataclass(frozen=True)
class StepReport:
    """What a step reports. All but `to_blame` and the seconds are the same on all ranks.

    Attributes:
        loss: Mean over the ranks, with loss weights and regularisation.
        raised: The flags that any rank raised.
        applied: Whether the update was made.
        to_blame: Whether this rank's own loss or gradients were not finite.
        communication_secs: From when this rank had its own gradients until it had the averages: so with the time that
            it waited for slower ranks. On a GPU, the host's clock counts what is left of computing the gradients, too.
            0 where one rank trains alone.
        apply_secs: From then until the step's end. 0 on a GPU, which the host's clock does not follow.

    Both are 0 under TensorFlow's op determinism, which allows a graph no clock.
    """

    loss: float
    raised: Flags
    applied: bool
    to_blame: bool
    communication_secs: float = 0.0
    apply_secs: float = 0.0


def make_train_step(
    model: keras.Model, allreduce: GradientAllreduce, carried: Sequence[Any], undo: bool, accumulate_steps: int = 1
) -> TrainStep:
    """Builds `step(batch, flags) -> report`. The step is collective.

    The loss and the flags are averaged over all ranks in the same allreduce as the gradients: so ranks agree on what
    to do next at no cost. The update is made where the averaged loss and gradients are finite and no rank leaves the
    batch out; the averages being the same to the bit on all ranks, so is the decision.

    Args:
        carried: Variables that the forward pass may change (batch-norm averages). The changes of those that it does
            change are averaged too.
        undo: Give `carried` their old values back where the update is not made.
        accumulate_steps: Pieces in which a batch is computed, see loss_and_gradients.
    """
    from hpc_train.optimizers.fused import fused_updates

    optimizer = model.optimizer
    assert optimizer is not None, "build_model lets no model without an optimizer through"
    # It makes gradients overflow to find the largest scale that does not, and leaves such steps out by itself.
    may_overflow = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    averages_carried = allreduce.ranks > 1

    def step(batch: Any, flags: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        values = [tf.identity(v.value) for v in carried] if averages_carried or undo else []
        backward = loss_and_gradients(model, batch, accumulate_steps)
        changed = [(v, b) for v, b in zip(carried, values, strict=False) if backward.may_assign(v)]
        variables = model.trainable_variables
        used = [(g, v) for g, v in zip(backward.gradients, variables, strict=True) if g is not None]
        # Sparse gradients become dense on any number of ranks: Adam and clipping treat rows that occur twice otherwise.
        own = [tf.convert_to_tensor(g) for g, _ in used]
        changes = [v.value - b for v, b in changed] if averages_carried else []
        report = tf.concat([tf.reshape(tf.cast(backward.loss, tf.float32), [1]), flags], axis=0)
        computed = _now_that([*own, *changes, report])
        averaged, (*changes, report) = allreduce.average(own, [*changes, report])
        there = _now_that([*averaged, *changes, report]) if allreduce.ranks > 1 else computed

        def finite(loss: tf.Tensor, gradients: list[tf.Tensor]) -> tf.Tensor:
            sums = [] if may_overflow else [tf.reduce_sum(tf.cast(g, tf.float32)) for g in gradients]
            return tf.math.is_finite(tf.add_n([tf.cast(loss, tf.float32), *sums]))

        def apply() -> tf.Tensor:
            with fused_updates(optimizer):
                optimizer.apply_gradients(zip(averaged, (v for _, v in used), strict=True))
            for (variable, b), change in zip(changed, changes, strict=False):
                variable.assign(b + change)
            return tf.zeros([1])

        def leave() -> tf.Tensor:
            if undo:
                for variable, b in changed:
                    variable.assign(b)
            return tf.reshape(tf.cast(tf.logical_not(finite(backward.loss, own)), tf.float32), [1])

        with tf.control_dependencies([there]):  # or the clock might be read when the update is over
            applied = tf.logical_and(finite(report[0], averaged), report[-1] <= 0)
            to_blame = tf.cond(applied, apply, leave)
        return tf.concat([report, [tf.cast(applied, tf.float32)], to_blame], axis=0), tf.stack([computed, there])

    # Without AutoGraph, as Keras does it: it takes longer than tracing.
    return _reporting(tf.function(step, reduce_retracing=True, autograph=False))


def _reporting(step: Callable[[Any, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]) -> TrainStep:
    """The compiled `step` with flags and what it reports as values."""
    on_gpu = bool(tf.config.list_logical_devices("GPU"))

    @cache
    def as_tensor(flags: Flags) -> tf.Tensor:
        return tf.constant(np.array(astuple(flags), np.float32))

    def run(batch: Any, flags: Flags) -> StepReport:
        report, times = step(batch, as_tensor(flags))
        loss, *raised, applied, to_blame = report.numpy()
        computed, there = times.numpy()
        return StepReport(
            float(loss),
            Flags(*(bool(flag > 0) for flag in raised)),
            bool(applied),
            bool(to_blame),
            communication_secs=max(0.0, float(there - computed)),
            apply_secs=0.0 if on_gpu or there == 0 else max(0.0, time.time() - float(there)),
        )

    return run


def _now_that(there: list[tf.Tensor]) -> tf.Tensor:
    """The clock (float64, s) once all of `there` are computed; 0 under op determinism, which allows no clock."""
    from tensorflow.python.framework.config import is_op_determinism_enabled

    with tf.control_dependencies(there):
        return tf.zeros([], tf.float64) if is_op_determinism_enabled() else tf.timestamp()
