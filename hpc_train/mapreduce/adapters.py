"""What each of Keras's preprocessing layers learns from a column, and how it is given that. Local."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from hpc_train.data.hdf5.columns import Column
from hpc_train.data.hdf5.reader import Rows
from hpc_train.data.ragged import Ragged
from hpc_train.errors import UserError
from hpc_train.lazy import keras, tf
from hpc_train.mapreduce.moments import Moments
from hpc_train.mapreduce.quantiles import Quantiles
from hpc_train.mapreduce.reducer import Reducer
from hpc_train.mapreduce.vocabulary import TEXTS, Vocabulary, arrow_of, values_of

State = dict[str, Any]
MOST_TOKENS = 5_000_000
"""Different ones are counted of a column."""


class Adapter(ABC):
    """Reduces a column to what a layer learns from it.

    Args:
        layer: Of Keras. name: what messages call it. column: what it is adapted to.

    Attributes:
        reducer: Of what `values` gives.

    Raises:
        UserError: They do not go together, or the layer has what it would learn.
    """

    reducer: Reducer[State]

    def __init__(self, layer: Any, name: str, column: Column) -> None:
        self.layer, self.name = layer, name
        if (why := self.misfit(column)) is not None:
            raise UserError(f"adapt: {name} is for {why}, but the column {column.name!r} is {column}")

    @abstractmethod
    def misfit(self, column: Column) -> str | None:
        """What the layer is for, where `column` is something else."""

    @abstractmethod
    def finish(self, state: State) -> None:
        """Gives the layer what there is to learn of all rows."""

    def values(self, rows: Rows) -> Any:
        """What is reduced of the rows of a block."""
        return rows


class NormalizationAdapter(Adapter):
    """Mean and variance, for each place of the layer's axes."""

    def __init__(self, layer: Any, name: str, column: Column) -> None:
        super().__init__(layer, name, column)
        if layer.input_mean is not None:
            raise UserError(f"adapt: {name} has been given its mean and variance; leave them out, or do not adapt it")
        self.reducer = Moments()
        self._shape = column.shape or (1,)

    def misfit(self, column: Column) -> str | None:
        return None if column.kind == "numbers" and not column.is_text else "numbers in rows of one length"

    def values(self, rows: Rows) -> np.ndarray:
        array = np.asarray(rows)
        return array.reshape(len(array), *self._shape)

    def finish(self, state: State) -> None:
        layer = self.layer
        if not layer.built:
            layer.build((None, *self._shape))
        built, shape = tuple(layer._build_input_shape), (None, *self._shape)
        is_scalar = built == (None,) and self._shape == (1,)
        if not is_scalar and (len(built) != len(shape) or any(built[d] != shape[d] for d in layer._keep_axis if d)):
            raise UserError(
                f"adapt: {self.name} was built for rows of shape {list(layer._build_input_shape[1:])}, but those of "
                f"the column have {list(self._shape)}"
            )
        # Of each place of a row there are as many values: those that share a mean are merged as blocks are.
        axes = (0,) if is_scalar else tuple(d - 1 for d in layer._reduce_axis if d)
        mean = state["mean"].mean(axis=axes)
        between = np.square(state["mean"] - state["mean"].mean(axis=axes, keepdims=True)).mean(axis=axes)
        variance = (state["squares"] / state["count"]).mean(axis=axes) + between
        layer.adapt_mean.assign(mean.reshape(layer._mean_and_var_shape))
        layer.adapt_variance.assign(variance.reshape(layer._mean_and_var_shape))
        layer.finalize_state()


class DiscretizationAdapter(Adapter):
    """The boundaries of bins that have as many values each."""

    def __init__(self, layer: Any, name: str, column: Column) -> None:
        super().__init__(layer, name, column)
        if layer.num_bins is None:
            raise UserError(f"adapt: {name} has been given its bin_boundaries; give num_bins, or do not adapt it")
        self.reducer = Quantiles(error=max(1e-5, layer.epsilon / 2))

    def misfit(self, column: Column) -> str | None:
        return None if not column.is_text else "numbers"

    def finish(self, state: State) -> None:
        if state["missing"]:
            raise UserError(
                f"adapt: {self.name} cannot be adapted to a column of which {state['missing']:,} values are NaN; leave "
                "them out, or put a number in their place"
            )
        self.layer.reset_state()
        self.layer.summary = np.stack(Quantiles.summary(state)).astype(np.float32)
        self.layer.finalize_state()


class Tokens(NamedTuple):
    """Of a block: its tokens, an Arrow array, the row of each, int64 `[n]`, and how many rows there are."""

    tokens: Any
    row_of: np.ndarray
    rows: int


class TokenCounts(Reducer[State]):
    """How often each of Tokens occurs, and, where `by_row`, in how many rows."""

    def __init__(self, by_row: bool) -> None:
        self._vocabulary, self._by_row = Vocabulary(most_distinct=MOST_TOKENS), by_row

    def init(self) -> State:
        return {"tokens": self._vocabulary.init(), "rows_with": self._vocabulary.init(), "rows": 0}

    def add(self, state: State, values: Tokens) -> State:
        encoded = values.tokens.dictionary_encode()
        distinct, places = encoded.dictionary, encoded.indices.to_numpy()
        add, count = self._vocabulary.add_counts, len(distinct)
        rows_with = state["rows_with"]
        if self._by_row:
            once = np.unique(values.row_of * count + places) % max(1, count)
            rows_with = add(rows_with, distinct, np.bincount(once, minlength=count))
        counted = add(state["tokens"], distinct, np.bincount(places, minlength=count))
        return {"tokens": counted, "rows_with": rows_with, "rows": state["rows"] + values.rows}

    def merge(self, first: State, second: State) -> State:
        merged = {name: self._vocabulary.merge(first[name], second[name]) for name in ("tokens", "rows_with")}
        return {**merged, "rows": first["rows"] + second["rows"]}

    def result(self, state: State) -> State:
        return state


class LookupAdapter(Adapter):
    """How often each value occurs, and in how many rows where the layer weighs by that (tf_idf)."""

    def __init__(self, layer: Any, name: str, column: Column) -> None:
        self._lookup = getattr(layer, "_lookup_layer", layer)
        super().__init__(layer, name, column)
        if self._lookup._has_input_vocabulary:
            raise UserError(f"adapt: {name} has been given its vocabulary; leave it out, or do not adapt it")
        self.reducer = TokenCounts(self._lookup.output_mode == "tf_idf")

    def misfit(self, column: Column) -> str | None:
        if isinstance(self.layer, keras.layers.IntegerLookup):
            return None if not column.is_text and np.dtype(column.dtype).kind in "biu" else "whole numbers"
        return None if column.is_text else "texts"

    def values(self, rows: Rows) -> Tokens:
        tokens, _ = arrow_of(rows)
        if isinstance(rows, Ragged) and rows.dtype.kind != "S":
            return Tokens(tokens, np.repeat(np.arange(len(rows)), rows.lengths), len(rows))
        return Tokens(tokens, _rows_of(len(tokens), len(rows)), len(rows))

    def finish(self, state: State) -> None:
        if state["tokens"]["error"]:
            raise UserError(
                f"adapt: {self.name}: the column has more than {MOST_TOKENS:,} different values; take a Hashing layer, "
                "or a vocabulary of your own, of ht.reducers.TopK"
            )
        lookup = self._lookup
        lookup.reset_state()
        self._insert(lookup.token_counts, state["tokens"])
        if state["rows_with"]["kind"] is not None:
            self._insert(lookup.token_document_counts, state["rows_with"])
            lookup.num_documents.assign(state["rows"])
        self.layer.finalize_state()

    def _insert(self, table: Any, state: State) -> None:
        if state["kind"] is not None:
            values = values_of(state)
            known = values.to_pylist() if state["kind"] == TEXTS else state["values"].astype(np.int64)
            table.insert(tf.constant(known, self._lookup.vocabulary_dtype), tf.constant(state["counts"]))


class TextAdapter(LookupAdapter):
    """The same of the words into which a TextVectorization cuts texts."""

    def values(self, rows: Rows) -> Tokens:
        texts = rows.texts() if isinstance(rows, Ragged) else rows.astype(object)
        cut = self.layer._preprocess(tf.constant(texts[:, None] if texts.ndim == 1 else texts, tf.string))
        if isinstance(cut, tf.RaggedTensor):
            flat, row_of = cut.flat_values, cut.value_rowids().numpy()
            while isinstance(cut.values, tf.RaggedTensor):
                cut = cut.values
                row_of = row_of[cut.value_rowids().numpy()]
        else:
            flat = tf.reshape(cut, [-1])
            row_of = _rows_of(len(flat), len(rows))
        return Tokens(pa.array(flat.numpy().tolist(), pa.large_binary()), row_of, len(rows))


def _rows_of(tokens: int, rows: int) -> np.ndarray:
    """The row of each token, where rows have as many of them."""
    return np.arange(tokens) // max(1, tokens // max(1, rows))


def adapter_of(layer: Any, name: str, column: Column) -> Adapter:
    """What adapts `layer` to `column`.

    Raises:
        UserError: There is nothing to adapt, or they do not go together.
    """
    layers = keras.layers
    kinds: list[tuple[type, type[Adapter]]] = [
        (layers.Normalization, NormalizationAdapter),
        (layers.Discretization, DiscretizationAdapter),
        (layers.TextVectorization, TextAdapter),
        (layers.StringLookup, LookupAdapter),
        (layers.IntegerLookup, LookupAdapter),
    ]
    for kind, adapter in kinds:
        if isinstance(layer, kind):
            return adapter(layer, name, column)
    known = ", ".join([*(kind.__name__ for kind, _ in kinds), "FeatureSpace"])
    raise UserError(f"adapt: {name} is a {type(layer).__name__}, which cannot be adapted; allowed: {known}")
