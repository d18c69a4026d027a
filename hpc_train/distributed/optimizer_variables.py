"""The user's Keras optimizer on pieces of variables: which of its variables belong to which, and what it can't do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpc_train.distributed.share import averaged_over, set_share, share_of
from hpc_train.errors import UserError
from hpc_train.lazy import keras, tf


@dataclass(frozen=True)
class OptimizerVariables:
    """Variables of a built optimizer.

    Attributes:
        slots: For each variable that it was built on, those that have its shape (momentum and the like).
        common: The others (the iteration, the learning rate).
    """

    slots: list[list[Any]]
    common: list[Any]


def parts_of(optimizer: keras.optimizers.Optimizer) -> list[keras.optimizers.Optimizer]:
    """The optimizers that update variables: itself, or those among which a MultiOptimizer divides them."""
    inner = getattr(optimizer, "optimizers", None)
    return list(inner) if inner else [optimizer]


def of_parts(optimizer: keras.optimizers.Optimizer, variables: Sequence[Any]) -> list[tuple[Any, list[int]]]:
    """Each of `parts_of` with the places of its `variables`, which it has been built on."""
    parts = parts_of(optimizer)
    if parts == [optimizer]:
        return [(optimizer, list(range(len(variables))))]
    numbers = [optimizer._var_to_optimizer_idx[optimizer._var_key(variable)] for variable in variables]
    return [(part, [place for place, own in enumerate(numbers) if own == number]) for number, part in enumerate(parts)]


def clipped(optimizer: keras.optimizers.Optimizer, values: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Gradients of `variables` as the optimizers that apply them clip them, each its own."""
    found = list(values)
    for part, places in of_parts(optimizer, variables):
        for place, value in zip(places, part._clip_gradients([found[place] for place in places]), strict=True):
            found[place] = value
    return found


def build(optimizer: keras.optimizers.Optimizer, variables: list[Any]) -> OptimizerVariables:
    """Builds `optimizer` on `variables`, and returns which of its variables belong to which of them.

    Of a variable of which this rank holds a part, slots are of the same part.
    """
    numbers = {id(variable): number for number, variable in enumerate(variables)}
    slots: list[list[Any]] = [[] for _ in variables]
    parts = [getattr(part, "inner_optimizer", part) for part in parts_of(optimizer)]

    def noting(add: Callable[..., Any]) -> Callable[..., Any]:
        def noted(reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
            slot = add(reference_variable, *args, **kwargs)
            slots[numbers[id(reference_variable)]].append(slot)
            if (share := share_of(reference_variable)) is not None and tuple(slot.shape) == share.held:
                set_share(slot, share, averaged_over(reference_variable))
            return slot

        return noted

    for part in parts:
        part.add_variable_from_reference = noting(part.add_variable_from_reference)
    try:
        optimizer.build(variables)
    finally:
        for part in parts:
            del part.add_variable_from_reference
    known = {id(slot) for own in slots for slot in own}
    return OptimizerVariables(slots, [v for v in optimizer.variables if id(v) not in known])


def refuse_loss_scale(optimizer: keras.optimizers.Optimizer) -> None:
    """UserError for an optimizer whose loss scale workers and servers would have to change together."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise UserError(
            "run.strategy: async cannot be used with LossScaleOptimizer (mixed_float16), whose loss scale workers and "
            "servers would have to change together; take mixed_bfloat16, or strategy: sync"
        )


def refuse_uncuttable(optimizer: keras.optimizers.Optimizer, names: list[str]) -> None:
    """UserError where `optimizer` does not treat the parts of a variable as it treats the whole.

    It is tried out: two updates of a small matrix, whole and in two flat parts, must give the same. Lamb (norms of
    whole variables), Adafactor (means of rows and columns) and Muon (whole matrices) don't.

    Args:
        names: Of the variables that are cut.
    """
    for part in parts_of(optimizer):
        _refuse_uncuttable(part, names)


def _refuse_uncuttable(optimizer: keras.optimizers.Optimizer, names: list[str]) -> None:
    kind = type(optimizer).__name__
    try:
        whole, parts = _updated(optimizer, [(8, 6)]), _updated(optimizer, [(24,), (24,)])
    except Exception as error:
        raise UserError(
            f"run.parameter_servers: {kind} cannot be tried out on parts of variables ({type(error).__name__}: "
            f"{error}); set parameter_servers: 1, or give the optimizer a get_config that it can be made from"
        ) from error
    if not np.allclose(whole, parts, rtol=1e-4, atol=1e-6):
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        raise UserError(
            f"run.parameter_servers: {kind} cannot be applied to a part of a variable (it looks at the whole), but "
            f"{shown} would be cut; set parameter_servers: 1, or take an optimizer that works element by element, "
            "such as SGD, Adam or AdamW"
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


def _updated(optimizer: keras.optimizers.Optimizer, shapes: list[tuple[int, ...]], as_rows: bool = False) -> np.ndarray:
    """48 numbers, as variables of `shapes`, after two updates; the second gradient is zero in some rows of 6."""
    accumulating = {"gradient_accumulation_steps": optimizer.gradient_accumulation_steps if as_rows else None}
    config = {**optimizer.get_config(), "learning_rate": 0.1, "clipnorm": None, "global_clipnorm": None}
    clone = type(optimizer).from_config({**config, **accumulating})
    random = np.random.default_rng(0)
    values, first, second = random.normal(size=(3, 8, 6)).astype(np.float32)
    second[[1, 2, 5]] = 0

    def split(array: np.ndarray) -> list[np.ndarray]:
        return [part.reshape(shape) for part, shape in zip(np.split(array.ravel(), len(shapes)), shapes, strict=True)]

    variables = [keras.Variable(part) for part in split(values)]
    for gradient in (first, second):
        parts: list[Any] = [tf.constant(part) for part in split(gradient)]
        if as_rows:
            numbers = np.flatnonzero(gradient.any(axis=1))
            parts = [tf.IndexedSlices(tf.constant(gradient[numbers]), tf.constant(numbers), tf.constant([8, 6]))]
        clone.apply(parts, variables)
    return np.concatenate([np.ravel(keras.ops.convert_to_numpy(v)) for v in variables])
