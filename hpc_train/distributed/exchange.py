"""What a training step may exchange with other ranks while the model is called: all rows, moments of all rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from hpc_train.arguments import checked_arguments
from hpc_train.distributed.collectives import Collectives
from hpc_train.distributed.groups import Groups
from hpc_train.errors import UserError
from hpc_train.lazy import keras, tf

_current: ContextVar[Groups | str | None] = ContextVar("exchange", default=None)


@contextmanager
def exchanging(groups: Groups) -> Iterator[None]:
    """A context in which a training step is traced, or run eagerly, whose ranks are these."""
    token = _current.set(groups)
    try:
        with _synchronized(groups.data):
            yield
    finally:
        _current.reset(token)


def groups() -> Groups | None:
    """Those of the step that is traced, or run eagerly; None outside of one."""
    found = _current.get()
    return None if isinstance(found, str) else found


@contextmanager
def alone(why: str) -> Iterator[None]:
    """A context in which no rank may ask for what others have; `why` is part of what a model that does is answered."""
    token = _current.set(why)
    try:
        yield
    finally:
        _current.reset(token)


@checked_arguments
def all_gather(tensor: Any) -> Any:
    """The rows of all ranks, one below the other by rank: `[B, ...]` to `[ranks * B, ...]`. Collective in training.

    For a loss that compares the rows of a batch with each other (contrastive losses), which else compares those of each
    rank apart. It can be differentiated: where each rank computes the same loss of all rows, the gradient averaged over
    ranks is that of one process with all rows. Outside of a training step, and on one rank, `tensor` as it is.

    Args:
        tensor: Of float16, bfloat16, float32, float64, int32 or int64, of the same shape on all ranks.

    Raises:
        UserError: The job is asynchronous: its workers do not compute at the same time.
        ValueError: Another dtype, or a shape that is not known when the step is traced.
    """
    found = _current.get()
    if isinstance(found, str):
        raise UserError(f"ht.all_gather: {found}; take strategy: sync")
    if found is None or found.data.ranks == 1 or keras.utils.is_keras_tensor(tensor):
        return tensor
    return found.data.allgather(tf.convert_to_tensor(tensor))


@contextmanager
def _synchronized(collectives: Collectives) -> Iterator[None]:
    """While it is open, BatchNormalization(synchronized=True) computes moments over all ranks."""
    if collectives.ranks == 1:
        yield
        return
    layer = keras.layers.BatchNormalization
    moments = layer._moments

    def moments_of_all(self: Any, inputs: Any, mask: Any) -> Any:
        if not self.synchronized or keras.utils.is_keras_tensor(inputs):
            return moments(self, inputs, mask)
        return _moments(collectives, inputs, self._reduction_axes, mask)

    layer._moments = moments_of_all
    try:
        yield
    finally:
        layer._moments = moments


def _moments(collectives: Collectives, inputs: Any, axes: list[int], mask: Any) -> tuple[Any, Any]:
    """Mean and variance of each channel over all ranks' rows, in the dtype of `inputs`.

    Each rank has mean and squared deviations from it; sums of both over ranks, in float64, give those of all. Chan,
    Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    """
    values = tf.cast(inputs, tf.float64 if inputs.dtype == tf.float64 else tf.float32)
    weights = tf.ones_like(values)
    if mask is not None:
        weights = tf.cast(tf.broadcast_to(tf.expand_dims(mask, -1), tf.shape(values)), values.dtype)
    count, total = tf.reduce_sum(weights, axes), tf.reduce_sum(weights * values, axes)
    own = tf.math.divide_no_nan(total, count)
    placed = tf.reshape(own, [1 if axis in axes else -1 for axis in range(len(values.shape))])
    deviations = tf.reduce_sum(weights * tf.square(values - placed), axes)
    count, total, deviations, own = (tf.cast(part, tf.float64) for part in (count, total, deviations, own))
    sums = tf.stack([count, total, deviations + total * own])
    counts, totals, squares = tf.unstack(collectives.allreduce([sums], "sum")[0])
    mean = tf.math.divide_no_nan(totals, counts)
    variance = tf.maximum(tf.math.divide_no_nan(squares, counts) - tf.square(mean), 0.0)
    return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)
