"""Evaluation shared by all ranks: each one its own batches, metric states summed."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.specs import EvalSpec
from hpc_train.data.hdf5.shards import ShardSet, record_of
from hpc_train.data.loading.batch_source import ReadResources
from hpc_train.data.loading.feed import Feed
from hpc_train.data.loading.tf_dataset import InputContext, Loader, OpenInput, open_evaluation
from hpc_train.distributed.exchange import exchanging
from hpc_train.distributed.groups import Groups
from hpc_train.distributed.share import averaged_over, share_of
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.evaluation.merging import Merging, flat_results, merging
from hpc_train.lazy import keras, tf
from hpc_train.model.batch import example, fixed_rows
from hpc_train.model.builder import try_out
from hpc_train.model.layer_states import from_zero
from hpc_train.model.own_steps import logs_of

log = logging.getLogger(__name__)

WORD_SECS = 5.0
"""So often ranks that wait hear from the one that evaluates."""
_HAS_A_BATCH, _HAS_NONE = 0, 1


class Evaluator:
    """Evaluates `model` on what `spec` describes. Its metrics must have been built (see build_model).

    Attributes:
        kind: What its records are called. name: the EvalSpec's. exports: whether it has exporters.
        what: A digest of the rows that it evaluates; None where a function makes them. opened: opens this rank's.

    No rank waits for another inside the evaluation, so uneven parts cannot hang. Keras metrics keep sums and counts
    in their variables, and the sum of all ranks' variables is the state that one process would have reached. Metrics
    of which that is not so (see merging) are computed by the first rank, over all rows.

    Of a model of which ranks hold parts, they call it together: where any part may be asked for by any rank, each goes
    on, once its own batches are over, with a batch that does not count, until those of all are over. What the first
    rank would compute alone, all do, each over all rows.
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
        whole = InputContext(0, 1, context.seed)

        def opened(context: InputContext = context) -> AbstractContextManager[OpenInput]:
            return open_evaluation(spec.input_fn, shards, context, spec.steps, resources, load)

        self.opened, self._opened_whole = opened, partial(opened, whole)
        # One graph for each batch size: Keras weighs the losses of several outputs by the static shape.
        self._test_step = self._step_of(None)
        self._groups: Groups | None = None
        self.kind, self.name, self.exports = spec.kind, spec.name, bool(spec.exporters)
        self.what = what_of(spec, shards)
        self._merging, self._nothing = Merging(), False
        self._rows = None if shards is None or not isinstance(spec.input_fn, HDF5Input) else shards.rows
        self._batch = spec.input_fn.batch_size if isinstance(spec.input_fn, HDF5Input) else None

    def _step_of(self, groups: Groups | None) -> Callable[[Any], Any]:
        def run(batch: Any) -> Any:
            with exchanging(groups) if groups else nullcontext():
                return self._model.test_step(batch)

        return run if self._model.run_eagerly else tf.function(run, autograph=False)

    def evaluate(
        self,
        moved: Callable[[], None],
        before_batch: Callable[[int], None] = lambda number: None,
        after_batch: Callable[[int], None] = lambda number: None,
        groups: Groups | None = None,
    ) -> dict[str, float]:
        """The model's loss and metrics by name, the same on all ranks. Collective.

        `moved` is called at each batch, the others before and after it with its number on this rank.

        Args:
            groups: Of the ranks that train; None: this one has the whole model.
        """
        if self._nothing:
            return {}
        if groups is not None and groups is not self._groups and any(map(share_of, self._model.variables)):
            self._test_step, self._groups = self._step_of(groups), groups
        around = _Around(moved, before_batch, after_batch)
        with from_zero(self._model):
            return self._evaluate_alone(around) if self._merging.obstacle else self._evaluate_together(around)

    def _evaluate_together(self, around: _Around) -> dict[str, float]:
        self._model.reset_metrics()
        variables = [v for metric in self._model.metrics for v in metric.variables]
        before = [np.asarray(v.numpy()) for v in variables]
        in_rounds = self._groups is not None and "alone" in map(averaged_over, self._model.variables)

        def moved() -> None:
            around.moved()
            self._world.lowest(_HAS_A_BATCH)

        _, last = self._through(self.opened, replace(around, moved=moved) if in_rounds else around)
        around.moved()
        gained = [np.ravel(np.asarray(v.numpy(), np.float64) - b) for v, b in zip(variables, before, strict=True)]
        if self._groups is not None and self._groups.mesh.model_index:
            gained = [np.zeros_like(own) for own in gained]  # the first rank of its model group has them, too
        while in_rounds and self._world.lowest(_HAS_NONE) == _HAS_A_BATCH:
            around.moved()
            last = self._another() if last is None else last
            self._test_step(last)
        gained_by_all = self._world.sum(np.concatenate([*gained, np.zeros(0)]))
        parts = np.split(gained_by_all, np.cumsum([first.size for first in before]))[: len(variables)]
        for variable, first, part in zip(variables, before, parts, strict=True):
            variable.assign((first + part.reshape(first.shape)).astype(first.dtype))
        results = self._results()
        self._model.reset_metrics()
        return results

    def _evaluate_alone(self, around: _Around) -> dict[str, float]:
        """The first rank evaluates all rows; the others hear from it now and then, and what it has found.

        Where it cannot without them, they do so, too.
        """
        if not self._world.is_chief and self._groups is None:
            while (found := self._world.broadcast(None)) is None:
                around.moved()
            return dict(found)
        self._model.reset_metrics()
        last = time.monotonic()

        def moved() -> None:
            nonlocal last
            around.moved()
            if self._groups is None and time.monotonic() - last > WORD_SECS:
                last = time.monotonic()
                self._world.broadcast(None)

        logs, _ = self._through(self._opened_whole, replace(around, moved=moved))
        if self._merging.last_batch:
            whose = f"test_step of {type(self._model).__name__}"
            results = {} if logs is None else {name: float(value) for name, value in logs_of(logs, whose).items()}
        else:
            results = self._results()
        self._model.reset_metrics()
        return dict(self._world.broadcast(results))

    def _another(self) -> Any:
        """A batch that does not count, on a rank that has none."""
        with self._opened_whole() as data:
            return example(data.dataset, self._model)

    def _through(self, opened: Callable[[], AbstractContextManager[OpenInput]], around: _Around) -> tuple[Any, Any]:
        """Evaluates all batches; returns what test_step did of the last one, and that; None where there is none."""
        logs = batch = None
        with opened() as data, Feed(data.dataset, lambda: data.failure) as batches:
            for number, batch in enumerate(batches):
                around.moved()
                around.before_batch(number)
                logs = self._test_step(batch)
                around.after_batch(number)
        return logs, batch

    def metric_names(self) -> list[str]:
        """Names of what `evaluate` gives; known after `check`."""
        return [] if self._nothing else list(self._merging.names or flat_results(self._model))

    def _results(self) -> dict[str, float]:
        results = flat_results(self._model)
        return results if self._merging.names is None else {name: results[name] for name in self._merging.names}

    def check(self) -> None:
        """Raises what evaluating would raise on account of the data's shapes and types. Local.

        UserError, too, where a model that was built for a number of rows would get another one.
        """
        rows = fixed_rows(self._model)
        if rows is not None and self._batch is not None and (self._batch != rows or (self._rows or 0) % rows):
            raise UserError(
                f"{self.kind}: the model was built for batches of {rows} rows, but {self._rows} rows are evaluated in "
                f"batches of {self._batch}; set batch_size: {rows}, and give a multiple of {rows} rows"
            )
        with self.opened() as opened:
            self._nothing = not try_out(self._model, opened.dataset)
            if not self._nothing:
                self._merging = merging(self._model, opened.dataset, self._world.size)

    def agree(self) -> None:
        """Has all ranks evaluate alike; for after `check`. Collective; what is unusual is logged by the first rank."""
        own = astuple(self._merging)
        self._nothing = self._world.first(self._nothing or None) is not None
        on_chief = self._world.broadcast(own)
        names, why, last = self._world.first(own if self._merging.obstacle else None) or on_chief
        self._merging = Merging(names and tuple(names), why, bool(last))
        if not self._world.is_chief:
            return
        kind = type(self._model).__name__
        if self._nothing:
            log.warning(f"{self.kind}: {kind} has neither a test_step nor a call with a loss: nothing is evaluated")
        elif self._merging.obstacle and (self._world.size > 1 or self._merging.last_batch):
            parts = any(map(share_of, self._model.variables))  # which they have to call together
            who = "each rank evaluates all rows, with its part of the model" if parts else "one rank evaluates all rows"
            where = f"; {who}" if self._world.size > 1 else ""
            log.warning(f"{self.kind}: {self._merging.obstacle}{where}")


@dataclass(frozen=True)
class _Around:
    """What is called around batches."""

    moved: Callable[[], None]
    before_batch: Callable[[int], None]
    after_batch: Callable[[int], None]


def what_of(spec: EvalSpec, shards: ShardSet | None) -> str | None:
    """A digest of what `spec` evaluates; None where a function decides that."""
    source = spec.input_fn
    if shards is None or not isinstance(source, HDF5Input) or callable(source.map_fn):
        return None
    columns = [[column.key, column.name] for column in shards.columns]
    about = [record_of(shards), columns, spec.steps, source.batch_size, source.map_fn]
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:16]
