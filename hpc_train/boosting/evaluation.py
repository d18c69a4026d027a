"""Evaluation of a booster: the loss and metrics of the other built-in models, over the rows of all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpc_train.boosting.rows import TreeRows
from hpc_train.config.table_schema import TableSchema
from hpc_train.distributed.world import World
from hpc_train.models.heads import head_of
from hpc_train.trees.booster import predicted


class TreeEvaluator:
    """Evaluates boosters on this rank's `rows` and those of all others.

    Args:
        matrix: The DMatrix of `rows`.
    """

    def __init__(self, world: World, schema: TableSchema, rows: TreeRows, matrix: Any) -> None:
        self._world, self._matrix = world, matrix
        self._head = head_of(schema)
        labels = rows.labels.astype(np.int64) if schema.classes else rows.labels
        self._labels = labels[:, None] if self._head.units == 1 else labels
        self.names = ["loss", *(metric.name for metric in self._head.metrics())]

    def loss(self, booster: Any) -> float:
        """The mean loss of all ranks' rows. Collective."""
        return self._mean_loss(predicted(booster, self._matrix, self._head.units))

    def _mean_loss(self, found: np.ndarray) -> float:
        own = float(self._head.loss()(self._labels, found)) * len(found) if len(found) else 0.0
        total, rows = self._world.sum(np.array([own, len(found)], np.float64))
        return float(total / rows) * self._head.loss_weight

    def evaluate(self, booster: Any) -> dict[str, float]:
        """Loss and metrics by name, the same on all ranks. Collective.

        Keras's metrics keep sums and counts in their variables; the sum of all ranks' is the state of one process.
        """
        found = predicted(booster, self._matrix, self._head.units)
        metrics = self._head.metrics()
        for metric in metrics:
            metric.update_state(self._labels[:0], found[:0])  # which makes all variables
        for metric in metrics if len(found) else ():
            metric.update_state(self._labels, found)
        variables = [variable for metric in metrics for variable in metric.variables]
        states = [np.asarray(variable.numpy(), np.float64) for variable in variables]
        summed = self._world.sum(np.concatenate([np.ravel(state) for state in states]))
        parts = np.split(summed, np.cumsum([state.size for state in states]))[:-1]
        for variable, state, part in zip(variables, states, parts, strict=True):
            variable.assign(part.reshape(state.shape).astype(variable.numpy().dtype))
        results = {metric.name: float(metric.result()) for metric in metrics}
        return {"loss": self._mean_loss(found), **results}
