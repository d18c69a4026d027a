"""DistributedOptimizer: an optimizer of Keras that applies the gradients of all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from hpc_train.arguments import not_allowed
from hpc_train.errors import UserError
from hpc_train.horovod.accumulation import Accumulation
from hpc_train.horovod.compression import Compression
from hpc_train.horovod.gradients import GradientReduction
from hpc_train.horovod.operations import as_written
from hpc_train.horovod.settings import OF_OPTIMIZERS, Op
from hpc_train.lazy import keras

_WHERE = "hvd.DistributedOptimizer"
_PARTS = "_hpc_train_horovod"


def DistributedOptimizer(  # noqa: N802
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Op | None = Op.Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = None,
    scale_local_gradients: bool = True,
    use_locking: bool = False,
) -> Any:
    """An optimizer like `optimizer`, whose gradients are reduced over all ranks before it applies them.

    A new one of the same class, configuration and variables. Saved, it is the plain optimizer. Gradients are clipped,
    and with a LossScaleOptimizer unscaled and found to be finite or not, after they were reduced: alike on all ranks.

    Args:
        optimizer: Of Keras 3. With mixed_float16 it is a LossScaleOptimizer with another one inside.
        name: What names of operations begin with.
        op: Average (the default) or Sum.
        backward_passes_per_step: Gradients of so many batches are added up before they are reduced and applied once.
            `iterations` counts batches.
        average_aggregated_gradients: Whether they are divided by backward_passes_per_step.
        compression, sparse_as_dense, gradient_predivide_factor, groups, num_groups, scale_local_gradients: As those of
            DistributedGradientTape; `register_local_var` leaves a variable's gradients with each rank.
        device_dense, device_sparse, process_set, use_locking: Not offered.

    Raises:
        UserError: An argument that is not allowed, an optimizer that is distributed already, or before hvd.init().
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UserError(
            f"{_WHERE}: optimizer: {type(optimizer).__name__} is not allowed; allowed: an optimizer of Keras 3, "
            "such as keras.optimizers.Adam(0.001)"
        )
    inner = getattr(optimizer, "inner_optimizer", None)
    if hasattr(optimizer, _PARTS) or hasattr(inner, _PARTS):
        raise UserError(f"{_WHERE}: optimizer: it is distributed already; its gradients would be reduced twice")
    passes = backward_passes_per_step
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise not_allowed(_WHERE, "backward_passes_per_step", passes, "a whole number from 1")
    reduction = GradientReduction(
        _WHERE,
        OF_OPTIMIZERS,
        op,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        groups,
        num_groups,
        scale_local_gradients,
        device_dense=device_dense,
        device_sparse=device_sparse,
        process_set=process_set,
        use_locking=use_locking,
    )
    reduction.label = name or reduction.label
    made = _class_like(type(optimizer)).from_config(_configuration(optimizer))
    object.__setattr__(made, _PARTS, (reduction, Accumulation(reduction, passes, average_aggregated_gradients)))
    if optimizer.built:
        made.build(optimizer._trainable_variables)
        for ours, theirs in zip(made.variables, optimizer.variables, strict=True):
            ours.assign(theirs)
    return made


def _configuration(optimizer: Any) -> dict[str, Any]:
    """As get_config; a rate that is a schedule or a function, and an optimizer inside, are the same objects."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a function could not be loaded: it is not
        config = dict(optimizer.get_config())
    rate = getattr(optimizer, "_learning_rate", None)
    if "learning_rate" in config and rate is not None and not isinstance(rate, keras.Variable):
        config["learning_rate"] = rate
    return config


def _class_like(plain: Any) -> Any:
    """A subclass of an optimizer's class that reduces gradients, and calls itself by the plain one's name.

    Its objects say that their __class__ is the plain one: by that Keras names what it saves.
    """

    class Distributed(plain):  # type: ignore[misc, valid-type]
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            return plain

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "loss_scale_factor" and value is None and hasattr(self, _PARTS):  # as LossScaleOptimizer sets it
                _refuse_to_be_scaled(getattr(self, _PARTS)[0])
            super().__setattr__(name, value)

        def __deepcopy__(self, memo: Any) -> Any:
            raise UserError(
                f"{_WHERE}: a copy would not be distributed; copy the optimizer before, and call "
                "hvd.DistributedOptimizer on the copy"
            )

        def register_local_var(self, var: Any) -> None:
            """Leaves the gradients of a variable with each rank."""
            getattr(self, _PARTS)[0].keep_local(var)

        @as_written
        def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
            """Reduces the gradients over all ranks and applies them. Collective."""
            if not hasattr(self, _PARTS):
                raise UserError(
                    f"{_WHERE}: an optimizer made from a distributed one's configuration is not distributed; call "
                    "hvd.DistributedOptimizer on it"
                )
            reduction, accumulation = getattr(self, _PARTS)
            if not len(grads):
                return None
            variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
            if not self.built and accumulation.passes > 1:  # outside of the branch that it makes
                with keras.name_scope(self.name):
                    self.build(variables)
            given = None if trainable_variables is None else variables

            def update(gradients: Sequence[Any]) -> None:
                plain.apply(self, reduction.reduce(gradients, variables), given)

            return accumulation.apply(list(grads), variables, update, lambda: self.iterations.assign_add(1))

    Distributed.__name__, Distributed.__qualname__ = plain.__name__, plain.__qualname__
    Distributed.__module__, Distributed.__doc__ = plain.__module__, plain.__doc__
    return Distributed


def _refuse_to_be_scaled(reduction: GradientReduction) -> None:
    """UserError where ranks would not agree on which gradients are finite, and wait for each other for ever."""
    if reduction.size > 1:
        raise UserError(
            f"{_WHERE}: with loss scaling (mixed_float16), distribute the optimizer that scales: "
            "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))"
        )
