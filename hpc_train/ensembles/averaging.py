"""One model whose weights are the mean of those of several checkpoints of a run (stochastic weight averaging). Local.

Trainable variables are averaged in float64. What batch normalization keeps is computed anew over the training rows.
Of all else that is not trained (random states, counters, frozen layers) the last checkpoint's stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpc_train.data.hdf5.shards import find_shards
from hpc_train.data.loading.batch_source import ReadResources
from hpc_train.data.loading.feed import Feed
from hpc_train.data.loading.tf_dataset import open_pass
from hpc_train.distributed.tensors import is_floating
from hpc_train.ensembles.normalization import normalizing_layers, renew
from hpc_train.errors import UserError
from hpc_train.export.from_checkpoint import RestoredModel
from hpc_train.lazy import keras
from hpc_train.model.model_state import is_random_state
from hpc_train.telemetry.units import counted

WAY_ON = "`combine: snapshot` averages what the models give, in place of their weights"


def average_weights(
    members: Sequence[RestoredModel], into: RestoredModel, resources: ReadResources, report: Callable[[str], None]
) -> None:
    """Gives `into`, which is the last of the members once more, the mean of the members' weights.

    Raises:
        UserError: Something in them has no mean, or the training rows cannot be read.
    """
    trainable = {id(variable) for variable in into.model.trainable_variables}
    others: dict[int, tuple[Any, list[np.ndarray]]] = {}
    each = zip(into.model.variables, *(member.model.variables for member in members), strict=True)
    for variable, *own in each:
        values = [keras.ops.convert_to_numpy(one) for one in own]
        if id(variable) in trainable and is_floating(variable):
            mean = sum(value.astype(np.float64) for value in values) / len(values)
            variable.assign(np.asarray(mean).astype(values[-1].dtype))
        else:
            _check(variable, values, into.job.name)
            others[id(variable)] = variable, values
    for layer in _renewed(into, resources, report, others):
        for variable in (layer.moving_mean, layer.moving_variance):
            del others[id(variable)]
    for variable, values in others.values():
        variable.assign(values[-1])
        if is_floating(variable) and _differ(values):
            report(f"{variable.path}: is that of the last checkpoint, since it is not trained")


def _renewed(
    into: RestoredModel,
    resources: ReadResources,
    report: Callable[[str], None],
    others: dict[int, tuple[Any, list[np.ndarray]]],
) -> list[Any]:
    """The layers whose moving averages have been computed anew."""
    layers = [layer for layer in normalizing_layers(into.model) if layer.trainable]
    if not layers:
        return []
    source = into.job.inputs[-1]
    with open_pass(source, find_shards(source), resources, into.job.load) as opened:
        spec = opened.dataset.element_spec
        with Feed(opened.dataset, lambda: opened.failure) as batches:
            rows, found = renew(into.model, layers, batches, spec[0] if isinstance(spec, tuple) else spec)
    report(f"batch normalization: averages of {counted(len(found), 'layer')} computed anew over {rows:,} training rows")
    for layer in layers:
        if layer not in found and _differ(others[id(layer.moving_mean)][1]):
            raise UserError(
                f"{into.job.name}: its layer {layer.name} keeps averages of what it normalizes, but the model does not "
                f"call it when it is called itself, so that they cannot be computed anew; {WAY_ON}"
            )
    return found


def _check(variable: Any, values: Sequence[np.ndarray], where: str) -> None:
    """UserError where it is an array of whole numbers that training changes."""
    last = values[-1]
    if is_floating(variable) or last.size <= 1 or is_random_state(variable.path, last.shape, last.dtype.name):
        return
    if _differ(values):
        raise UserError(
            f"{where}: its variable {variable.path}, {last.dtype.name} {list(last.shape)}, differs between the "
            f"checkpoints, and whole numbers have no mean that is one; {WAY_ON}"
        )


def _differ(values: Sequence[np.ndarray]) -> bool:
    return any(not np.array_equal(value, values[-1]) for value in values)
