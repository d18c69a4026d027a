"""The two towers of canned estimators as Keras layers, whose variables are called as in an Estimator's checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import keras

from hpc_train.canned.arguments import Deep, Wide
from hpc_train.canned.columns import (
    Combiner,
    EmbeddingColumn,
    FeatureColumn,
    scope_of,
    width_of,
)
from hpc_train.canned.keras_objects import deserialized
from hpc_train.canned.transformation import Ids

BATCH_NORM_MOMENTUM = 0.999
"""As in tf.estimator."""


class LinearTower(keras.layers.Layer):  # type: ignore[misc]
    """A weight for each number and each value, and a bias: `[B, units]`.

    The weights of values are looked up, whatever their number, and combined for a row of several.
    """

    def __init__(self, wide: Wide, units: int) -> None:
        super().__init__(name="linear")
        self._wide, self._units = wide, units
        self._weights: dict[str, Any] = {}

    def build(self) -> None:
        """Makes all variables, of zeros."""
        with keras.name_scope("linear_model"):
            for column in self._wide.columns:
                shape = (width_of(column), self._units)
                self._weights[column.name] = _variable(self, scope_of(column), "weights", shape, "zeros")
            self._bias = _variable(self, None, "bias_weights", (self._units,), "zeros")

    def call(self, inputs: Mapping[str, Any]) -> Any:
        """Adds up what Batch.inputs gives of the columns."""
        total = keras.ops.cast(self._bias, self.compute_dtype)
        for name, given in inputs.items():
            weights = self._weights[name]
            if isinstance(given, tuple):
                total += _looked_up(weights, Ids(*given), self._wide.sparse_combiner, self.compute_dtype)
            else:
                total += keras.ops.matmul(keras.ops.cast(given, self.compute_dtype), weights)
        return total


class DeepTower(keras.layers.Layer):  # type: ignore[misc]
    """Hidden layers on what the columns give, side by side in the order of their names: `[B, units]`.

    After each hidden layer come dropout, and then batch normalisation, where they are asked for.
    """

    def __init__(self, deep: Deep, units: int) -> None:
        super().__init__(name="dnn")
        layers = keras.layers
        self._deep = deep
        numbers = range(len(deep.hidden_units))
        self._hidden = [
            layers.Dense(count, activation=deep.activation_fn, name=f"hiddenlayer_{number}")
            for number, count in enumerate(deep.hidden_units)
        ]
        self._dropout = [layers.Dropout(deep.dropout) for _ in numbers] if deep.dropout is not None else []
        self._normed = [
            layers.BatchNormalization(momentum=BATCH_NORM_MOMENTUM, name=f"batchnorm_{number}")
            for number in (numbers if deep.batch_norm else ())
        ]
        self._logits = layers.Dense(units, name="logits")
        self._embeddings: dict[str, Any] = {}

    def build(self) -> None:
        """Makes all variables."""
        with keras.name_scope("input_from_feature_columns"), keras.name_scope("input_layer"):
            for column in self._deep.columns:
                if isinstance(column, EmbeddingColumn):
                    self._embeddings[column.name] = _embedding(self, column)
        width = sum(map(width_of, self._deep.columns))
        for number, layer in enumerate(self._hidden):
            layer.build((None, width))
            width = layer.units
            if self._normed:
                with keras.name_scope(layer.name):
                    self._normed[number].build((None, width))
        self._logits.build((None, width))

    def call(self, inputs: Mapping[str, Any], training: bool | None = None) -> Any:
        """The logits of what Batch.inputs gives of the columns."""
        columns = {column.name: column for column in self._deep.columns}
        net = keras.ops.concatenate([self._dense(columns[name], inputs[name]) for name in sorted(columns)], axis=-1)
        for number, layer in enumerate(self._hidden):
            net = layer(net)
            if self._dropout:
                net = self._dropout[number](net, training=training)
            if self._normed:
                net = self._normed[number](net, training=training)
        return self._logits(net)

    def _dense(self, column: FeatureColumn, given: Any) -> Any:
        if not isinstance(column, EmbeddingColumn):
            return keras.ops.cast(given, self.compute_dtype)
        ids = Ids(*given)
        return _looked_up(self._embeddings[column.name], ids, column.combiner, self.compute_dtype, column.max_norm)


def _embedding(layer: Any, column: EmbeddingColumn) -> Any:
    initializer: Any = keras.initializers.TruncatedNormal(stddev=1 / math.sqrt(column.dimension))
    if column.initializer is not None:
        initializer = deserialized(f"feature column {column.name!r}: initializer", column.initializer, "initializers")
    shape = (column.categorical_column.size, column.dimension)
    return _variable(layer, scope_of(column), "embedding_weights", shape, initializer, column.trainable)


def _variable(
    layer: Any, scope: str | None, name: str, shape: tuple[int, ...], initializer: Any, trainable: bool = True
) -> Any:
    """A variable below the scope that is open; `add_weight` would begin at the layer's own."""
    with ExitStack() as stack:
        if scope is not None:
            stack.enter_context(keras.name_scope(scope))
        made = keras.initializers.get(initializer)
        return keras.Variable(made, shape=shape, dtype=layer.variable_dtype, trainable=trainable, name=name)


def _looked_up(table: Any, ids: Ids, combiner: Combiner, dtype: str, max_norm: float | None = None) -> Any:
    """The rows of `table` `[n, d]` that `ids` name, combined for each row of the batch: `[B, d]`; zeros for none."""
    ops = keras.ops
    counts = ids.there & (ids.numbers >= 0)
    found = ops.take(table, ops.where(counts, ids.numbers, 0), axis=0)
    if max_norm is not None:
        square = ops.sum(ops.square(found), axis=-1, keepdims=True)
        norm = ops.sqrt(ops.where(square > 0, square, 1.0))
        found = ops.where(norm > max_norm, found * (max_norm / norm), found)
    weights = ops.cast(counts, dtype)
    total = ops.sum(ops.cast(found, dtype) * weights[..., None], axis=1)
    if combiner == "sum":
        return total
    number = ops.maximum(ops.sum(weights, axis=1, keepdims=True), 1)
    return total / (number if combiner == "mean" else ops.sqrt(number))
