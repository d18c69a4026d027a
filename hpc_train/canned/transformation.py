"""What feature columns make of a batch: numbers, and the numbers of values with which tables are looked up.

As TensorFlow's feature columns do it. Values are looked up and hashed on the CPU, where alone TensorFlow has texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from hpc_train.canned.columns import (
    BucketizedColumn,
    CategoricalColumn,
    CrossedColumn,
    DenseColumn,
    EmbeddingColumn,
    FeatureColumn,
    HashedColumn,
    IdentityColumn,
    IndicatorColumn,
    NumericColumn,
    VocabularyColumn,
    vocabularies_of,
)
from hpc_train.canned.refusal import allowed_alone
from hpc_train.canned.vocabulary import vocabulary_of
from hpc_train.errors import UserError
from hpc_train.text import listed

NOTHING = {"string": "", "int64": -1}
"""What stands in a row of categorical features where there is no value."""

Lookups = Mapping[VocabularyColumn, Any]


class Ids(NamedTuple):
    """The values of a categorical column as numbers, int64 `[B, n]`, and which of them are there, bool `[B, n]`.

    A value that is there may have no number: -1.
    """

    numbers: Any
    there: Any


def lookups_of(columns: Sequence[FeatureColumn]) -> Lookups:
    """A StringLookup for each vocabulary: 0 stands for what it has not, its own entries begin at 1."""
    found = dict.fromkeys(vocabularies_of(columns))
    return {
        column: keras.layers.StringLookup(vocabulary=vocabulary_of(column), mask_token=None, num_oov_indices=1)
        for column in found
    }


@dataclass
class Batch:
    """Features of a batch by name, and what columns have made of them, each once.

    Args:
        features: Tensors `[B, ...]`.
        lookups: See lookups_of.
    """

    features: Mapping[str, Any]
    lookups: Lookups
    _made: dict[FeatureColumn, Ids] = field(default_factory=dict)

    def inputs(self, columns: Sequence[FeatureColumn], linear: bool) -> dict[str, Any]:
        """What a tower takes of each column, by the column's name: Ids of what has a table, else numbers `[B, n]`.

        Args:
            linear: Whether it is the linear tower, where all that is categorical has one.
        """
        found: dict[str, Any] = {}
        for column in columns:
            if isinstance(column, EmbeddingColumn):
                found[column.name] = self.ids(column.categorical_column)
            elif linear and isinstance(column, CategoricalColumn):
                found[column.name] = self.ids(column)
            else:
                found[column.name] = self.numbers(column)
        return found

    def numbers(self, column: DenseColumn | CategoricalColumn) -> Any:
        """What a dense column without a table makes of the rows, float32 `[B, width]`."""
        match column:
            case NumericColumn():
                return self._numeric(column)
            case BucketizedColumn():
                return _counted(self.ids(column), column.size)
            case IndicatorColumn():
                return _counted(self.ids(column.categorical_column), column.width)
        raise AssertionError("the arguments of an estimator have been checked")

    def ids(self, column: CategoricalColumn) -> Ids:
        """What a categorical column makes of the rows."""
        if column not in self._made:
            with tf.device("CPU"):
                self._made[column] = self._ids(column)
        return self._made[column]

    def _ids(self, column: CategoricalColumn) -> Ids:
        match column:
            case BucketizedColumn():
                return self._bucketized(column)
            case CrossedColumn():
                return self._crossed(column)
            case IdentityColumn():
                return _identical(column, *self._values(column.key, False, column.name))
            case HashedColumn():
                values, there = self._values(column.key, column.is_text, column.name)
                return Ids(tf.strings.to_hash_bucket_fast(_text(values), column.hash_bucket_size), there)
            case VocabularyColumn():
                values, there = self._values(column.key, column.is_text, column.name)
                return Ids(self._looked_up(column, _text(values)), there)

    def _looked_up(self, column: VocabularyColumn, texts: Any) -> Any:
        found = tf.cast(self.lookups[column](texts), tf.int64) - 1
        others: Any = tf.constant(column.default_value, tf.int64)
        if column.num_oov_buckets:
            others = tf.strings.to_hash_bucket_fast(texts, column.num_oov_buckets) + column.vocabulary_size
        return tf.where(found >= 0, found, others)

    def _bucketized(self, column: BucketizedColumn) -> Ids:
        values = self._numeric(column.source_column)
        buckets = tf.cast(tf.raw_ops.Bucketize(input=values, boundaries=list(column.boundaries)), tf.int64)
        first = (len(column.boundaries) + 1) * tf.range(column.source_column.width, dtype=tf.int64)
        return Ids(buckets + first, tf.ones_like(buckets, tf.bool))

    def _crossed(self, column: CrossedColumn) -> Ids:
        crossed = []
        for leaf in column.leaves:
            if isinstance(leaf, str):
                crossed.append(self._column_of(leaf, column.name))
            else:
                crossed.append(_sparse(self.ids(leaf)))
        if not any(isinstance(part, tf.SparseTensor) for part in crossed):
            crossed[0] = _sparse(Ids(crossed[0], tf.ones_like(crossed[0], tf.bool)))
        options = {} if column.hash_key is None else {"hash_key": column.hash_key}
        found = tf.sparse.cross_hashed(crossed, num_buckets=column.hash_bucket_size, **options)
        numbers = tf.sparse.to_dense(found, default_value=-1)
        return Ids(numbers, numbers >= 0)

    def _numeric(self, column: NumericColumn) -> Any:
        values = self._feature(column.key, column.name)
        if values.dtype == tf.string:
            raise UserError(f"feature column {column.name!r}: feature {column.key!r} is of texts, and not of numbers")
        sizes = values.shape[1:].as_list()
        if sizes != list(column.shape) and not (sizes == [] and column.shape == (1,)):
            raise UserError(
                f"feature column {column.name!r}: a row of feature {column.key!r} has the shape {sizes}, and not "
                f"{list(column.shape)}; give numeric_column(…, shape={tuple(sizes)})"
            )
        values = tf.reshape(tf.cast(values, tf.float32), [-1, *column.shape])
        if column.normalizer_fn is not None:
            values = tf.convert_to_tensor(column.normalizer_fn(values))
            if values.shape[1:].num_elements() != column.width:
                raise UserError(
                    f"feature column {column.name!r}: normalizer_fn returned {values.shape[1:].as_list()} a row, and "
                    f"not {list(column.shape)}"
                )
        return tf.reshape(tf.cast(values, tf.float32), [-1, column.width])

    def _values(self, key: str, is_text: bool, name: str) -> tuple[Any, Any]:
        """A feature of a categorical column, `[B, n]`, and where it has values."""
        values = self._column_of(key, name)
        if (values.dtype == tf.string) != is_text:
            kinds = (
                ("texts", "whole numbers", "'int64'") if values.dtype == tf.string else ("whole numbers", "texts", "")
            )
            other = "'string'" if values.dtype == tf.string else "'int64'"
            raise UserError(
                f"feature column {name!r}: feature {key!r} is of {kinds[0]}, and not of {kinds[1]}; give the column "
                f"dtype={other}, or a vocabulary of {kinds[0]}"
            )
        return values, values != NOTHING[values.dtype.name]

    def _column_of(self, key: str, name: str) -> Any:
        """A feature of texts or whole numbers, string or int64 `[B, n]`."""
        values = self._feature(key, name)
        if values.dtype != tf.string:
            if not values.dtype.is_integer and values.dtype != tf.bool:
                raise UserError(
                    f"feature column {name!r}: feature {key!r} is {values.dtype.name}, and neither of texts nor of "
                    "whole numbers; bucketize it, or write whole numbers into the shards"
                )
            values = tf.cast(values, tf.int64)
        if values.shape.rank == 1:
            return values[:, tf.newaxis]
        if values.shape.rank != 2:
            raise UserError(
                f"feature column {name!r}: a row of feature {key!r} has the shape {values.shape[1:].as_list()}; "
                "allowed are one value a row, or several in a line"
            )
        return values

    def _feature(self, key: str, name: str) -> Any:
        if key not in self.features:
            known = listed(map(repr, self.features))
            raise UserError(
                f"feature column {name!r} takes the feature {key!r}, which the input has not; it has {known}; name all "
                "features of the columns in the input's `features`"
            )
        return tf.convert_to_tensor(self.features[key])


def _text(values: Any) -> Any:
    return values if values.dtype == tf.string else tf.as_string(values)


def _identical(column: IdentityColumn, values: Any, there: Any) -> Ids:
    beyond = there & ((values < 0) | (values >= column.num_buckets))
    if column.default_value is not None:
        return Ids(tf.where(beyond, tf.constant(column.default_value, tf.int64), values), there)
    what = (
        f"feature column {column.name!r}: feature {column.key!r} has a number that is not from 0 to "
        f"{column.num_buckets - 1}; give the column more num_buckets, or a default_value"
    )
    return Ids(allowed_alone(values, beyond, what), there)


def _sparse(ids: Ids) -> Any:
    places = tf.where(ids.there)
    shape = tf.shape(ids.numbers, tf.int64)
    return tf.SparseTensor(places, tf.gather_nd(ids.numbers, places), shape)


def _counted(ids: Ids, size: int) -> Any:
    """How often each row has each number, float32 `[B, size]`."""
    numbers = tf.where(ids.there, ids.numbers, tf.constant(-1, tf.int64))
    return tf.reduce_sum(tf.one_hot(numbers, size), axis=1)
