"""One training step as one tf.function: forward, backward, average over ranks, apply unless the numbers went bad."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hpc_train.strategies.base import Strategy

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

TrainStep = Callable[[Any, "Flags"], "StepReport"]


@dataclass(frozen=True)
class Flags:
    """What a rank tells the others in passing: each is known to all of them once any has raised it.

    Attributes:
        stop: A signal asks to stop. save: the chief's clock asks for a checkpoint.
        exhausted: This rank has no further batch. leave_out: the batch is not to change the model.
    """

    stop: bool = False
    save: bool = False
    exhausted: bool = False
    leave_out: bool = False


@dataclass(frozen=True)
class StepReport:
    """What a step tells. All but `to_blame` are the same on all ranks.

    Attributes:
        loss: Mean over the ranks, with loss weights and regularisation.
        raised: The flags that any rank raised.
        applied: Whether the update was made.
        to_blame: Whether this rank's own loss or gradients were not finite.
    """

    loss: float
    raised: Flags
    applied: bool
    to_blame: bool


def make_train_step(model: keras.Model, strategy: Strategy, carried: Sequence[Any], undo: bool) -> TrainStep:
    """Builds `step(batch, flags) -> report`. The step is collective.

    The loss and the flags are averaged over all ranks in the same allreduce as the gradients: so ranks agree on what
    to do next at no cost. The update is made where the averaged loss and gradients are finite and no rank leaves the
    batch out; the averages being the same to the bit on all ranks, so is the decision.

    Args:
        carried: Variables that the forward pass may change (batch-norm averages). The changes of those that it does
            change are averaged too.
        undo: Give `carried` their old values back where the update is not made.
    """
    import keras
    import tensorflow as tf

    optimizer = model.optimizer
    assert optimizer is not None, "build_model lets no model without an optimizer through"
    # It makes gradients overflow to find the largest scale that does not, and leaves such steps out by itself.
    may_overflow = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    averages_carried = strategy.ranks > 1

    def step(batch: Any, flags: tf.Tensor) -> tf.Tensor:
        values = [tf.identity(v.value) for v in carried] if averages_carried or undo else []
        loss, gradients = loss_and_gradients(model, batch)
        changed = [(v, b) for v, b in zip(carried, values, strict=False) if may_be_assigned(v)]
        variables = model.trainable_variables
        used = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
        # Sparse gradients become dense on any number of ranks: Adam and clipping treat rows that occur twice otherwise.
        own = [tf.convert_to_tensor(g) for g, _ in used]
        changes = [v.value - b for v, b in changed] if averages_carried else []
        report = tf.concat([tf.reshape(tf.cast(loss, tf.float32), [1]), flags], axis=0)
        *averaged, report = strategy.average([*own, *changes, report])
        averaged, changes = averaged[: len(own)], averaged[len(own) :]

        def finite(loss: tf.Tensor, gradients: list[tf.Tensor]) -> tf.Tensor:
            sums = [] if may_overflow else [tf.reduce_sum(tf.cast(g, tf.float32)) for g in gradients]
            return tf.math.is_finite(tf.add_n([tf.cast(loss, tf.float32), *sums]))

        def apply() -> tf.Tensor:
            optimizer.apply_gradients(zip(averaged, (v for _, v in used), strict=True))
            for (variable, b), change in zip(changed, changes, strict=False):
                variable.assign(b + change)
            return tf.zeros([1])

        def leave() -> tf.Tensor:
            if undo:
                for variable, b in changed:
                    variable.assign(b)
            return tf.reshape(tf.cast(tf.logical_not(finite(loss, own)), tf.float32), [1])

        applied = tf.logical_and(finite(report[0], averaged), report[-1] <= 0)
        to_blame = tf.cond(applied, apply, leave)
        return tf.concat([report, [tf.cast(applied, tf.float32)], to_blame], axis=0)

    compiled = tf.function(step, reduce_retracing=True)

    def run(batch: Any, flags: Flags) -> StepReport:
        given = np.array([flags.stop, flags.save, flags.exhausted, flags.leave_out], np.float32)
        loss, stop, save, exhausted, leave_out, applied, to_blame = compiled(batch, tf.constant(given)).numpy()
        raised = Flags(bool(stop > 0), bool(save > 0), bool(exhausted > 0), bool(leave_out > 0))
        return StepReport(float(loss), raised, bool(applied), bool(to_blame))

    return run


def loss_and_gradients(model: keras.Model, batch: Any) -> tuple[tf.Tensor, list[Any]]:
    """The loss of a batch, and its gradients (of the loss as the optimizer scales it), None where it has none.

    Called inside a tf.function.
    """
    import keras
    import tensorflow as tf

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    with tf.GradientTape() as tape:
        predicted = model(x, training=True) if _takes(model.call, "training") else model(x)
        extra = {"training": True} if _takes(model.compute_loss, "training") else {}
        loss = model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=sample_weight, **extra)
        scaled_loss = model.optimizer.scale_loss(loss)
    return loss, tape.gradient(scaled_loss, model.trainable_variables)


def may_be_assigned(variable: Any) -> bool:
    """Whether the graph that is being built does more to `variable` than read it."""
    import tensorflow as tf

    handle = variable.value.handle
    for outer, inner in tf.compat.v1.get_default_graph().captures:
        if outer is handle:
            return any(operation.type != "ReadVariableOp" for operation in inner.consumers())
    return False


def _takes(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)
