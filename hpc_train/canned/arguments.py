"""What a canned estimator is asked for, checked once: frozen data of its towers and its task, and plain data. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from pathlib import Path
from typing import Any, Literal, get_args

from hpc_train.arguments import check_count, check_type, not_allowed, shown
from hpc_train.canned.columns import (
    BucketizedColumn,
    CategoricalColumn,
    Combiner,
    EmbeddingColumn,
    FeatureColumn,
    IndicatorColumn,
    NumericColumn,
    keys_of,
)
from hpc_train.canned.feature_column import check_combiner
from hpc_train.canned.keras_objects import serialized
from hpc_train.config.functions import name_of
from hpc_train.config.types import MOST_BUCKETS, MOST_UNITS
from hpc_train.errors import UserError

Reduction = Literal["sum_over_batch_size", "sum"]
Optimizer = Mapping[str, Any]
"""As Keras serialises it."""

OPTIMIZERS = ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD")
"""The names that tf.estimator knew."""
_CLASSES = {"Ftrl": "hpc_train>Ftrl", "RMSProp": "RMSprop"}
"""Classes of other names; a linear model that is warm-started needs an Ftrl that begins from its weights."""
LINEAR_RATE, DNN_RATE = 0.2, 0.05
"""Learning rates of optimizers that are given by name: of a LinearClassifier, a DNNClassifier, and their regressors."""
COMBINED_LINEAR_RATE, COMBINED_DNN_RATE = 0.005, 0.001
"""Those of a DNNLinearCombinedClassifier and its regressor; that of the linear part is 1 / sqrt(columns) at most."""


@dataclass(frozen=True)
class Wide:
    """The linear tower."""

    columns: tuple[FeatureColumn, ...]
    optimizer: Optimizer
    sparse_combiner: Combiner = "sum"


@dataclass(frozen=True)
class Deep:
    """The DNN tower.

    Attributes:
        activation_fn: The name of a Keras activation.
        dropout: The share of a hidden layer's numbers that is left out in training; None: no layer for that.
    """

    columns: tuple[FeatureColumn, ...]
    hidden_units: tuple[int, ...]
    optimizer: Optimizer
    activation_fn: str = "relu"
    dropout: float | None = None
    batch_norm: bool = False


@dataclass(frozen=True)
class Task:
    """What is predicted.

    Attributes:
        n_classes: 0 for regression.
        label_dimension: Numbers that a regression predicts for a row.
        label_vocabulary: The classes as texts, in their order, where labels are texts.
        weight_column: The numbers by which rows count; None: all count alike.
    """

    n_classes: int = 0
    label_dimension: int = 1
    label_vocabulary: tuple[str, ...] | None = None
    weight_column: NumericColumn | None = None
    loss_reduction: Reduction = "sum_over_batch_size"


@dataclass(frozen=True)
class Canned:
    """A canned estimator: one tower at least, and what is predicted.

    Attributes:
        name: Of its class.
    """

    name: str
    task: Task
    wide: Wide | None = None
    deep: Deep | None = None

    @property
    def columns(self) -> tuple[FeatureColumn, ...]:
        """Those of both towers."""
        return (self.wide.columns if self.wide else ()) + (self.deep.columns if self.deep else ())

    @property
    def keys(self) -> list[str]:
        """The features that predictions are made of, each once."""
        return list(dict.fromkeys(key for column in self.columns for key in keys_of(column)))


def limited_rate(rate: float, columns: int) -> float:
    """The learning rate of a linear model of so many columns: less of many."""
    return min(rate, 1 / math.sqrt(columns))


def linear_columns(where: str, argument: str, given: Any) -> tuple[FeatureColumn, ...]:
    """Columns of a linear model.

    Raises:
        UserError: They are none, or an embedding, or one comes twice.
    """
    columns = _columns(where, argument, given)
    for column in columns:
        if isinstance(column, EmbeddingColumn):
            inner = column.categorical_column.name
            raise UserError(
                f"{where}: {argument}: {column.name!r} is an embedding_column, which a linear model has none of; give "
                f"the categorical column {inner!r} itself, whose values get a weight each"
            )
    return columns


def dnn_columns(where: str, argument: str, given: Any) -> tuple[FeatureColumn, ...]:
    """Columns of a DNN.

    Raises:
        UserError: They are none, or categorical, or one comes twice.
    """
    columns = _columns(where, argument, given)
    for column in columns:
        if isinstance(column, CategoricalColumn) and not isinstance(column, BucketizedColumn):
            raise UserError(
                f"{where}: {argument}: {column.name!r} is categorical, and a DNN takes numbers; give it as an "
                "ht.feature_column.indicator_column, or as an embedding_column where it has many values"
            )
    return columns


def _columns(where: str, argument: str, given: Any) -> tuple[FeatureColumn, ...]:
    allowed = "a list of feature columns, as [ht.feature_column.numeric_column('age')]"
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise not_allowed(where, argument, given, allowed)
    columns = tuple(given)
    if not columns:
        raise not_allowed(where, argument, given, allowed)
    kinds = NumericColumn | CategoricalColumn | IndicatorColumn | EmbeddingColumn
    names: set[str] = set()
    for column in columns:
        if not isinstance(column, kinds):
            raise not_allowed(where, argument, column, allowed)
        if column.name in names:
            raise UserError(f"{where}: {argument}: there are two columns called {column.name!r}; leave one out")
        names.add(column.name)
    return tuple(sorted(columns, key=lambda column: column.name))


def hidden_units(where: str, argument: str, given: Any) -> tuple[int, ...]:
    """UserError where it is no list of sizes of hidden layers."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence) or not given:
        raise not_allowed(where, argument, given, "a list of the sizes of the hidden layers, as [64, 32]")
    for count in given:
        check_count(where, argument, count, 1, MOST_UNITS)
    return tuple(given)


def optimizer(where: str, argument: str, given: Any, rate: float) -> Optimizer:
    """An optimizer as plain data.

    Args:
        given: One of Keras, a function that makes one, or one of `OPTIMIZERS`, which gets the learning `rate`.

    Raises:
        UserError: It is none.
    """
    names = ", ".join(OPTIMIZERS)
    allowed = f"{names}, an optimizer of Keras, or a function without arguments that makes one"
    if isinstance(given, str):
        if given not in OPTIMIZERS:
            raise not_allowed(where, argument, given, allowed)
        return {"class_name": _CLASSES.get(given, given), "config": {"learning_rate": rate}}
    if type(given).__name__ == "LinearSDCA":
        raise UserError(f"{where}: {argument}: LinearSDCA is not among Keras's optimizers; leave it out, for Ftrl")
    if callable(given) and not isinstance(given, type):
        try:
            given = given()
        except TypeError:
            raise not_allowed(where, argument, given, allowed) from None
    if isinstance(given, type) or given is None:
        raise not_allowed(where, argument, given, allowed)
    made = serialized(where, argument, given, "optimizers")
    if made["class_name"] == "LossScaleOptimizer" or made["config"].get("loss_scale_factor") is not None:
        raise UserError(
            f"{where}: {argument}: losses are scaled by RunConfig's mixed_precision; give the optimizer alone"
        )
    return made


def activation(where: str, argument: str, given: Any) -> str:
    """The name of a Keras activation: a text, or what Keras's or TensorFlow's function is called."""
    if isinstance(given, str):
        name = given
    else:
        module = str(getattr(given, "__module__", ""))
        name = str(getattr(given, "__name__", "")) if module.startswith(("keras.", "tensorflow.")) else ""
    if not name.isidentifier():
        allowed = "the name of a Keras activation, as 'relu', or the function of keras.activations or tf.nn itself"
        raise not_allowed(where, argument, given, allowed)
    return name


def dropout(where: str, argument: str, given: Any) -> float | None:
    """A share below 1; None: none."""
    if given is None:
        return None
    check_type(where, argument, given, Real, "a number from 0 to below 1, or None")
    if not 0 <= given < 1:
        raise not_allowed(where, argument, given, "a number from 0 to below 1, or None")
    return float(given)


def flag(where: str, argument: str, given: Any) -> bool:
    """True or False."""
    check_type(where, argument, given, bool, "True or False")
    return bool(given)


def combiner(where: str, argument: str, given: Any) -> Combiner:
    """How the weights of several values a row are combined."""
    check_combiner(where, argument, given)
    found: Combiner = given
    return found


def classification(where: str, n_classes: Any, label_vocabulary: Any, weight_column: Any, loss_reduction: Any) -> Task:
    """The task of a classifier, checked."""
    check_count(where, "n_classes", n_classes, 2, MOST_BUCKETS)
    vocabulary = None
    if label_vocabulary is not None:
        allowed = f"a list of {n_classes:,} texts, each once: the classes in their order; None for labels from 0 on"
        if isinstance(label_vocabulary, str | bytes) or not isinstance(label_vocabulary, Sequence):
            raise not_allowed(where, "label_vocabulary", label_vocabulary, allowed)
        are_texts = all(isinstance(text, str) for text in label_vocabulary)
        if not are_texts or len(label_vocabulary) != n_classes or len(set(label_vocabulary)) != n_classes:
            raise not_allowed(where, "label_vocabulary", label_vocabulary, allowed)
        vocabulary = tuple(label_vocabulary)
    return Task(n_classes, 1, vocabulary, _weights(where, weight_column), _reduction(where, loss_reduction))


def regression(where: str, label_dimension: Any, weight_column: Any, loss_reduction: Any) -> Task:
    """The task of a regressor, checked."""
    check_count(where, "label_dimension", label_dimension, 1, MOST_UNITS)
    return Task(0, label_dimension, None, _weights(where, weight_column), _reduction(where, loss_reduction))


def _weights(where: str, given: Any) -> NumericColumn | None:
    if given is None or (isinstance(given, NumericColumn) and given.width == 1):
        return given
    if not isinstance(given, str) or not given:
        raise not_allowed(where, "weight_column", given, "the name of a feature, a numeric_column of it, or None")
    return NumericColumn(given)


def _reduction(where: str, given: Any) -> Reduction:
    name = given.lower() if isinstance(given, str) else given
    if name not in ("sum_over_batch_size", "sum"):
        raise not_allowed(where, "loss_reduction", given, "'sum_over_batch_size' or 'sum'")
    found: Reduction = "sum" if name == "sum" else "sum_over_batch_size"
    return found


@dataclass(frozen=True)
class UserFunction:
    """A function of the user among plain data; as text what another process imports it by."""

    function: Callable[..., Any]

    def __str__(self) -> str:
        return name_of(self.function)


_KINDS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in (*get_args(FeatureColumn), Canned, Deep, Task, Wide)}
_KIND = "kind"


def as_plain(value: Any) -> Any:
    """Frozen data as what JSON has, functions of the user as UserFunction."""
    if type(value).__name__ in _KINDS:
        given = {item.name: as_plain(getattr(value, item.name)) for item in fields(value)}
        return {_KIND: type(value).__name__, **given}
    if callable(value):
        return UserFunction(value)
    return [as_plain(item) for item in value] if isinstance(value, tuple) else value


def from_plain(value: Any) -> Any:
    """What `as_plain` has described.

    Raises:
        UserError: It is none of that, or names a function that cannot be imported.
    """
    if isinstance(value, list | tuple):
        return tuple(map(from_plain, value))
    if not isinstance(value, Mapping) or _KIND not in value:
        return value
    given = {name: from_plain(item) for name, item in value.items() if name != _KIND}
    if (function := given.get("normalizer_fn")) is not None:
        given["normalizer_fn"] = function.function if isinstance(function, UserFunction) else _imported(function)
    try:
        return _KINDS[value[_KIND]](**given)
    except (KeyError, TypeError):
        raise UserError(
            f"params: {shown(dict(value))} is nothing that ht.DNNClassifier and its like write; make the estimator by "
            "its class"
        ) from None


def _imported(name: object) -> Callable[..., Any]:
    """The function of this name."""
    from hpc_train.model.job_model import load_function
    from hpc_train.model.program_job import refuse_unreachable

    refuse_unreachable(str(name), "normalizer_fn")
    place = str(name).rpartition(":")[0]
    return load_function(str(name), Path(place).parent if place.endswith(".py") else Path.cwd())
