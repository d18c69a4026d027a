"""Categorical columns as whole numbers: 0 for what is missing, 1 for what is not in the vocabulary, then its values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpc_train.config.table_schema import ColumnSchema
from hpc_train.errors import UserError
from hpc_train.lazy import keras

MISSING, UNKNOWN, FIRST = 0, 1, 2
"""The numbers of a missing value, of one out of the vocabulary, and of the vocabulary's first."""


@dataclass(frozen=True)
class Category:
    """A column, or a cross of several, as a tensor of numbers.

    Attributes:
        name: For layers.
        index: `[rows]`, from 0 to `size` - 1.
        values: How many different ones are known: a vocabulary's, or a cross's buckets.
    """

    name: str
    index: Any
    size: int
    values: int


def categories(columns: Mapping[str, ColumnSchema], inputs: Mapping[str, Any]) -> dict[str, Category]:
    """The categorical columns by name.

    Args:
        inputs: tf.string `[rows]`, "" where missing; of columns of other types float64 `[rows]`, NaN where missing.
            Numbers are compared exactly, as float64.

    Raises:
        UserError: A column has no vocabulary.
    """
    found = {}
    for place, (name, column) in enumerate(columns.items()):
        if column.role != "categorical":
            continue
        check_vocabulary(name, column)
        index = _of_texts if column.type == "text" else _of_numbers
        values = len(column.vocabulary)
        numbers = index(inputs[name], column.vocabulary)
        found[name] = Category(layer_name(place, name), numbers, values + FIRST, values)
    return found


def layer_name(place: int, column: str) -> str:
    """A name for the layers of the column at `place`, of what TensorFlow allows in one."""
    return f"{place}_{re.sub('[^A-Za-z0-9_.-]', '_', column)}"


def cross(parts: Sequence[Category], buckets: int) -> Category:
    """Pairs (and more) of values of several columns, each pair in one of `buckets` by its hash."""
    layer = keras.layers.HashedCrossing(buckets)
    index = layer(tuple(keras.ops.cast(part.index, "int64") for part in parts))
    return Category(f"cross_{'_'.join(part.name for part in parts)}", index, buckets, buckets)


def check_vocabulary(name: str, column: ColumnSchema) -> None:
    """UserError where a column has none."""
    if not column.vocabulary:
        raise UserError(
            f"schema: column {name!r} of role {column.role} has no `vocabulary`; `hpc-train schema` finds it, or leave "
            "the column out with role: ignored"
        )


def _of_texts(texts: Any, vocabulary: Sequence[Any]) -> Any:
    unknown = "[UNK]"
    while unknown in vocabulary:  # Keras wants a word of its own for it
        unknown += "_"
    lookup = keras.layers.StringLookup(vocabulary=list(vocabulary), mask_token="", oov_token=unknown)
    return lookup(texts)


def _of_numbers(numbers: Any, vocabulary: Sequence[Any]) -> Any:
    values = np.array([float(value) for value in vocabulary])
    order = np.argsort(values)
    ops = keras.ops
    place = ops.minimum(ops.searchsorted(values[order], numbers), len(values) - 1)
    is_known = ops.equal(ops.take(values[order], place), numbers)
    index = ops.where(is_known, ops.take((order + FIRST).astype(np.int32), place), UNKNOWN)
    return ops.where(ops.isnan(numbers), MISSING, index)
