"""Updates of SGD and Adam as one TensorFlow operation a variable, instead of one for each addition and product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras
import tensorflow as tf

UpdateStep = Callable[[Any, Any, Any], None]

DTYPES = (tf.float16, tf.float32, tf.float64)
"""Of variables that the operations take on GPUs, too; for the others Keras's own update runs."""


@contextmanager
def fused_updates(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """While it is open, `optimizer` updates a variable in one pass over memory, where TensorFlow has that operation.

    For what Keras computes, to rounding: keras.optimizers.SGD, with momentum or without, and Adam without amsgrad, not
    what is derived from them; not for rows of a variable (IndexedSlices). All that Keras does beside the update itself
    (clipping, weight decay, moving averages, schedules, accumulation, loss scale, constraints) stays as it is. To be
    open where a tf.function that applies gradients is traced.
    """
    inner = optimizer.inner_optimizer if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else optimizer
    update, unfused = _fused(inner), inner.update_step
    if update is None:
        yield
        return

    def fused_where_possible(gradient: Any, variable: Any, learning_rate: Any) -> None:
        known = isinstance(gradient, tf.Tensor) and tf.as_dtype(variable.dtype) in DTYPES
        (update if known else unfused)(gradient, variable, learning_rate)

    inner.update_step = fused_where_possible
    try:
        yield
    finally:
        del inner.update_step


def _fused(optimizer: Any) -> UpdateStep | None:
    if type(optimizer) is keras.optimizers.SGD:
        return partial(_sgd, optimizer)
    if type(optimizer) is keras.optimizers.Adam and not optimizer.amsgrad:
        return partial(_adam, optimizer)
    return None


def _sgd(optimizer: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
    """Momentum * m - learning_rate * g becomes m, and is added to the variable."""
    handle, rate, gradient = _operands(variable, learning_rate, gradient)
    if not optimizer.momentum:
        tf.raw_ops.ResourceApplyGradientDescent(var=handle, alpha=rate, delta=gradient)
        return
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=handle,
        accum=_state(optimizer, optimizer.momentums, variable),
        lr=rate,
        grad=gradient,
        momentum=tf.cast(optimizer.momentum, gradient.dtype),
        use_nesterov=bool(optimizer.nesterov),
    )


def _adam(optimizer: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
    """Kingma and Ba, arXiv:1412.6980, in the order of section 2's end, as Keras has it."""
    handle, rate, gradient = _operands(variable, learning_rate, gradient)
    step = tf.cast(tf.convert_to_tensor(optimizer.iterations) + 1, gradient.dtype)
    # Keras's powers are those of betas in float32, also for variables in float64; its averages' factors are not.
    betas = optimizer.beta_1, optimizer.beta_2
    powers = [tf.pow(tf.cast(tf.constant(beta, tf.float32), gradient.dtype), step) for beta in betas]
    tf.raw_ops.ResourceApplyAdam(
        var=handle,
        m=_state(optimizer, optimizer._momentums, variable),
        v=_state(optimizer, optimizer._velocities, variable),
        beta1_power=powers[0],
        beta2_power=powers[1],
        lr=rate,
        beta1=tf.constant(betas[0], gradient.dtype),
        beta2=tf.constant(betas[1], gradient.dtype),
        epsilon=tf.constant(optimizer.epsilon, gradient.dtype),
        grad=gradient,
    )


def _operands(variable: Any, learning_rate: Any, gradient: Any) -> tuple[Any, Any, Any]:
    """The variable's handle, and the others in its dtype."""
    return variable.handle, tf.cast(learning_rate, variable.dtype), tf.cast(gradient, variable.dtype)


def _state(optimizer: Any, variables: list[Any], variable: Any) -> Any:
    return variables[optimizer._get_variable_index(variable)].value.handle
