"""The user's Keras optimizer on pieces of variables: which of its variables belong to which, and what it can't do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpc_train.distributed.share import averaged_over, set_share, share_of
from hpc_train.distributed.tensors import dtype_of
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


def parts_of(optimizer: keras.optimizers.Optimizer, variables: Sequence[Any] = ()) -> list[keras.optimizers.Optimizer]:
    """The optimizers that update variables: itself, the one in a LossScaleOptimizer, or those of a MultiOptimizer.

    Args:
        variables: By which a MultiOptimizer that is not built yet may choose them.
    """
    optimizer = unscaled(optimizer)
    choose = getattr(optimizer, "_optimizer_map", None)
    if choose is not None and not optimizer.built and variables:
        return list({id(part): part for part in map(choose, variables)}.values())
    inner = getattr(optimizer, "optimizers", None)
    return list(inner) if inner else [optimizer]


def unscaled(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer in a LossScaleOptimizer; any other as it is."""
    return optimizer.inner_optimizer if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else optimizer


def of_parts(optimizer: keras.optimizers.Optimizer, variables: Sequence[Any]) -> list[tuple[Any, list[int]]]:
    """Each of `parts_of` with the places of its `variables`, which it has been built on."""
    parts, optimizer = parts_of(optimizer), unscaled(optimizer)
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
    kind = keras.optimizers.Optimizer
    add = kind.add_variable_from_reference

    def noted(part: Any, reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
        slot = add(part, reference_variable, *args, **kwargs)
        slots[numbers[id(reference_variable)]].append(slot)
        if (share := share_of(reference_variable)) is not None and tuple(slot.shape) == share.held:
            set_share(slot, share, averaged_over(reference_variable))
        return slot

    kind.add_variable_from_reference = noted  # of all parts of a MultiOptimizer, which it may choose only now
    try:
        optimizer.build(variables)
    finally:
        del kind.add_variable_from_reference
    known = {id(slot) for own in slots for slot in own}
    return OptimizerVariables(slots, [v for v in optimizer.variables if id(v) not in known])


def copies_in(optimizer: keras.optimizers.Optimizer) -> list[int]:
    """Which of a variable's slots begin as a copy of it, as numbers among them; tried out."""
    clone = type(optimizer).from_config(optimizer.get_config())
    variable = keras.Variable(np.arange(1.0, 6.0))
    (slots,) = build(clone, [variable]).slots
    return [number for number, slot in enumerate(slots) if np.array_equal(slot.numpy(), variable.numpy())]


def refuse_loss_scale(optimizer: keras.optimizers.Optimizer) -> None:
    """UserError for an optimizer whose loss scale workers and servers would have to change together."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise UserError(
            "run.strategy: async cannot be used with LossScaleOptimizer (mixed_float16), whose loss scale workers and "
            "servers would have to change together; take mixed_bfloat16, or strategy: sync"
        )


def held_as(variable: Any, shape: tuple[int, ...]) -> Any:
    """A Keras variable of zeros for a piece of `variable`; by its path some optimizers choose how to update it."""
    held = keras.Variable(np.zeros(shape, dtype_of(variable)), dtype=variable.dtype, name=variable.name)
    held._path = variable.path
    return held


def exclude_alike(optimizer: keras.optimizers.Optimizer, variables: Sequence[Any], held: Sequence[Any]) -> None:
    """Weight decay leaves out what is `held` of the variables that it leaves out itself (exclude_from_weight_decay)."""
    for part in parts_of(optimizer):
        pairs = zip(held, variables, strict=True)
        left_out = {part._var_key(piece) for piece, whole in pairs if not part._use_weight_decay(whole.value)}
        if left_out:
            part._exclude_from_weight_decay = getattr(part, "_exclude_from_weight_decay", set()) | left_out
        part._exclude_from_weight_decay_cache = {}


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
