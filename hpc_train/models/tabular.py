"""The models of tables: linear, dnn and wide_deep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpc_train.config.builtin_model import DNNModel, KerasTabularModel, LinearModel, WideDeepModel
from hpc_train.config.table_schema import TableSchema
from hpc_train.errors import UserError
from hpc_train.lazy import keras
from hpc_train.models.features import Features
from hpc_train.models.heads import Head, head_of

_NAME_TWICE = "All operation names should be unique"
"""What Keras says where a column is called as it calls another layer."""


def tabular_model(settings: KerasTabularModel) -> tuple[keras.Model, Head]:
    """The model that `settings`, whose schema has been read, describe; not compiled.

    It takes a dict by column, see Features.inputs, and gives what its head does.

    Raises:
        UserError: The schema lacks what the model needs.
    """
    assert isinstance(settings.schema, TableSchema), "read"
    head = head_of(settings.schema)
    try:
        return _model(settings, Features.of(settings.schema), head), head
    except ValueError as error:
        if _NAME_TWICE not in str(error):
            raise
    return _model(settings, Features.of(settings.schema, layers_as_columns=False), head), head


def _model(settings: KerasTabularModel, features: Features, head: Head) -> keras.Model:
    if isinstance(settings, LinearModel):
        logits = _linear(settings, features, head)
    else:
        logits = head.logits(_hidden(settings, features))
    if isinstance(settings, WideDeepModel):
        crosses = features.crosses(settings.crosses, settings.hash_buckets)
        logits = _sum([logits, *features.weighted(head.units, None, crosses)])
    return keras.Model(features.inputs, head.outputs(logits), name=settings.builtin)


def _linear(settings: LinearModel, features: Features, head: Head) -> Any:
    rows = _rows(features.schema) if settings.l1 or settings.l2 else 1
    penalty = keras.regularizers.L1L2(settings.l1 / rows, settings.l2 / (2 * rows))
    numbers = features.numbers or [keras.ops.expand_dims(keras.ops.zeros_like(_first(features), "float32"), -1)]
    logits = head.logits(_joined(numbers), kernel_initializer="zeros", kernel_regularizer=penalty)
    return _sum([logits, *features.weighted(head.units, penalty)])


def _hidden(settings: DNNModel, features: Features) -> Any:
    penalty = keras.regularizers.L1L2(settings.l1, settings.l2) if settings.l1 or settings.l2 else None
    hidden = _joined([*features.numbers, *features.embedded()])
    for number, units in enumerate(settings.hidden_units, start=1):
        hidden = keras.layers.Dense(units, kernel_regularizer=penalty, name=f"hidden_{number}")(hidden)
        if settings.batch_norm:
            hidden = keras.layers.BatchNormalization(name=f"batch_norm_{number}")(hidden)
        hidden = keras.layers.Activation(settings.activation, name=f"{settings.activation}_{number}")(hidden)
        if settings.dropout:
            hidden = keras.layers.Dropout(settings.dropout, name=f"dropout_{number}")(hidden)
    return hidden


def _joined(parts: Sequence[Any]) -> Any:
    return parts[0] if len(parts) == 1 else keras.ops.concatenate(parts, axis=-1)


def _sum(parts: Sequence[Any]) -> Any:
    return parts[0] if len(parts) == 1 else keras.layers.Add(dtype="float32")(list(parts))


def _first(features: Features) -> Any:
    """A tensor of numbers `[rows]` of the first category or text: for the bias of a model without numbers."""
    for category in features.categories.values():
        return category.index
    return next(iter(features.words.values())).is_empty[:, 0]


def _rows(schema: TableSchema) -> int:
    """How many rows the statistics are over."""
    summary = schema.columns[schema.label].statistics if schema.label is not None else None
    rows = schema.rows or (summary.count if summary is not None else 0)
    if not rows:
        raise UserError("schema: `rows` is missing, by which l1 and l2 are divided; give it, or l1: 0 and l2: 0")
    return rows
