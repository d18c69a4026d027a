"""What the user's Keras optimizer makes of parts of variables and of rows of gradients, found by trying it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpc_train.distributed.optimizer_variables import build, parts_of
from hpc_train.errors import UserError
from hpc_train.lazy import keras, tf


def copies_in(optimizer: keras.optimizers.Optimizer) -> list[int]:
    """Which of a variable's slots begin as a copy of it, as numbers among them; tried out."""
    clone = type(optimizer).from_config(optimizer.get_config())
    variable = keras.Variable(np.arange(1.0, 6.0))
    (slots,) = build(clone, [variable]).slots
    return [number for number, slot in enumerate(slots) if np.array_equal(slot.numpy(), variable.numpy())]


def refuse_uncuttable(optimizer: keras.optimizers.Optimizer, variables: Sequence[Any], option: str, way: str) -> None:
    """UserError where `optimizer` does not treat the parts of a variable as it treats the whole.

    It is tried out: two updates of a small matrix, whole and in two flat parts, must give the same. Lamb (norms of
    whole variables), Adafactor (means of rows and columns) and Muon (whole matrices) don't.

    Args:
        variables: Those that are cut.
        option, way: What asks for it, and what to set instead.
    """
    names = [variable.path for variable in variables]
    for part in parts_of(optimizer, variables):
        _refuse_uncuttable(part, names, option, way)


def _refuse_uncuttable(optimizer: keras.optimizers.Optimizer, names: list[str], option: str, way: str) -> None:
    kind = type(optimizer).__name__
    try:
        whole, parts = _updated(optimizer, [(8, 6)]), _updated(optimizer, [(24,), (24,)])
    except Exception as error:
        raise UserError(
            f"{option}: {kind} cannot be tried out on parts of variables ({type(error).__name__}: "
            f"{error}); {way}, or give the optimizer a get_config that it can be made from"
        ) from error
    if not np.allclose(whole, parts, rtol=1e-4, atol=1e-6):
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        raise UserError(
            f"{option}: {kind} cannot be applied to a part of a variable (it looks at the whole), but "
            f"{shown} would be cut; {way}, or take an optimizer that works element by element, such as SGD, Adam or "
            "AdamW"
        )


def takes_rows(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether `optimizer` makes the same of a gradient that is some rows as of the whole gradient.

    It is tried out, too; otherwise rows have to be put into a gradient that is zero elsewhere.
    """
    return all(map(_takes_rows, parts_of(optimizer)))


def _takes_rows(optimizer: keras.optimizers.Optimizer) -> bool:
    try:
        whole, rows = _updated(optimizer, [(8, 6)]), _updated(optimizer, [(8, 6)], as_rows=True)
    except Exception:
        return False
    return np.allclose(whole, rows, rtol=1e-4, atol=1e-6)


def leaves_rows(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether `optimizer` takes rows, and leaves alone those without a gradient: an update then costs what it has.

    SGD and Adagrad do. Whatever has momentum (Adam) moves all rows, which it does faster with a whole gradient.
    """
    return takes_rows(optimizer) and all(map(_leaves_rows, parts_of(optimizer)))


def _leaves_rows(optimizer: keras.optimizers.Optimizer) -> bool:
    once, twice = (_updated(optimizer, [(8, 6)], True, updates).reshape(8, 6) for updates in (1, 2))
    return np.array_equal(once[_STILL], twice[_STILL])


_STILL = [1, 2, 5]


def _updated(
    optimizer: keras.optimizers.Optimizer, shapes: list[tuple[int, ...]], as_rows: bool = False, updates: int = 2
) -> np.ndarray:
    """48 numbers, as variables of `shapes`, after two updates; the second gradient is zero in the rows _STILL of 6."""
    accumulating = {"gradient_accumulation_steps": optimizer.gradient_accumulation_steps if as_rows else None}
    config = {**optimizer.get_config(), "learning_rate": 0.1, "clipnorm": None, "global_clipnorm": None}
    clone = type(optimizer).from_config({**config, **accumulating})
    random = np.random.default_rng(0)
    values, first, second = random.normal(size=(3, 8, 6)).astype(np.float32)
    second[_STILL] = 0

    def split(array: np.ndarray) -> list[np.ndarray]:
        return [part.reshape(shape) for part, shape in zip(np.split(array.ravel(), len(shapes)), shapes, strict=True)]

    variables = [keras.Variable(part) for part in split(values)]
    for gradient in (first, second)[:updates]:
        parts: list[Any] = [tf.constant(part) for part in split(gradient)]
        if as_rows:
            numbers = np.flatnonzero(gradient.any(axis=1))
            parts = [tf.IndexedSlices(tf.constant(gradient[numbers]), tf.constant(numbers), tf.constant([8, 6]))]
        clone.apply(parts, variables)
    return np.concatenate([np.ravel(keras.ops.convert_to_numpy(v)) for v in variables])
