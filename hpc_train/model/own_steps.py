"""Models with a train_step of their own: which optimizers it applies, found by tracing it."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hpc_train.distributed.collectives import OneRank
from hpc_train.distributed.exchange import exchanging
from hpc_train.distributed.groups import Groups
from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.optimizer_pieces import OptimizerPieces
from hpc_train.distributed.optimizer_variables import OptimizerVariables, build
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.lazy import keras, tf
from hpc_train.model import rng_state
from hpc_train.model.batch import example
from hpc_train.text import listed

Applied = Callable[[Any, list[Any], list[Any], Callable[..., None]], None]
"""Called with an optimizer, gradients, their variables, and what applies them."""


@dataclass(frozen=True)
class Updates:
    """What one training step updates.

    Attributes:
        optimizers: With all variables that each updates, in the order in which they are first applied.
        times: How often each is applied in a step.
        variables: Those of the model's only optimizer, by what they are for; empty for a train_step of its own.
        pieces: Of each optimizer, on which it is built where it is sharded; else there are none.
    """

    optimizers: tuple[tuple[Any, tuple[Any, ...]], ...]
    times: tuple[int, ...] = ()
    variables: OptimizerVariables = field(default_factory=lambda: OptimizerVariables([], []))
    pieces: tuple[OptimizerPieces, ...] = ()

    def finish(self, world: World | None = None) -> None:
        """Averages that optimizers keep of their variables (use_ema) take the variables' place.

        Args:
            world: The ranks that train, over which this is collective where optimizers are sharded.
        """
        if self.pieces and self.keeps_averages and world is not None:
            for (optimizer, _), pieces in zip(self.optimizers, self.pieces, strict=True):
                optimizer.finalize_variable_values(pieces.held)
                pieces.collect(world)
            return
        for optimizer, variables in self.optimizers:
            optimizer.finalize_variable_values(list(variables))

    def averages(self) -> dict[int, Any]:
        """By the id of each variable of which an optimizer keeps an average (use_ema), that."""
        inner = [getattr(optimizer, "inner_optimizer", optimizer) for optimizer, _ in self.optimizers]
        return {
            id(variable): average
            for optimizer in inner
            if getattr(optimizer, "use_ema", False)
            for variable, average in zip(
                optimizer._trainable_variables, optimizer._model_variables_moving_average, strict=True
            )
        }

    @property
    def keeps_averages(self) -> bool:
        """Whether one of the optimizers does (use_ema)."""
        inner = [getattr(optimizer, "inner_optimizer", optimizer) for optimizer, _ in self.optimizers]
        return any(bool(getattr(optimizer, "use_ema", False)) for optimizer in inner)

    @property
    def first(self) -> Any:
        """The optimizer whose learning rate is reported."""
        return self.optimizers[0][0]


NO_UPDATES = Updates(())
"""Of a model whose train_step cannot be traced for want of data."""


def updates_of(model: keras.Model, dataset: tf.data.Dataset | None, name: str, sharded: Mesh | None = None) -> Updates:
    """What a training step of `model` updates; its optimizers are built. Local.

    A train_step of its own is traced with a batch of `dataset`, which only that needs.

    Args:
        name: What to call the model. sharded: The ranks among which optimizers are; None: each has them whole.

    Raises:
        UserError: It applies no gradients, or applies them where ranks cannot average them, or returns no number; an
        optimizer cannot be sharded. Whatever it raises.
    """
    if has_own_train_step(model):
        assert dataset is not None, "there is a batch to trace train_step with"
        return _found(model, dataset, name, sharded)
    optimizer, trained = model.optimizer, model.trainable_variables
    if sharded is None:
        return Updates(((optimizer, tuple(trained)),), (1,), build(optimizer, trained))
    pieces = OptimizerPieces(optimizer, trained, sharded)
    return Updates(((optimizer, tuple(trained)),), (1,), pieces.optimizer_variables, (pieces,))


def has_own_train_step(model: keras.Model) -> bool:
    """Whether `model` has a train_step of its class's or its own instead of Keras's."""
    return getattr(model.train_step, "__func__", None) is not keras.Model.train_step


def has_own_test_step(model: keras.Model) -> bool:
    """The same of its test_step."""
    return getattr(model.test_step, "__func__", None) is not keras.Model.test_step


def has_own_predict_step(model: keras.Model) -> bool:
    """The same of its predict_step."""
    return getattr(model.predict_step, "__func__", None) is not keras.Model.predict_step


def own_train_step(model: keras.Model) -> Callable[[Any], Any]:
    """The model's train_step as Python, also where it is a tf.function: it becomes part of a larger one."""
    step: Callable[[Any], Any] = getattr(model.train_step, "python_function", model.train_step)
    return step


@contextmanager
def applied_by(applied: Applied) -> Iterator[None]:
    """A context in which `applied` is called instead of each optimizer's `apply` and `apply_gradients`."""
    base = keras.src.optimizers.base_optimizer.BaseOptimizer
    kinds = (base, keras.optimizers.LossScaleOptimizer)
    originals = [vars(kind)["apply"] for kind in kinds]
    inside = False

    def in_place_of(original: Callable[..., None]) -> Callable[..., None]:
        def apply(optimizer: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
            nonlocal inside
            if inside:  # an optimizer that wraps another one
                return original(optimizer, grads, trainable_variables)
            inside = True
            try:
                given = optimizer._trainable_variables if trainable_variables is None else trainable_variables
                applied(optimizer, list(grads), list(given), lambda *a: original(optimizer, *a))
            finally:
                inside = False

        return apply

    for kind, original in zip(kinds, originals, strict=True):
        kind.apply = in_place_of(original)
    try:
        yield
    finally:
        for kind, original in zip(kinds, originals, strict=True):
            kind.apply = original


def _found(model: keras.Model, dataset: tf.data.Dataset, name: str, sharded: Mesh | None) -> Updates:
    found: list[tuple[Any, list[Any]]] = []
    returned: list[Any] = []
    whose = f"{name}: train_step of {type(model).__name__}"

    def noted(optimizer: Any, gradients: list[Any], variables: list[Any], apply: Callable[..., None]) -> None:
        found.append((optimizer, variables))

    def step(batch: Any) -> Any:
        found.clear()  # where it makes variables, TensorFlow traces it twice
        returned.append(own_train_step(model)(batch))

    with rng_state.unchanged(), exchanging(Groups.of(OneRank())), applied_by(noted):
        specs = tf.nest.map_structure(tf.type_spec_from_value, example(dataset, model))
        try:
            traced = tf.function(step, autograph=False).get_concrete_function(specs)
        except ValueError as error:
            if "values to unpack" not in str(error) or not _raised_by(own_train_step(model), error):
                raise
            parts = specs if isinstance(specs, tuple) else (specs,)
            held = ", ".join(("x", "y", "sample_weight")[: len(parts)])
            weights = ", as train.class_weight or the input makes it" if len(parts) > 2 else ""
            raise UserError(
                f"{whose} unpacks a batch into another number of parts than it has ({error}): it has {len(parts)}, "
                f"{held}{weights}; keras.utils.unpack_x_y_sample_weight(data) takes any"
            ) from None
    if not found:
        calls = {operation.type for operation in traced.graph.get_operations()}
        hidden = calls & {"EagerPyFunc", "PyFunc", "PyFuncStateless"}
        where = " outside of what TensorFlow can trace (tf.py_function, tf.numpy_function)" if hidden else ""
        raise UserError(
            f"{whose} applies no gradients{where}: call optimizer.apply(gradients, variables) of a Keras optimizer"
        )
    _check_logs(returned[-1], whose)
    if not any(variables for _, variables in found):
        raise UserError(f"{whose} has nothing to train: it applies gradients to no variables")
    times = Counter(id(optimizer) for optimizer, _ in found)
    updated: dict[int, tuple[Any, dict[int, Any]]] = {}
    for optimizer, variables in found:  # which it may apply to some and then to others
        updated.setdefault(id(optimizer), (optimizer, {}))[1].update({id(v): v for v in variables})
    optimizers = tuple((optimizer, tuple(variables.values())) for optimizer, variables in updated.values())
    pieces = []
    for optimizer, own in optimizers:
        if sharded is not None:
            pieces.append(OptimizerPieces(optimizer, own, sharded))
        elif not optimizer.built:
            build(optimizer, list(own))
    return Updates(optimizers, tuple(times[key] for key in updated), pieces=tuple(pieces))


def _raised_by(step: Callable[..., Any], error: BaseException) -> bool:
    """Whether a line of `step` itself has raised `error`."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_code is getattr(getattr(step, "__func__", step), "__code__", None)


def logs_of(returned: Any, whose: str) -> dict[str, Any]:
    """The numbers that a train_step or test_step has returned, by name; UserError where there are none."""
    _check_logs(returned, whose)
    return {name: tf.reduce_mean(tf.cast(value, tf.float32)) for name, value in _flat(returned)}


def _check_logs(returned: Any, whose: str) -> None:
    if not isinstance(returned, dict) or not returned:
        raise UserError(f"{whose} returns {type(returned).__name__}, and no numbers by name; return {{'loss': loss}}")
    strange = [name for name, value in _flat(returned) if not _is_number(value)]
    if strange:
        raise UserError(
            f"{whose} returns {listed(list(map(repr, strange)))}, which is no number; leave it out of what is returned"
        )


def _is_number(value: Any) -> bool:
    if isinstance(value, bool | int | float):
        return True
    dtype = getattr(value, "dtype", None)
    found = None if dtype is None else tf.as_dtype(dtype)
    return found is not None and (found.is_floating or found.is_integer or found.is_bool)


def _flat(logs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in logs.items():
        if isinstance(value, dict):
            yield from _flat(value)
        else:
            yield name, value
