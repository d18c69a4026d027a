"""What a model makes of the columns of a schema: of raw rows by column, tensors for layers. All of it is stock Keras.

A model that is saved has it inside: it takes rows as the table has them, and needs nothing of this package.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hpc_train.config.table_schema import TableSchema
from hpc_train.errors import UserError
from hpc_train.lazy import keras
from hpc_train.models.categories import Category, categories, cross, layer_name
from hpc_train.models.numbers import calendar, standardised
from hpc_train.models.words import Words, words

MOST_WIDTH = 50
"""Of an embedding."""


def embedding_width(values: int) -> int:
    """Of an embedding of so many different values: 1.6 times their number to the power of 0.56, 50 at most."""
    return max(1, min(MOST_WIDTH, round(1.6 * math.pow(values, 0.56))))


@dataclass(frozen=True)
class Features:
    """The inputs of a model and what is made of them.

    Attributes:
        inputs: By column, `[rows]`: tf.string of texts, "" where missing; float64 of all else, NaN where missing.
    """

    schema: TableSchema
    inputs: dict[str, Any]

    @classmethod
    def of(cls, schema: TableSchema, layers_as_columns: bool = True) -> Features:
        """New inputs for the columns that `schema` gives a model.

        Args:
            layers_as_columns: Whether their layers are called as the columns are, or as no other layer is.

        Raises:
            UserError: There are none.
        """
        if not schema.features:
            raise UserError("schema: no column has a role that a model takes: numeric, categorical, text or date")
        inputs = {}
        for place, (name, column) in enumerate(schema.features.items()):
            tensor = keras.KerasTensor((None,), dtype="string" if column.type == "text" else "float64", name=name)
            layer = name if layers_as_columns else f"column_{layer_name(place, name)}"
            inputs[name] = keras.Input(tensor=tensor, name=layer)
        return cls(schema, inputs)

    @cached_property
    def numbers(self) -> list[Any]:
        """Numbers, dates, and where texts are missing that were so in training: float32 `[rows, n]` each."""
        columns = self.schema.features
        found = [*standardised(columns, self.inputs), *calendar(columns, self.inputs)]
        lacking = (name for name, column in columns.items() if column.statistics and column.statistics.missing)
        return [*found, *(self.words[name].is_empty for name in lacking if name in self.words)]

    @cached_property
    def categories(self) -> dict[str, Category]:
        """The categorical columns."""
        return categories(self.schema.features, self.inputs)

    @cached_property
    def words(self) -> dict[str, Words]:
        """The columns of text."""
        return words(self.schema.features, self.inputs)

    def crosses(self, columns: Iterable[Sequence[str]], buckets: int) -> list[Category]:
        """Combinations of categorical columns.

        Raises:
            UserError: One of them is no categorical column.
        """
        found = []
        for names in columns:
            if wrong := [name for name in names if name not in self.categories]:
                allowed = ", ".join(self.categories) or "none"
                raise UserError(f"crosses: {wrong[0]!r} is no categorical column of the schema; allowed: {allowed}")
            found.append(cross([self.categories[name] for name in names], buckets))
        return found

    def weighted(self, units: int, penalty: Any, more: Sequence[Category] = ()) -> list[Any]:
        """Of each category and text its terms of a linear model, `[rows, units]`, from weights that are 0 at first.

        Args:
            penalty: Keras's regularizer of the weights. more: crosses.
        """

        def weights(name: str, size: int) -> Any:
            return keras.layers.Embedding(
                size,
                units,
                embeddings_initializer="zeros",
                embeddings_regularizer=penalty,
                dtype="float32",
                name=f"weights_{name}",
            )

        found = [weights(each.name, each.size)(each.index) for each in (*self.categories.values(), *more)]
        return [*found, *(each.summed(weights(each.name, each.size)(each.index)) for each in self.words.values())]

    def embedded(self) -> list[Any]:
        """Of each category and text a vector, `[rows, embedding_width]`."""

        def embedding(name: str, size: int, values: int) -> Any:
            return keras.layers.Embedding(size, embedding_width(values), name=f"embedding_{name}")

        found = [embedding(each.name, each.size, each.values)(each.index) for each in self.categories.values()]
        texts = self.words.values()
        return [*found, *(each.summed(embedding(each.name, each.size, each.size)(each.index)) for each in texts)]
