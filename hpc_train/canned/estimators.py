"""tf.estimator's canned estimators, by their names and arguments (TensorFlow 2.15): linear models, DNNs, and both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from hpc_train.arguments import check_type, checked_arguments, is_path, not_allowed
from hpc_train.canned import arguments
from hpc_train.canned.arguments import (
    COMBINED_LINEAR_RATE,
    LINEAR_RATE,
    Canned,
    Deep,
    Task,
    Wide,
    as_plain,
    limited_rate,
)
from hpc_train.canned.columns import Combiner
from hpc_train.canned.model_fn import canned_model
from hpc_train.config.estimator import Estimator
from hpc_train.config.estimator_arguments import CANNED
from hpc_train.config.run_config import RunConfig
from hpc_train.config.warm_start import WarmStartSettings
from hpc_train.errors import UserError

Columns = Sequence[Any]
"""Of ht.feature_column."""
WarmStart = str | Path | WarmStartSettings | None


class _CannedEstimator(Estimator):
    """An Estimator whose model is described by its params."""

    retired: ClassVar[Mapping[str, str]] = CANNED

    def __init__(self, canned: Canned, model_dir: Any, config: RunConfig | None, warm_start_from: WarmStart) -> None:
        params = as_plain(canned)
        super().__init__(canned_model, _config(canned.name, model_dir, config), params, warm_start_from)


@checked_arguments
class LinearClassifier(_CannedEstimator):
    """A linear model of classes: a weight for each number and each value of the columns, and a bias.

    Args:
        feature_columns: Numeric, bucketized, categorical and indicator columns of `ht.feature_column`.
        model_dir: The job-dir; None: that of `config`.
        n_classes: 2: one logit, sigmoid. More: a logit each, softmax.
        weight_column: A feature by which rows count in loss and metrics, or its numeric_column.
        label_vocabulary: The classes as texts, in their order, where labels are texts; else labels are whole numbers
            from 0 to `n_classes` - 1.
        optimizer: "Ftrl", "Adagrad", "Adam", "RMSProp" or "SGD", with a learning rate of 0.2; an optimizer of Keras;
            or a function that makes one. None: Ftrl with the rate min(0.2, 1 / sqrt(number of columns)).
        config: Where and how to run. None: a RunConfig with its defaults.
        warm_start_from: As in ht.Estimator. Of a checkpoint of a LinearClassifier of tf.estimator all variables are
            taken, by their names.
        loss_reduction: "sum_over_batch_size" or "sum".
        sparse_combiner: What is made of the weights of several values a row: "sum", "mean" or "sqrtn".

    Raises:
        UserError: An argument is not allowed.
    """

    def __init__(
        self,
        feature_columns: Columns,
        model_dir: str | Path | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        warm_start_from: WarmStart = None,
        loss_reduction: str = "sum_over_batch_size",
        sparse_combiner: Combiner = "sum",
    ) -> None:
        name = "LinearClassifier"
        task = arguments.classification(name, n_classes, label_vocabulary, weight_column, loss_reduction)
        wide = _linear(name, feature_columns, optimizer, sparse_combiner)
        super().__init__(Canned(name, task, wide), model_dir, config, warm_start_from)


@checked_arguments
class LinearRegressor(_CannedEstimator):
    """A linear model of numbers, with the mean of squared differences as its loss.

    Args:
        label_dimension: Numbers a row that are predicted.
        Otherwise as LinearClassifier's.

    Raises:
        UserError: An argument is not allowed.
    """

    def __init__(
        self,
        feature_columns: Columns,
        model_dir: str | Path | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        warm_start_from: WarmStart = None,
        loss_reduction: str = "sum_over_batch_size",
        sparse_combiner: Combiner = "sum",
    ) -> None:
        name = "LinearRegressor"
        task = arguments.regression(name, label_dimension, weight_column, loss_reduction)
        wide = _linear(name, feature_columns, optimizer, sparse_combiner)
        super().__init__(Canned(name, task, wide), model_dir, config, warm_start_from)


@checked_arguments
class DNNClassifier(_CannedEstimator):
    """A deep neural network of classes: hidden layers, each with its activation, dropout and batch normalisation.

    Args:
        hidden_units: The sizes of the hidden layers, from the input on.
        feature_columns: Numeric, bucketized, indicator and embedding columns of `ht.feature_column`.
        optimizer: "Adagrad", "Adam", "Ftrl", "RMSProp" or "SGD", with a learning rate of 0.05; an optimizer of Keras;
            or a function that makes one.
        activation_fn: The name of a Keras activation, or the function of keras.activations or tf.nn.
        dropout: The share of each hidden layer's numbers that is left out in training.
        batch_norm: Whether batch normalisation comes after each hidden layer.
        Otherwise as LinearClassifier's.

    Raises:
        UserError: An argument is not allowed.
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Columns,
        model_dir: str | Path | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Adagrad",
        activation_fn: str | Callable[..., Any] = "relu",
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStart = None,
        loss_reduction: str = "sum_over_batch_size",
        batch_norm: bool = False,
    ) -> None:
        name = "DNNClassifier"
        task = arguments.classification(name, n_classes, label_vocabulary, weight_column, loss_reduction)
        deep = _dnn(name, feature_columns, hidden_units, optimizer, activation_fn, dropout, batch_norm)
        super().__init__(Canned(name, task, None, deep), model_dir, config, warm_start_from)


@checked_arguments
class DNNRegressor(_CannedEstimator):
    """A deep neural network of numbers, with the mean of squared differences as its loss.

    Args:
        label_dimension: Numbers a row that are predicted.
        Otherwise as DNNClassifier's.

    Raises:
        UserError: An argument is not allowed.
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Columns,
        model_dir: str | Path | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Adagrad",
        activation_fn: str | Callable[..., Any] = "relu",
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStart = None,
        loss_reduction: str = "sum_over_batch_size",
        batch_norm: bool = False,
    ) -> None:
        name = "DNNRegressor"
        task = arguments.regression(name, label_dimension, weight_column, loss_reduction)
        deep = _dnn(name, feature_columns, hidden_units, optimizer, activation_fn, dropout, batch_norm)
        super().__init__(Canned(name, task, None, deep), model_dir, config, warm_start_from)


@checked_arguments
class DNNLinearCombinedClassifier(_CannedEstimator):
    """A wide and deep model of classes: the logits of a linear model and of a DNN, added up, each with its optimizer.

    Cheng et al., "Wide & Deep Learning for Recommender Systems", arXiv:1606.07792.

    Args:
        linear_feature_columns: Those of the linear model; None: there is none.
        linear_optimizer: As LinearClassifier's; the learning rate of one that is given by name is
            min(0.005, 1 / sqrt(number of linear columns)).
        dnn_feature_columns: Those of the DNN; None: there is none.
        dnn_optimizer: As DNNClassifier's; the learning rate of one that is given by name is 0.001.
        dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm: Of the DNN, as in DNNClassifier.
        linear_sparse_combiner: As LinearClassifier's `sparse_combiner`.
        Otherwise as LinearClassifier's.

    Raises:
        UserError: An argument is not allowed.
    """

    def __init__(
        self,
        model_dir: str | Path | None = None,
        linear_feature_columns: Columns | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Columns | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: str | Callable[..., Any] = "relu",
        dnn_dropout: float | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStart = None,
        loss_reduction: str = "sum_over_batch_size",
        batch_norm: bool = False,
        linear_sparse_combiner: Combiner = "sum",
    ) -> None:
        name = "DNNLinearCombinedClassifier"
        task = arguments.classification(name, n_classes, label_vocabulary, weight_column, loss_reduction)
        wide = _wide(name, linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        options = dnn_optimizer, dnn_activation_fn, dnn_dropout, batch_norm
        deep = _deep(name, dnn_feature_columns, dnn_hidden_units, *options)
        super().__init__(_combined(name, task, wide, deep), model_dir, config, warm_start_from)


@checked_arguments
class DNNLinearCombinedRegressor(_CannedEstimator):
    """A wide and deep model of numbers, with the mean of squared differences as its loss.

    Args:
        label_dimension: Numbers a row that are predicted.
        Otherwise as DNNLinearCombinedClassifier's.

    Raises:
        UserError: An argument is not allowed.
    """

    def __init__(
        self,
        model_dir: str | Path | None = None,
        linear_feature_columns: Columns | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Columns | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: str | Callable[..., Any] = "relu",
        dnn_dropout: float | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        config: RunConfig | None = None,
        warm_start_from: WarmStart = None,
        loss_reduction: str = "sum_over_batch_size",
        batch_norm: bool = False,
        linear_sparse_combiner: Combiner = "sum",
    ) -> None:
        name = "DNNLinearCombinedRegressor"
        task = arguments.regression(name, label_dimension, weight_column, loss_reduction)
        wide = _wide(name, linear_feature_columns, linear_optimizer, linear_sparse_combiner)
        options = dnn_optimizer, dnn_activation_fn, dnn_dropout, batch_norm
        deep = _deep(name, dnn_feature_columns, dnn_hidden_units, *options)
        super().__init__(_combined(name, task, wide, deep), model_dir, config, warm_start_from)


def _linear(where: str, columns: Any, optimizer: Any, combiner: Any) -> Wide:
    """The whole of a linear model."""
    found = arguments.linear_columns(where, "feature_columns", columns)
    rate = LINEAR_RATE if optimizer is not None else limited_rate(LINEAR_RATE, len(found))
    made = arguments.optimizer(where, "optimizer", "Ftrl" if optimizer is None else optimizer, rate)
    return Wide(found, made, arguments.combiner(where, "sparse_combiner", combiner))


def _wide(where: str, columns: Any, optimizer: Any, combiner: Any) -> Wide | None:
    """The linear part of a combined model."""
    found = () if columns is None else arguments.linear_columns(where, "linear_feature_columns", columns)
    rate = limited_rate(COMBINED_LINEAR_RATE, len(found) or 1)
    made = arguments.optimizer(where, "linear_optimizer", optimizer, rate)
    combined = arguments.combiner(where, "linear_sparse_combiner", combiner)
    return Wide(found, made, combined) if found else None


def _dnn(
    where: str, columns: Any, hidden_units: Any, optimizer: Any, activation_fn: Any, dropout: Any, batch_norm: Any
) -> Deep:
    """The whole of a DNN."""
    return Deep(
        arguments.dnn_columns(where, "feature_columns", columns),
        arguments.hidden_units(where, "hidden_units", hidden_units),
        arguments.optimizer(where, "optimizer", optimizer, arguments.DNN_RATE),
        arguments.activation(where, "activation_fn", activation_fn),
        arguments.dropout(where, "dropout", dropout),
        arguments.flag(where, "batch_norm", batch_norm),
    )


def _deep(
    where: str, columns: Any, hidden_units: Any, optimizer: Any, activation_fn: Any, dropout: Any, batch_norm: Any
) -> Deep | None:
    """The DNN of a combined model."""
    made = arguments.optimizer(where, "dnn_optimizer", optimizer, arguments.COMBINED_DNN_RATE)
    activation = arguments.activation(where, "dnn_activation_fn", activation_fn)
    share = arguments.dropout(where, "dnn_dropout", dropout)
    normed = arguments.flag(where, "batch_norm", batch_norm)
    if columns is None:
        if hidden_units is not None:
            raise UserError(f"{where}: dnn_hidden_units: without dnn_feature_columns there is no DNN; give them, too")
        return None
    found = arguments.dnn_columns(where, "dnn_feature_columns", columns)
    units = arguments.hidden_units(where, "dnn_hidden_units", hidden_units)
    return Deep(found, units, made, activation, share, normed)


def _combined(where: str, task: Task, wide: Wide | None, deep: Deep | None) -> Canned:
    if wide is None and deep is None:
        raise UserError(f"{where}: linear_feature_columns: give them, or dnn_feature_columns, or both")
    return Canned(where, task, wide, deep)


def _config(where: str, model_dir: Any, config: Any) -> RunConfig:
    """The RunConfig with the job-dir."""
    given: RunConfig = RunConfig() if config is None else config
    check_type(where, "config", given, RunConfig, "an ht.RunConfig, as in ht.RunConfig('runs/mine')")
    if model_dir is None:
        return given
    if not is_path(model_dir):
        raise not_allowed(where, "model_dir", model_dir, "the path of a folder, or None")
    if given.model_dir is not None and Path(model_dir) != Path(given.model_dir):
        raise UserError(f"{where}: model_dir: config has another, {given.model_dir}; give one of them alone")
    return replace(given, model_dir=Path(model_dir))
