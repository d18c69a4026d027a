"""The user's Keras optimizer on pieces of variables: which of its variables belong to which, and what it can't do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hpc_train.errors import UserError

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class OptimizerVariables:
    """Variables of a built optimizer.

    Attributes:
        slots: For each variable that it was built on, those that have its shape (momentum and the like).
        common: The others (the iteration, the learning rate).
    """

    slots: list[list[Any]]
    common: list[Any]


def build(optimizer: keras.optimizers.Optimizer, variables: list[Any]) -> OptimizerVariables:
    """Builds `optimizer` on `variables`, and tells which of its variables belong to which of them."""
    numbers = {id(variable): number for number, variable in enumerate(variables)}
    slots: list[list[Any]] = [[] for _ in variables]
    add = optimizer.add_variable_from_reference

    def noted(reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
        slot = add(reference_variable, *args, **kwargs)
        slots[numbers[id(reference_variable)]].append(slot)
        return slot

    optimizer.add_variable_from_reference = noted
    try:
        optimizer.build(variables)
    finally:
        del optimizer.add_variable_from_reference
    known = {id(slot) for own in slots for slot in own}
    return OptimizerVariables(slots, [v for v in optimizer.variables if id(v) not in known])


def refuse_loss_scale(optimizer: keras.optimizers.Optimizer) -> None:
    """UserError for an optimizer whose loss scale workers and servers would have to change together."""
    import keras

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


def _updated(optimizer: keras.optimizers.Optimizer, shapes: list[tuple[int, ...]]) -> np.ndarray:
    import keras

    config = {**optimizer.get_config(), "learning_rate": 0.1, "clipnorm": None, "global_clipnorm": None}
    clone = type(optimizer).from_config({**config, "gradient_accumulation_steps": None})
    random = np.random.default_rng(0)
    values, *gradients = (np.split(random.normal(size=48).astype(np.float32), len(shapes)) for _ in range(3))
    variables = [keras.Variable(v.reshape(s)) for v, s in zip(values, shapes, strict=True)]
    for gradient in gradients:
        whole = [keras.ops.convert_to_tensor(g.reshape(s)) for g, s in zip(gradient, shapes, strict=True)]
        clone.apply(whole, variables)
    return np.concatenate([np.ravel(keras.ops.convert_to_numpy(v)) for v in variables])
