"""Loss and gradients of a batch, computed at once or in pieces, one after the other."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpc_train.errors import UserError
from hpc_train.lazy import keras, tf


@dataclass(frozen=True)
class Backward:
    """Loss and gradients of a batch, inside a tf.function.

    Attributes:
        loss: Mean over the rows, with loss weights and regularisation.
        gradients: Of each trainable variable, of the loss as the optimizer scales it; None where it has none.
        graph: In which the model was called.
    """

    loss: tf.Tensor
    gradients: list[Any]
    graph: Any

    def may_assign(self, variable: Any) -> bool:
        """Whether the forward pass does more to `variable` than read it."""
        handle = variable.value.handle
        users = [inner.consumers() for outer, inner in self.graph.captures if outer is handle]
        return any(operation.type != "ReadVariableOp" for operations in users for operation in operations)


def loss_and_gradients(model: keras.Model, batch: Any, pieces: int = 1) -> Backward:
    """The loss of a batch and its gradients. Called inside a tf.function, after everything that reads state before.

    Args:
        pieces: The batch is cut into so many, each of ceil(rows / pieces) rows but the last ones, which may have fewer
            or none. They are computed one after the other, so that only one's activations are in memory, and loss
            and gradients are averaged with the pieces' rows as weights. All gradients are dense then.
    """
    if pieces == 1:
        return Backward(*_of_piece(model, batch), tf.compat.v1.get_default_graph())
    first = tf.nest.flatten(batch)[0]
    rows = tf.shape(first)[0]
    most = -(-rows // pieces)
    whole = first.shape[0] // pieces if first.shape[0] and first.shape[0] % pieces == 0 else None
    graphs, missing = [], [True for _ in model.trainable_variables]

    def add_piece(start: tf.Tensor, total: tf.Tensor, totals: list[tf.Tensor]) -> tuple[Any, ...]:
        stop = start + whole if whole else tf.minimum(start + most, rows)
        piece = tf.nest.map_structure(lambda tensor: tensor[start:stop], batch)
        if whole:
            for part, tensor in zip(tf.nest.flatten(piece), tf.nest.flatten(batch), strict=True):
                part.set_shape([whole, *tensor.shape[1:]])
        loss, gradients = _of_piece(model, piece)
        graphs.append(tf.compat.v1.get_default_graph())
        missing[:] = [gradient is None for gradient in gradients]
        share = tf.cast(stop - start, tf.float32) / tf.cast(rows, tf.float32)
        dense = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
        totals = [
            sum_ if gradient is None else sum_ + tf.cast(share, sum_.dtype) * tf.cast(gradient, sum_.dtype)
            for sum_, gradient in zip(totals, dense, strict=True)
        ]
        return stop, total + share * tf.cast(loss, tf.float32), totals

    zeros = [tf.zeros(variable.shape, variable.dtype) for variable in model.trainable_variables]
    _, loss, totals = tf.while_loop(
        lambda start, *_: start < rows, add_piece, (tf.constant(0), tf.constant(0.0), zeros), parallel_iterations=1
    )
    gradients = [None if absent else total for absent, total in zip(missing, totals, strict=True)]
    return Backward(loss, gradients, graphs[-1])


def check_accumulation(batch_size: int, pieces: int) -> None:
    """UserError where a batch of `batch_size` rows cannot be cut into so many pieces."""
    if pieces > batch_size:
        raise UserError(
            f"run.accumulate_steps: a batch of {batch_size} rows (data.train.batch_size) cannot be cut into {pieces} "
            f"pieces; allowed are 1 to {batch_size}. batch_size is what a rank gives to one step in all, not a piece"
        )


def _of_piece(model: keras.Model, batch: Any) -> tuple[tf.Tensor, list[Any]]:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    with tf.GradientTape() as tape:
        predicted = model(x, training=True) if _takes(model.call, "training") else model(x)
        extra = {"training": True} if _takes(model.compute_loss, "training") else {}
        loss = model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=sample_weight, **extra)
        scaled_loss = model.optimizer.scale_loss(loss)
    return loss, tape.gradient(scaled_loss, model.trainable_variables)


def _takes(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)
