"""The user's Keras optimizer on pieces of variables: which of its variables belong to which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpc_train.distributed.share import averaged_over, set_share, share_of
from hpc_train.distributed.tensors import dtype_of
from hpc_train.errors import UserError
from hpc_train.lazy import keras


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
