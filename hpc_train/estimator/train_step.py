"""One training step as one tf.function: forward, backward, average over ranks, apply."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hpc_train.strategies.base import Strategy

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


def make_train_step(model: keras.Model, strategy: Strategy) -> Callable[[Any, tf.Tensor], tf.Tensor]:
    """Builds `step(batch, flags) -> report`. The step is collective.

    The report is float32 `[1 + len(flags)]`: the loss (with loss weights and regularisation), then `flags` (float32),
    each averaged over all ranks in the same allreduce as the gradients. A flag is above zero afterwards where any
    rank raised it: so ranks agree on what to do next at no cost.
    """
    import keras
    import tensorflow as tf

    call_takes_training = _takes(model.call, "training")
    loss_takes_training = _takes(model.compute_loss, "training")
    optimizer = model.optimizer
    if optimizer is None:
        raise AssertionError("build_model lets no model without an optimizer through")

    def step(batch: Any, flags: tf.Tensor) -> tf.Tensor:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            predicted = model(x, training=True) if call_takes_training else model(x)
            extra = {"training": True} if loss_takes_training else {}
            loss = model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=sample_weight, **extra)
            scaled_loss = optimizer.scale_loss(loss)
        variables = model.trainable_variables
        gradients = tape.gradient(scaled_loss, variables)
        used = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
        report = tf.concat([tf.reshape(tf.cast(loss, tf.float32), [1]), flags], axis=0)
        # Sparse gradients become dense on any number of ranks: Adam and clipping treat rows that occur twice otherwise.
        *averaged, report = strategy.average([*(tf.convert_to_tensor(g) for g, _ in used), report])
        optimizer.apply_gradients(zip(averaged, (v for _, v in used), strict=True))
        return report

    compiled: Callable[[Any, tf.Tensor], tf.Tensor] = tf.function(step, reduce_retracing=True)
    return compiled


def _takes(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)
