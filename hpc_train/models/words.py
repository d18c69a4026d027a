"""Columns of text as the numbers of their words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpc_train.config.table_schema import ColumnSchema
from hpc_train.lazy import keras
from hpc_train.models.categories import check_vocabulary, layer_name


@dataclass(frozen=True)
class Words:
    """A column of text.

    Attributes:
        name: For layers.
        index: `[rows, words of the longest]`: 0 after a text's end, 1 for an unknown word, then the vocabulary.
        size: Of the vocabulary, with these two.
    """

    name: str
    index: Any
    size: int

    def summed(self, vectors: Any) -> Any:
        """Of vectors of words `[rows, words, n]` the sum by the square root of the number of words, `[rows, n]`."""
        ops = keras.ops
        is_word = ops.cast(ops.not_equal(self.index, 0), "float32")
        count = ops.maximum(ops.sum(is_word, axis=1, keepdims=True), 1.0)
        return ops.divide(ops.sum(ops.multiply(vectors, ops.expand_dims(is_word, -1)), axis=1), ops.sqrt(count))

    @property
    def is_empty(self) -> Any:
        """float32 `[rows, 1]`: 1 where a text is missing or has no words."""
        ops = keras.ops
        return ops.cast(ops.logical_not(ops.any(ops.not_equal(self.index, 0), axis=1, keepdims=True)), "float32")


def words(columns: Mapping[str, ColumnSchema], inputs: Mapping[str, Any]) -> dict[str, Words]:
    """The columns of text by name. ASCII letters become small, punctuation goes, blanks are between words.

    Args:
        inputs: tf.string `[rows]`, "" where missing.

    Raises:
        UserError: A column has no vocabulary.
    """
    found = {}
    for place, (name, column) in enumerate(columns.items()):
        if column.role != "text":
            continue
        check_vocabulary(name, column)
        index = keras.layers.TextVectorization(vocabulary=list(column.vocabulary))(inputs[name])
        found[name] = Words(layer_name(place, name), index, len(column.vocabulary) + 2)
    return found
