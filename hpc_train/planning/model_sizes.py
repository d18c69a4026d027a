"""The model of a job, built and traced in one process as the first rank of a mesh would have it, and its sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from hpc_train.config.estimator import Estimator
from hpc_train.distributed.exchange import exchanging
from hpc_train.distributed.groups import Groups
from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.optimizer_trials import leaves_rows
from hpc_train.distributed.placement import placed
from hpc_train.distributed.share import averaged_over, share_of
from hpc_train.distributed.tensors import dtype_of, is_floating, nbytes_of
from hpc_train.lazy import keras, tf
from hpc_train.model import rng_state
from hpc_train.model.backward import loss_and_gradients
from hpc_train.model.builder import build_model
from hpc_train.model.one_rank import check_parts
from hpc_train.model.own_steps import applied_by, has_own_train_step, own_train_step, updates_of
from hpc_train.model.unallocated import batch_specs, traced, without_memory
from hpc_train.planning.graph_memory import most_at_once
from hpc_train.planning.holdings import ModelSizes, VariableSizes
from hpc_train.planning.tally import groups_of


def sizes_of(
    estimator: Estimator, dataset: tf.data.Dataset, mesh: Mesh, pieces: int = 1
) -> tuple[ModelSizes, keras.Model]:
    """What the first rank of `mesh` holds of the model, which is built for batches of `dataset`. Local.

    Nothing is computed, and large variables take no memory: the step is traced alone.

    Args:
        pieces: In which a batch is computed, one after the other.

    Raises:
        UserError: As build_model, and check_parts. Whatever the model raises.
    """
    groups, calls = groups_of(mesh)
    with without_memory(), placed(mesh), _slots_noted() as slots:
        model = build_model(estimator, dataset, traced)
        if any(share_of(variable) for variable in model.variables) and mesh.model > 1:
            check_parts(model, dataset, partial(build_model, estimator, dataset, traced))
        updates = updates_of(model, dataset, getattr(estimator.model_fn, "__qualname__", "model_fn"))
    optimizers = {id(v): v for optimizer, _ in updates.optimizers for v in optimizer.variables}
    as_keras = estimator.config.sparse_gradients == "keras" and not has_own_train_step(model)
    whole = pieces > 1 or not (as_keras or all(leaves_rows(one) for one, _ in updates.optimizers))
    apart = set[str]() if whole else {"alone", "world"} if as_keras and mesh.size == 1 else {"alone"}
    in_rows = {id(v) for v in model.trainable_variables if averaged_over(v) == "alone" and not whole}
    activations = _activations(model, dataset, groups, pieces, apart, in_rows)
    variables = tuple(_variable(v, slots.get(id(v), []), id(v) in in_rows) for v in model.trainable_variables)
    kept = {id(slot) for own in slots.values() for slot in own}
    trainable = {id(v) for v in model.trainable_variables}
    frozen = {id(v) for layer in model._flatten_layers() if not layer.trainable for v in layer.variables}
    others = [v for v in model.variables if id(v) not in trainable]
    sizes = ModelSizes(
        variables,
        state=sum(map(nbytes_of, others)),
        carried=sum(nbytes_of(v) for v in others if is_floating(v) and id(v) not in frozen),
        common=sum(nbytes_of(v) for key, v in optimizers.items() if key not in kept),
        activations=activations,
        calls=tuple(calls),
    )
    return sizes, model


def _variable(variable: Any, slots: Sequence[Any], in_rows: bool) -> VariableSizes:
    share, shape = share_of(variable), tuple(variable.shape)
    alike = [slot for slot in slots if tuple(slot.shape) == shape]
    return VariableSizes(
        variable.path,
        math.prod(shape if share is None else share.shape),
        math.prod(shape),
        dtype_of(variable).itemsize,
        sum(dtype_of(slot).itemsize for slot in alike),
        sum(nbytes_of(slot) for slot in slots if tuple(slot.shape) != shape),
        averaged_over(variable),
        in_rows=in_rows,
        undivided=not shape or variable.constraint is not None,
    )


def _specs(dataset: tf.data.Dataset, model: keras.Model, pieces: int) -> Any:
    specs = batch_specs(dataset, model)
    if pieces == 1 or not all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(specs)):
        return specs
    return tf.nest.map_structure(
        lambda spec: tf.TensorSpec([-(-spec.shape[0] // pieces), *spec.shape[1:]], spec.dtype), specs
    )


def _activations(
    model: keras.Model, dataset: tf.data.Dataset, groups: Groups, pieces: int, apart: Collection[str], in_rows: set[int]
) -> int | None:
    """The most memory of a training step beside variables and gradients; None: it runs as Python, eagerly.

    Args:
        apart: Variables that are averaged over these keep gradients that are rows; `in_rows` gets the `id` of each.
    """
    if model.run_eagerly:
        return None
    specs = _specs(dataset, model, pieces)
    step = _own_step(model) if has_own_train_step(model) else _step(model, apart, in_rows)
    with rng_state.unchanged(), exchanging(groups):
        traced = tf.function(step, autograph=False).get_concrete_function(specs)
    return most_at_once(traced.graph, traced.outputs)


def _step(model: keras.Model, apart: Collection[str], in_rows: set[int]) -> Callable[[Any], Any]:
    def numbers(gradient: Any, variable: Any) -> Any:
        """A gradient whole; one of rows that stays so is no result, but something of the step."""
        if not (averaged_over(variable) in apart and isinstance(gradient, tf.IndexedSlices)):
            return tf.convert_to_tensor(gradient)
        in_rows.add(id(variable))
        return tf.size(gradient.values)

    def step(batch: Any) -> list[Any]:
        pairs = zip(loss_and_gradients(model, batch).gradients, model.trainable_variables, strict=True)
        return [numbers(gradient, variable) for gradient, variable in pairs if gradient is not None]

    return step


def _own_step(model: keras.Model) -> Callable[[Any], Any]:
    def step(batch: Any) -> list[Any]:
        found: list[Any] = []

        def noted(optimizer: Any, gradients: list[Any], variables: list[Any], apply: Callable[..., None]) -> None:
            found.extend(tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None)

        with applied_by(noted):
            own_train_step(model)(batch)
        return found

    return step


@contextmanager
def _slots_noted() -> Iterator[dict[int, list[Any]]]:
    """A context in which the variables that optimizers make for others are noted, by the others' `id`."""
    base = keras.src.optimizers.base_optimizer.BaseOptimizer
    original = base.add_variable_from_reference
    found: dict[int, list[Any]] = {}

    def noted(optimizer: Any, reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
        slot = original(optimizer, reference_variable, *args, **kwargs)
        found.setdefault(id(reference_variable), []).append(slot)
        return slot

    base.add_variable_from_reference = noted
    try:
        yield found
    finally:
        base.add_variable_from_reference = original
