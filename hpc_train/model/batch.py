"""A batch to try a model out with: like those that it will see, in shape and number of rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hpc_train.errors import UserError
from hpc_train.lazy import keras, tf
from hpc_train.model import rng_state


def specs_of(dataset: tf.data.Dataset) -> list[Any]:
    """Of each tensor of a batch of `dataset`."""
    specs: list[Any] = tf.nest.flatten(dataset.element_spec)
    return specs


def fixed_rows(model: keras.Model) -> int | None:
    """The number of rows that a model was built for, such as one with stateful layers; None: any."""
    inputs = getattr(model, "inputs", None) or []
    rows = {tensor.shape[0] for tensor in inputs if len(tensor.shape)}
    return next(iter(rows)) if len(rows) == 1 else None


def example(dataset: tf.data.Dataset, model: keras.Model) -> Any:
    """A batch of zeros like those of `dataset` where their shapes are known, else its first one.

    It has as many rows as they have or the model was built for; one, where that is open. Local.

    Raises:
        UserError: The dataset has no batch.
    """
    specs = specs_of(dataset)
    if all(isinstance(spec, tf.TensorSpec) and spec.shape.rank and spec.shape[1:].is_fully_defined() for spec in specs):
        known = [spec.shape[0] for spec in specs if spec.shape[0]]
        rows = known[0] if known else fixed_rows(model) or 1
        return tf.nest.map_structure(
            lambda spec: zeros([spec.shape[0] or rows, *spec.shape[1:]], spec.dtype), dataset.element_spec
        )
    batch = next(iter(dataset.take(1)), None)
    if batch is None:
        raise UserError("the input has no batches")
    return batch


def zeros(shape: list[int], dtype: Any) -> Any:
    """A tensor of zeros, or of empty texts."""
    return tf.fill(shape, "") if dtype == tf.string else tf.zeros(shape, dtype)


@contextmanager
def left_alone(model: keras.Model) -> Iterator[None]:
    """A context in which the model is called, and which leaves its state and random numbers as they were."""
    kept = [(variable, tf.identity(variable.value)) for variable in model.non_trainable_variables]
    with rng_state.unchanged():
        yield
    for variable, value in kept:
        variable.assign(value)
