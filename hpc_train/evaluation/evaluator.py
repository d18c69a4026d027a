"""Evaluation shared by all ranks: each one its own batches, metric states summed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hpc_train.config.specs import EvalSpec, HDF5Input
from hpc_train.data.hdf5.shards import ShardSet, record_of
from hpc_train.data.loading.batch_source import ReadResources
from hpc_train.data.loading.feed import Feed
from hpc_train.data.loading.tf_dataset import InputContext, Loader, open_evaluation
from hpc_train.distributed.world import World
from hpc_train.lazy import keras, tf
from hpc_train.model.builder import try_out


class Evaluator:
    """Evaluates `model` on what `spec` describes. Its metrics must have been built (see build_model).

    Attributes:
        kind: What its records are called. name: the EvalSpec's. exports: whether it has exporters.
        what: A digest of the rows that it evaluates; None where a function makes them.

    No rank waits for another inside the evaluation, so uneven parts cannot hang. Keras metrics keep sums and counts
    in their variables, and the sum of all ranks' variables is the state that one process would have reached; a
    metric of one's own whose variables are no sums is evaluated right on one rank only.
    """

    def __init__(
        self,
        model: keras.Model,
        spec: EvalSpec,
        shards: ShardSet | None,
        context: InputContext,
        resources: ReadResources,
        load: Loader,
        world: World,
    ) -> None:
        self._model, self._world = model, world
        self._opened = partial(open_evaluation, spec.input_fn, shards, context, spec.steps, resources, load)
        # One graph for each batch size: Keras weighs the losses of several outputs by the static shape.
        self._test_step = tf.function(self._run, autograph=False)
        self.kind, self.name, self.exports = spec.kind, spec.name, bool(spec.exporters)
        self.what = _what(spec, shards)

    def _run(self, batch: Any) -> None:
        self._model.test_step(batch)

    def evaluate(
        self,
        moved: Callable[[], None],
        before_batch: Callable[[int], None] = lambda number: None,
        after_batch: Callable[[int], None] = lambda number: None,
    ) -> dict[str, float]:
        """The model's loss and metrics by name, the same on all ranks. Collective.

        `moved` is called at each batch, the others before and after it with its number on this rank.
        """
        self._model.reset_metrics()
        variables = [v for metric in self._model.metrics for v in metric.variables]
        before = [np.asarray(v.numpy()) for v in variables]
        with self._opened() as opened, Feed(opened.dataset, lambda: opened.failure) as batches:
            for number, batch in enumerate(batches):
                moved()
                before_batch(number)
                self._test_step(batch)
                after_batch(number)
        moved()
        gained = [np.ravel(np.asarray(v.numpy(), np.float64) - b) for v, b in zip(variables, before, strict=True)]
        gained_by_all = self._world.sum(np.concatenate([*gained, np.zeros(0)]))
        parts = np.split(gained_by_all, np.cumsum([first.size for first in before]))[: len(variables)]
        for variable, first, part in zip(variables, before, parts, strict=True):
            variable.assign((first + part.reshape(first.shape)).astype(first.dtype))
        results = self._results()
        self._model.reset_metrics()
        return results

    def metric_names(self) -> list[str]:
        """Names of what `evaluate` gives."""
        return list(self._results())

    def _results(self) -> dict[str, float]:
        results = self._model.get_metrics_result()
        return {name: value for metric, result in results.items() for name, value in _scalars(metric, result)}

    def check(self) -> None:
        """Raises what evaluating would raise on account of the data's shapes and types. Local."""
        with self._opened() as opened:
            try_out(self._model, opened.dataset)


def _what(spec: EvalSpec, shards: ShardSet | None) -> str | None:
    """A digest of what `spec` evaluates; None where a function decides that."""
    source = spec.input_fn
    if shards is None or not isinstance(source, HDF5Input) or callable(source.map_fn):
        return None
    columns = [[column.key, column.name] for column in shards.columns]
    about = [record_of(shards), columns, spec.steps, source.batch_size, source.map_fn]
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _scalars(name: str, value: Any) -> list[tuple[str, float]]:
    """A metric's result by name; one that is a vector, such as F1Score's by class, gives name_0, name_1 and so on."""
    array = np.asarray(value)
    if array.ndim == 0:
        return [(name, float(array))]
    return [(f"{name}_{'_'.join(map(str, index))}", float(item)) for index, item in np.ndenumerate(array)]
