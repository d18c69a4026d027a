"""What ranks that hold other parts of gradients have to find alike: whether all are finite, and their norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from hpc_train.distributed.collectives import Collectives
from hpc_train.distributed.optimizer_variables import of_parts
from hpc_train.lazy import keras, tf


def numbers_of(gradient: Any) -> tf.Tensor:
    """The numbers of a gradient, of one in rows, too."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def sum_of(gradients: Sequence[Any]) -> list[tf.Tensor]:
    """Sums of gradients, `[]` float32: not finite where one of their numbers is not."""
    return [tf.reduce_sum(tf.cast(numbers_of(gradient), tf.float32)) for gradient in gradients]


def all_finite(every: Collectives, gradients: Sequence[Any]) -> tf.Tensor:
    """Whether the gradients of all ranks are finite, the same on all. Collective."""
    own = tf.math.is_finite(tf.add_n([tf.zeros([]), *sum_of(gradients)]))
    (bad,) = every.allreduce([tf.reshape(tf.cast(tf.logical_not(own), tf.float32), [1])], gradient=False)
    return bad[0] <= 0


@contextmanager
def agreeing(
    optimizer: keras.optimizers.Optimizer,
    variables: Sequence[Any],
    copies: Sequence[int],
    every: Collectives,
    finite: tf.Tensor,
    alike: Callable[[list[Any]], None] | None = None,
) -> Iterator[None]:
    """While it is open, `optimizer` clips by the norms of all ranks' gradients, and scales its loss alike on all.

    Where it is applied then is collective. As Keras computes it, to rounding.

    Args:
        variables: Those that it is built on whose gradients it is given, in their order.
        copies: Of each, how many ranks hold the same elements.
        finite: Whether the gradients of all ranks are.
        alike: Is told of tensors that are the same on all ranks.
    """
    alike = alike or (lambda tensors: None)
    alike([finite])
    with ExitStack() as stack:
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            stack.enter_context(_replaced(optimizer, "check_finite", lambda _: finite))
        for part, places in of_parts(optimizer, variables):
            if part.clipnorm or part.global_clipnorm:
                clip = partial(_clipped, part, [copies[place] for place in places], every, alike)
                stack.enter_context(_replaced(part, "_clip_gradients", clip))
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    setattr(owner, name, value)
    try:
        yield
    finally:
        delattr(owner, name)


def _clipped(
    optimizer: Any,
    copies: Sequence[int],
    every: Collectives,
    alike: Callable[[list[Any]], None],
    gradients: Sequence[Any],
) -> list[Any]:
    own = [_square(gradient) / count for gradient, count in zip(gradients, copies, strict=True)]
    (squares,) = every.allreduce([tf.stack(own)], gradient=False)
    alike([squares])
    if optimizer.clipnorm:
        most = tf.constant(optimizer.clipnorm, tf.float64)
        scales = tf.unstack(most / tf.maximum(tf.sqrt(squares), most))
    else:
        most, norm = tf.constant(optimizer.global_clipnorm, tf.float64), tf.sqrt(tf.reduce_sum(squares))
        scales = [most * tf.minimum(1 / norm, 1 / most) + (norm - norm)] * len(gradients)
    return [with_numbers(gradient, partial(_times, scale)) for gradient, scale in zip(gradients, scales, strict=True)]


def _times(scale: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    return numbers * tf.cast(scale, numbers.dtype)


def _square(gradient: Any) -> tf.Tensor:
    numbers = numbers_of(gradient)
    wide = numbers if numbers.dtype == tf.float64 else tf.cast(numbers, tf.float32)
    return tf.cast(tf.reduce_sum(tf.square(wide)), tf.float64)


def with_numbers(gradient: Any, change: Callable[[tf.Tensor], tf.Tensor]) -> Any:
    """A gradient, in rows or not, with its numbers changed."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(change(gradient.values), gradient.indices, gradient.dense_shape)
    return change(gradient)
