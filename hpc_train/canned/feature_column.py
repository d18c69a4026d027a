"""`ht.feature_column`: the feature columns of canned estimators, by the names and arguments of tf.feature_column. Pure.

A column is frozen data. What it makes of a batch, `hpc_train.canned.transformation` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from hpc_train.arguments import check_count, check_path, check_type, checked_arguments, is_path, not_allowed
from hpc_train.canned.columns import (
    COMBINERS,
    BucketizedColumn,
    CategoricalColumn,
    Combiner,
    CrossedColumn,
    EmbeddingColumn,
    HashedColumn,
    IdentityColumn,
    IndicatorColumn,
    NumericColumn,
    VocabularyColumn,
)
from hpc_train.canned.keras_objects import serialized
from hpc_train.canned.vocabulary import read_vocabulary
from hpc_train.config.estimator_arguments import FEATURE_COLUMN, FEATURE_COLUMNS
from hpc_train.config.types import MOST_BUCKETS
from hpc_train.errors import UserError, did_you_mean

__all__ = [
    "bucketized_column",
    "categorical_column_with_hash_bucket",
    "categorical_column_with_identity",
    "categorical_column_with_vocabulary_file",
    "categorical_column_with_vocabulary_list",
    "crossed_column",
    "embedding_column",
    "indicator_column",
    "numeric_column",
]

MOST_NUMBERS = 1 << 24
"""Of a row, in one column."""
MOST_LISTED, MOST_LISTED_CHARACTERS = 1 << 16, 1 << 22
"""Values of a vocabulary that is part of the job's params, and so of its job.yaml."""
_MOST_KEY = 2**63
_CATEGORICAL = "a categorical column, as in ht.feature_column.categorical_column_with_identity('day', 7)"


def _refused(function: Any) -> Any:
    """`function` with checked arguments; those of tf.feature_column that are gone are refused with the way on."""
    function.retired = FEATURE_COLUMN
    return checked_arguments(function, FEATURE_COLUMN)


@_refused
def numeric_column(
    key: str,
    shape: int | Sequence[int] = (1,),
    default_value: Any = None,
    dtype: Any = "float32",
    normalizer_fn: Callable[[Any], Any] | None = None,
) -> NumericColumn:
    """Numbers as they are, float32 `[B, n]`.

    Args:
        key: The feature, a dataset of numbers with rows of `shape`; one number a row may also be `[B]`.
        shape: Of a row.
        default_value: None alone: all rows of shards have a value.
        dtype: A type of numbers. They are computed with in float32, whatever it is.
        normalizer_fn: A function of TensorFlow of the numbers, float32 `[B, *shape]`, that returns as many. Exporters
            write it into their exports; `hpc-train evaluate` and `hpc-train export` have to import it, so that they
            need one at the top of a module.

    Raises:
        UserError: An argument is not allowed.
    """
    where = "numeric_column"
    _check_key(where, key)
    sizes = _sizes(where, shape)
    if default_value is not None:
        way = "leave it out: all rows of shards have a value; write into them the one that missing ones are to have"
        raise UserError(f"{where}: default_value: {way}")
    if not _is_number(name := _dtype(where, dtype)) or name == "bool":
        raise not_allowed(where, "dtype", dtype, "a type of numbers, as 'float32'")
    if normalizer_fn is not None and not callable(normalizer_fn):
        raise not_allowed(where, "normalizer_fn", normalizer_fn, "a function of a tensor, or None")
    return NumericColumn(key, sizes, normalizer_fn)


@_refused
def bucketized_column(source_column: NumericColumn, boundaries: Sequence[float]) -> BucketizedColumn:
    """In which bucket a number lies: below the first boundary, from one (included) to the next, or from the last on.

    In a linear model each bucket has a weight; in a DNN it is one of `len(boundaries) + 1` numbers that is 1, the
    others being 0, float32 `[B, n * (len(boundaries) + 1)]`.

    Args:
        source_column: A numeric_column of one number a row, or of `n`.
        boundaries: Ascending.

    Raises:
        UserError: An argument is not allowed.
    """
    where = "bucketized_column"
    check_type(where, "source_column", source_column, NumericColumn, "an ht.feature_column.numeric_column")
    if len(source_column.shape) > 1:
        raise not_allowed(where, "source_column", source_column, "a numeric_column whose shape has one dimension")
    allowed = "one number or more, ascending"
    if isinstance(boundaries, str) or not isinstance(boundaries, Sequence) or not boundaries:
        raise not_allowed(where, "boundaries", boundaries, allowed)
    if not all(isinstance(number, Real) and not isinstance(number, bool) for number in boundaries):
        raise not_allowed(where, "boundaries", boundaries, allowed)
    try:
        edges = tuple(float(number) for number in boundaries)
    except OverflowError:
        raise not_allowed(where, "boundaries", boundaries, allowed) from None
    if not all(map(math.isfinite, edges)) or any(low >= high for low, high in pairwise(edges)):
        raise not_allowed(where, "boundaries", boundaries, allowed)
    return BucketizedColumn(source_column, edges)


@_refused
def categorical_column_with_vocabulary_list(
    key: str,
    vocabulary_list: Sequence[str | int],
    dtype: Any = None,
    default_value: int = -1,
    num_oov_buckets: int = 0,
) -> VocabularyColumn:
    """The number of a value in a list. An empty text, and -1 of whole numbers, is no value.

    Args:
        key: The feature, of texts or whole numbers, one or several a row: `[B]` or `[B, n]`.
        vocabulary_list: Texts, or whole numbers; each once, 65,536 at most: it is part of the job's description.
        dtype: "string", or a type of whole numbers; None: that of the vocabulary.
        default_value: The number of all other values; -1: they have none.
        num_oov_buckets: Other values get, by their hashes, one of so many numbers behind the list's.

    Raises:
        UserError: An argument is not allowed.
    """
    where = "categorical_column_with_vocabulary_list"
    _check_key(where, key)
    allowed = f"a list of texts, or of whole numbers, each once, {MOST_LISTED:,} at most; of more give a file"
    if isinstance(vocabulary_list, str | bytes) or not isinstance(vocabulary_list, Sequence | np.ndarray):
        raise not_allowed(where, "vocabulary_list", vocabulary_list, allowed)
    values = [value.item() if isinstance(value, np.generic) else value for value in vocabulary_list]
    are_texts = all(isinstance(value, str) for value in values)
    are_numbers = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    texts = tuple(map(str, values)) if (are_texts or are_numbers) and len(values) <= MOST_LISTED else ()
    if not texts or len(set(texts)) < len(texts) or sum(map(len, texts)) > MOST_LISTED_CHARACTERS:
        raise not_allowed(where, "vocabulary_list", vocabulary_list, allowed)
    if dtype is not None and _is_text(where, dtype) != are_texts:
        kind = "'string'" if are_texts else "a type of whole numbers, as 'int64'"
        raise not_allowed(where, "dtype", dtype, f"that of the vocabulary, {kind}, or None")
    _check_others(where, default_value, num_oov_buckets, len(values))
    return VocabularyColumn(key, texts, len(texts), are_texts, default_value, num_oov_buckets)


@_refused
def categorical_column_with_vocabulary_file(
    key: str,
    vocabulary_file: str | Path,
    vocabulary_size: int | None = None,
    dtype: Any = "string",
    default_value: int | None = None,
    num_oov_buckets: int = 0,
    file_format: str | None = None,
) -> VocabularyColumn:
    """The number of a value in a file with one a line. An empty text, and -1 of whole numbers, is no value.

    The file is read when the model is made, on all ranks, too, and when its job-dir is evaluated; exports have it in
    them.

    Args:
        key: The feature, of texts or whole numbers, one or several a row: `[B]` or `[B, n]`.
        dtype, default_value, num_oov_buckets: As in categorical_column_with_vocabulary_list; None: -1.
        vocabulary_file: In UTF-8.
        vocabulary_size: How many of its lines, from the first on, are used; None: all.
        file_format: None or "text".

    Raises:
        UserError: An argument is not allowed, or the file cannot be read, has too few lines, or one twice.
    """
    where = "categorical_column_with_vocabulary_file"
    _check_key(where, key)
    check_path(where, "vocabulary_file", vocabulary_file, "a file with one value a line")
    if vocabulary_size is not None:
        check_count(where, "vocabulary_size", vocabulary_size, 1, MOST_BUCKETS)
    if file_format not in (None, "text"):
        raise not_allowed(where, "file_format", file_format, "None or 'text', one value a line")
    are_texts, default = _is_text(where, dtype), -1 if default_value is None else default_value
    path = str(Path(vocabulary_file).absolute())
    size = len(read_vocabulary(path, vocabulary_size, are_texts, where))
    _check_others(where, default, num_oov_buckets, size)
    return VocabularyColumn(key, path, size, are_texts, default, num_oov_buckets)


@_refused
def categorical_column_with_hash_bucket(key: str, hash_bucket_size: int, dtype: Any = "string") -> HashedColumn:
    """The hash of a value, the same as tf.feature_column's. An empty text, and -1 of whole numbers, is no value.

    Args:
        key: The feature, of texts or whole numbers, one or several a row: `[B]` or `[B, n]`.
        hash_bucket_size: From how many numbers, 2 at least.
        dtype: "string", or a type of whole numbers, which are hashed as their decimal text.

    Raises:
        UserError: An argument is not allowed.
    """
    where = "categorical_column_with_hash_bucket"
    _check_key(where, key)
    check_count(where, "hash_bucket_size", hash_bucket_size, 2, MOST_BUCKETS)
    return HashedColumn(key, hash_bucket_size, _is_text(where, dtype))


@_refused
def categorical_column_with_identity(key: str, num_buckets: int, default_value: int | None = None) -> IdentityColumn:
    """Whole numbers as they are. -1 is no value.

    Args:
        key: The feature, of whole numbers from 0 to `num_buckets` - 1, one or several a row: `[B]` or `[B, n]`.
        default_value: The number of all others; None: there may be none, and one ends the job.

    Raises:
        UserError: An argument is not allowed.
    """
    where = "categorical_column_with_identity"
    _check_key(where, key)
    check_count(where, "num_buckets", num_buckets, 1, MOST_BUCKETS)
    if default_value is not None:
        check_count(where, "default_value", default_value, 0, num_buckets - 1)
    return IdentityColumn(key, num_buckets, default_value)


@_refused
def crossed_column(keys: Sequence[Any], hash_bucket_size: int, hash_key: int | None = None) -> CrossedColumn:
    """The hash of a combination of values, the same as tf.feature_column's; of several values a row, each combination.

    Args:
        keys: Two or more of: names of features of texts or whole numbers, which are taken as they are, empty ones, too;
            bucketized columns and categorical columns, of which the numbers are taken; no hashed ones, of which the
            feature's name is to be given.
        hash_bucket_size: From how many numbers.
        hash_key: A number that the hash begins with; None: TensorFlow's own.

    Raises:
        UserError: An argument is not allowed.
    """
    where = "crossed_column"
    kinds = BucketizedColumn | VocabularyColumn | IdentityColumn | CrossedColumn
    allowed = "two or more names of features, bucketized columns, or categorical columns that are not hashed"
    if isinstance(keys, str) or not isinstance(keys, Sequence) or len(keys) < 2:
        raise not_allowed(where, "keys", keys, allowed)
    for key in keys:
        if isinstance(key, HashedColumn):
            raise UserError(f"{where}: keys: a hashed column would be hashed twice; give its feature, {key.key!r}")
        if not isinstance(key, kinds):
            check_type(where, "keys", key, str, allowed)
            _check_key(where, key)
    check_count(where, "hash_bucket_size", hash_bucket_size, 2, MOST_BUCKETS)
    if hash_key is not None:
        check_count(where, "hash_key", hash_key, 0, _MOST_KEY - 1)
    return CrossedColumn(tuple(keys), hash_bucket_size, hash_key)


@_refused
def indicator_column(categorical_column: CategoricalColumn) -> IndicatorColumn:
    """How often a row has each value of a categorical column, for a DNN: float32 `[B, size of the column]`.

    Args:
        categorical_column: One of few values; of many, an embedding_column takes far less.

    Raises:
        UserError: It is none.
    """
    check_type("indicator_column", "categorical_column", categorical_column, CategoricalColumn, _CATEGORICAL)
    return IndicatorColumn(categorical_column)


@_refused
def embedding_column(
    categorical_column: CategoricalColumn,
    dimension: int,
    combiner: Combiner = "mean",
    initializer: Any = None,
    ckpt_to_load_from: str | None = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
    use_safe_embedding_lookup: bool = True,
) -> EmbeddingColumn:
    """A learnt vector for each value of a categorical column, for a DNN: float32 `[B, dimension]`.

    A row without a value has zeros. The vectors are looked up, whatever their number.

    Args:
        categorical_column: Whose values.
        dimension: Of the vectors.
        combiner: What is made of several values a row: "mean", "sqrtn" (the sum over the root of their number), "sum".
        initializer: One of Keras, or its name; None: a truncated normal distribution, standard deviation
            1 / sqrt(dimension).
        ckpt_to_load_from, tensor_name_in_ckpt: None alone: the estimator's warm_start_from does that.
        max_norm: Vectors are shortened to this Euclidean norm when they are looked up.
        trainable: Whether the vectors are learnt.
        use_safe_embedding_lookup: True alone.

    Raises:
        UserError: An argument is not allowed.
    """
    where = "embedding_column"
    check_type(where, "categorical_column", categorical_column, CategoricalColumn, _CATEGORICAL)
    check_count(where, "dimension", dimension, 1, MOST_NUMBERS)
    check_combiner(where, "combiner", combiner)
    for name, value in {"ckpt_to_load_from": ckpt_to_load_from, "tensor_name_in_ckpt": tensor_name_in_ckpt}.items():
        if value is not None:
            way = "give the estimator warm_start_from=ht.WarmStartSettings(…, var_name_to_prev_var_name={…})"
            raise UserError(f"{where}: {name}: leave it out; {way}")
    if max_norm is not None:
        check_type(where, "max_norm", max_norm, Real, "a number above 0, or None")
        if not 0 < max_norm < math.inf:
            raise not_allowed(where, "max_norm", max_norm, "a number above 0, or None")
    check_type(where, "trainable", trainable, bool, "True or False")
    if use_safe_embedding_lookup is not True:
        raise not_allowed(where, "use_safe_embedding_lookup", use_safe_embedding_lookup, "True")
    made = None if initializer is None else serialized(where, "initializer", initializer, "initializers")
    norm = None if max_norm is None else float(max_norm)
    return EmbeddingColumn(categorical_column, dimension, combiner, made, norm, trainable)


def check_combiner(where: str, argument: str, value: object) -> None:
    """UserError where `value` is none of the ways to combine the values of a row."""
    if not isinstance(value, str) or value not in COMBINERS:
        raise not_allowed(where, argument, value, "'mean', 'sqrtn' or 'sum'")


def _check_key(where: str, key: object) -> None:
    if not isinstance(key, str) or not is_path(key):
        raise not_allowed(where, "key" if where != "crossed_column" else "keys", key, "the name of a feature")


def _check_others(where: str, default_value: object, num_oov_buckets: object, size: int) -> None:
    """Arguments of what a vocabulary has not."""
    check_count(where, "num_oov_buckets", num_oov_buckets, 0, MOST_BUCKETS - size)
    check_count(where, "default_value", default_value, -1, size - 1)
    if num_oov_buckets and default_value != -1:
        raise UserError(f"{where}: default_value: num_oov_buckets has numbers for all other values; leave one out")


def _sizes(where: str, shape: object) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, int) else shape
    allowed = f"a whole number from 1 on, or several, {MOST_NUMBERS:,} in all at most"
    if isinstance(sizes, str | bytes) or not isinstance(sizes, Sequence) or not sizes:
        raise not_allowed(where, "shape", shape, allowed)
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        raise not_allowed(where, "shape", shape, allowed)
    if math.prod(sizes) > MOST_NUMBERS:
        raise not_allowed(where, "shape", shape, allowed)
    return tuple(sizes)


def _is_text(where: str, dtype: object) -> bool:
    name = _dtype(where, dtype)
    if name != "string" and not name.startswith(("int", "uint")):
        raise not_allowed(where, "dtype", dtype, "'string', or a type of whole numbers, as 'int64'")
    return name == "string"


def _is_number(name: str) -> bool:
    return name.startswith(("int", "uint", "float", "bfloat"))


def _dtype(where: str, dtype: object) -> str:
    """The name of a type of TensorFlow, numpy or Python, or given by its name."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    if name is None and isinstance(dtype, type):
        name = "string" if issubclass(dtype, str) else getattr(dtype, "__name__", "")
    name = {"str": "string", "int": "int64", "float": "float64"}.get(str(name), str(name))
    if name != "string" and not _is_number(name):
        raise not_allowed(where, "dtype", dtype, "'string', or a type of numbers, as 'float32' or 'int64'")
    return name


def __getattr__(name: str) -> Any:
    hint = f"; {FEATURE_COLUMNS[name]}" if name in FEATURE_COLUMNS else f"; {did_you_mean(name, __all__)}".rstrip(" ;")
    raise AttributeError(f"module 'hpc_train.feature_column' has no attribute {name!r}{hint}")
