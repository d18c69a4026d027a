"""What each of Keras's preprocessing layers learns from a column, and how it is given that. Local."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

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


class Adapter(Reducer[State]):
    """Reduces a column to what a layer learns from it.

    Args:
        layer: Of Keras. name: what messages call it. column: what it is adapted to.

    Raises:
        UserError: They do not go together, or the layer has what it would learn.
    """

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

    def result(self, state: State) -> State:
        return state


class NormalizationAdapter(Adapter):
    """Mean and variance, for each place of the layer's axes."""

    def __init__(self, layer: Any, name: str, column: Column) -> None:
        super().__init__(layer, name, column)
        if layer.input_mean is not None:
            raise UserError(f"adapt: {name} has been given its mean and variance; leave them out, or do not adapt it")
        self._moments = Moments()
        self._shape = column.shape or (1,)

    def misfit(self, column: Column) -> str | None:
        return None if column.kind == "numbers" and not column.is_text else "numbers in rows of one length"

    def init(self) -> State:
        return self._moments.init()

    def add(self, state: State, values: Rows) -> State:
        array = np.asarray(values)
        return self._moments.add(state, array.reshape(len(array), *self._shape))

    def merge(self, first: State, second: State) -> State:
        return self._moments.merge(first, second)

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
        self._quantiles = Quantiles(error=max(1e-5, layer.epsilon / 2))

    def misfit(self, column: Column) -> str | None:
        return None if not column.is_text else "numbers"

    def init(self) -> State:
        return self._quantiles.init()

    def add(self, state: State, values: Rows) -> State:
        return self._quantiles.add(state, values)

    def merge(self, first: State, second: State) -> State:
        return self._quantiles.merge(first, second)

    def finish(self, state: State) -> None:
        if state["missing"]:
            raise UserError(
                f"adapt: {self.name} cannot be adapted to a column of which {state['missing']:,} values are NaN; leave "
                "them out, or put a number in their place"
            )
        self.layer.reset_state()
        self.layer.summary = np.stack(self._quantiles.summary(state)).astype(np.float32)
        self.layer.finalize_state()


class LookupAdapter(Adapter):
    """How often each value occurs, and in how many rows where the layer weighs by that (tf_idf)."""

    def __init__(self, layer: Any, name: str, column: Column) -> None:
        self._lookup = getattr(layer, "_lookup_layer", layer)
        super().__init__(layer, name, column)
        if self._lookup._has_input_vocabulary:
            raise UserError(f"adapt: {name} has been given its vocabulary; leave it out, or do not adapt it")
        self._vocabulary = Vocabulary(most_distinct=MOST_TOKENS)
        self._counts_rows = self._lookup.output_mode == "tf_idf"

    def misfit(self, column: Column) -> str | None:
        if isinstance(self.layer, keras.layers.IntegerLookup):
            return None if not column.is_text and np.dtype(column.dtype).kind in "biu" else "whole numbers"
        return None if column.is_text else "texts"

    def init(self) -> State:
        return {"tokens": self._vocabulary.init(), "rows_with": self._vocabulary.init(), "rows": 0}

    def add(self, state: State, values: Rows) -> State:
        tokens, row_of = self.tokens(values)
        encoded = tokens.dictionary_encode()
        distinct, places = encoded.dictionary, encoded.indices.to_numpy()
        vocabulary = self._vocabulary
        counted = vocabulary.add_counts(state["tokens"], distinct, np.bincount(places, minlength=len(distinct)))
        rows_with = state["rows_with"]
        if self._counts_rows:
            once = np.unique(row_of * len(distinct) + places) % max(1, len(distinct))
            rows_with = vocabulary.add_counts(rows_with, distinct, np.bincount(once, minlength=len(distinct)))
        return {"tokens": counted, "rows_with": rows_with, "rows": state["rows"] + len(values)}

    def tokens(self, values: Rows) -> tuple[Any, np.ndarray]:
        """The tokens of a block, an Arrow array, and the row of each."""
        tokens, _ = arrow_of(values)
        if isinstance(values, Ragged) and values.dtype.kind != "S":
            return tokens, np.repeat(np.arange(len(values)), values.lengths)
        return tokens, np.arange(len(tokens)) // max(1, len(tokens) // max(1, len(values)))

    def merge(self, first: State, second: State) -> State:
        merged = {name: self._vocabulary.merge(first[name], second[name]) for name in ("tokens", "rows_with")}
        return {**merged, "rows": first["rows"] + second["rows"]}

    def finish(self, state: State) -> None:
        if state["tokens"]["error"]:
            raise UserError(
                f"adapt: {self.name}: the column has more than {MOST_TOKENS:,} different values; take a Hashing layer, "
                "or a vocabulary of your own, of ht.reducers.TopK"
            )
        lookup = self._lookup
        lookup.reset_state()
        self._insert(lookup.token_counts, state["tokens"])
        if self._counts_rows:
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

    def tokens(self, values: Rows) -> tuple[Any, np.ndarray]:
        texts = values.texts() if isinstance(values, Ragged) else values.astype(object)
        texts = texts[:, None] if texts.ndim == 1 else texts
        cut = self.layer._preprocess(tf.constant(texts, tf.string))
        if isinstance(cut, tf.RaggedTensor):
            flat, row_of = cut.flat_values, cut.value_rowids().numpy()
            while isinstance(cut.values, tf.RaggedTensor):
                cut = cut.values
                row_of = row_of[cut.value_rowids().numpy()]
        else:
            flat = tf.reshape(cut, [-1])
            row_of = np.arange(len(flat)) // max(1, len(flat) // max(1, len(values)))
        return pa.array(flat.numpy().tolist(), pa.large_binary()), row_of


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
