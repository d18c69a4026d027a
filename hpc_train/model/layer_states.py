"""What layers keep from one batch to the next for its rows (recurrent layers with `stateful`): each rank its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hpc_train.lazy import keras, tf


def stateful_variables(model: keras.Model) -> list[Any]:
    """The variables that hold the last states of stateful layers."""
    found: dict[int, Any] = {}
    for layer in model._flatten_layers():
        if getattr(layer, "stateful", False):
            states = tf.nest.flatten(getattr(layer, "states", None) or [])
            found |= {id(state): state for state in states if isinstance(state, keras.Variable)}
    return list(found.values())


@contextmanager
def from_zero(model: keras.Model) -> Iterator[None]:
    """A context that begins with states of zero, and leaves them as they were: for an evaluation. Local."""
    variables = stateful_variables(model)
    kept = [tf.identity(variable.value) for variable in variables]
    reset(variables)
    try:
        yield
    finally:
        for variable, value in zip(variables, kept, strict=True):
            variable.assign(value)


def reset(variables: Sequence[Any]) -> None:
    """Sets them to zero, as a layer's `reset_state` does. Local."""
    for variable in variables:
        variable.assign(tf.zeros_like(variable.value))
