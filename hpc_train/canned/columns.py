"""Feature columns as frozen data: what each takes of a row, and what it makes of that. Pure.

Those of tf.feature_column (TensorFlow 2.15), with its names of columns, by which an Estimator's variables are called.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Combiner = Literal["mean", "sqrtn", "sum"]
COMBINERS: tuple[Combiner, ...] = ("mean", "sqrtn", "sum")

_NOT_IN_SCOPES = re.compile(r"[^A-Za-z0-9_.]")


@dataclass(frozen=True)
class NumericColumn:
    """Numbers of a row, `shape` of them, float32.

    Attributes:
        normalizer_fn: Applied to them, `[B, *shape]`; None: they are taken as they are.
    """

    key: str
    shape: tuple[int, ...] = (1,)
    normalizer_fn: Callable[[Any], Any] | None = None

    @property
    def name(self) -> str:
        return self.key

    @property
    def width(self) -> int:
        """Numbers that it gives for a row."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class BucketizedColumn:
    """In which bucket each number of a row lies: bucket i holds `boundaries[i - 1] <= x < boundaries[i]`."""

    source_column: NumericColumn
    boundaries: tuple[float, ...]

    @property
    def name(self) -> str:
        return f"{self.source_column.name}_bucketized"

    @property
    def size(self) -> int:
        """Values: each number of the row has buckets of its own."""
        return (len(self.boundaries) + 1) * self.source_column.width


@dataclass(frozen=True)
class VocabularyColumn:
    """The number of a value in a vocabulary.

    Attributes:
        vocabulary: Texts; those of whole numbers where these are the values. A path: that of a file with one a line.
        size: Entries of the vocabulary.
        is_text: Whether the values are texts, not whole numbers.
        default_value: The number of all other values; -1: none.
        num_oov_buckets: By hashes, other values get one of so many numbers behind the vocabulary instead.
    """

    key: str
    vocabulary: tuple[str, ...] | str
    vocabulary_size: int
    is_text: bool = True
    default_value: int = -1
    num_oov_buckets: int = 0

    @property
    def name(self) -> str:
        return self.key

    @property
    def size(self) -> int:
        """Numbers that values can have."""
        return self.vocabulary_size + self.num_oov_buckets


@dataclass(frozen=True)
class HashedColumn:
    """The hash of a value, by TensorFlow's to_hash_bucket_fast; whole numbers are hashed as their text."""

    key: str
    hash_bucket_size: int
    is_text: bool = True

    @property
    def name(self) -> str:
        return self.key

    @property
    def size(self) -> int:
        """Numbers that values can have."""
        return self.hash_bucket_size


@dataclass(frozen=True)
class IdentityColumn:
    """Whole numbers from 0 to `num_buckets` - 1, as they are.

    Attributes:
        default_value: The number of all others; None: there may be none.
    """

    key: str
    num_buckets: int
    default_value: int | None = None

    @property
    def name(self) -> str:
        return self.key

    @property
    def size(self) -> int:
        """Numbers that values can have."""
        return self.num_buckets


@dataclass(frozen=True)
class CrossedColumn:
    """The hash of each combination of the values of several features, by TensorFlow's sparse.cross_hashed.

    Attributes:
        keys: Names of features, taken as they are, and columns, of which the numbers are taken.
        hash_key: Of the hash; None: TensorFlow's own.
    """

    keys: tuple[str | BucketizedColumn | VocabularyColumn | IdentityColumn | CrossedColumn, ...]
    hash_bucket_size: int
    hash_key: int | None = None

    @property
    def leaves(self) -> tuple[str | BucketizedColumn | VocabularyColumn | IdentityColumn, ...]:
        """What is combined, columns that are crosses themselves taken apart."""
        parts = [key.leaves if isinstance(key, CrossedColumn) else (key,) for key in self.keys]
        return tuple(leaf for part in parts for leaf in part)

    @property
    def name(self) -> str:
        return "_X_".join(sorted(leaf if isinstance(leaf, str) else leaf.name for leaf in self.leaves))

    @property
    def size(self) -> int:
        """Numbers that values can have."""
        return self.hash_bucket_size


CategoricalColumn = BucketizedColumn | VocabularyColumn | HashedColumn | IdentityColumn | CrossedColumn


@dataclass(frozen=True)
class IndicatorColumn:
    """How often a row has each value, float32, `size` of its column."""

    categorical_column: CategoricalColumn

    @property
    def name(self) -> str:
        return f"{self.categorical_column.name}_indicator"

    @property
    def width(self) -> int:
        """Numbers that it gives for a row."""
        return self.categorical_column.size


@dataclass(frozen=True)
class EmbeddingColumn:
    """A vector for each value, learnt; those of a row's values combined.

    Attributes:
        dimension: Of the vectors.
        initializer: An initializer of Keras as Keras serialises it; None: a truncated normal distribution of the
            standard deviation 1 / sqrt(dimension).
        max_norm: Longer vectors are shortened to this Euclidean norm when they are taken; None: none is.
        trainable: Whether they are learnt at all.
    """

    categorical_column: CategoricalColumn
    dimension: int
    combiner: Combiner = "mean"
    initializer: Mapping[str, Any] | None = None
    max_norm: float | None = None
    trainable: bool = True

    @property
    def name(self) -> str:
        return f"{self.categorical_column.name}_embedding"

    @property
    def width(self) -> int:
        """Numbers that it gives for a row."""
        return self.dimension


DenseColumn = NumericColumn | BucketizedColumn | IndicatorColumn | EmbeddingColumn
"""What the DNN of an estimator takes."""
FeatureColumn = CategoricalColumn | DenseColumn


def keys_of(column: FeatureColumn | str) -> Iterator[str]:
    """The features of a row that it takes."""
    match column:
        case str():
            yield column
        case BucketizedColumn():
            yield column.source_column.key
        case CrossedColumn():
            for leaf in column.leaves:
                yield from keys_of(leaf)
        case IndicatorColumn() | EmbeddingColumn():
            yield from keys_of(column.categorical_column)
        case _:
            yield column.key


def vocabularies_of(columns: Sequence[FeatureColumn | str]) -> Iterator[VocabularyColumn]:
    """The columns among them, and within them, that have a vocabulary."""
    for column in columns:
        match column:
            case VocabularyColumn():
                yield column
            case CrossedColumn():
                yield from vocabularies_of(column.leaves)
            case IndicatorColumn() | EmbeddingColumn():
                yield from vocabularies_of([column.categorical_column])


def width_of(column: FeatureColumn) -> int:
    """Numbers that it gives for a row, or that values of it can have."""
    return column.size if isinstance(column, CategoricalColumn) else column.width


def scope_of(column: FeatureColumn) -> str:
    """What its variables are called by, as in an Estimator's checkpoint."""
    return _NOT_IN_SCOPES.sub("_", column.name)
