"""Heads: what each task makes of a model's last tensor: its width, activation, loss, metrics and first bias.

The outputs are probabilities and numbers, and not logits; Keras's losses find the logits behind sigmoid and softmax in
the graph, so that nothing is lost to rounding.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from hpc_train.config.table_schema import TableSchema
from hpc_train.errors import UserError
from hpc_train.lazy import keras

THRESHOLDS = 1000
"""At which the areas under curves are added up; Keras's 200 are too few where one class is rare."""
TOP = 5
"""Of more classes, how often the right one is among so many of the most probable is a metric, too."""


@dataclass(frozen=True)
class Head(ABC):
    """What a task makes of the last tensor.

    `logits` makes one number an output, `outputs` of them what the model gives: float32 `[rows, units]` both, also in
    mixed precision. They can be added up before `outputs`, as a wide and a deep part are.
    """

    loss_weight: ClassVar[float] = 1.0
    """What the loss is multiplied by: `compile(loss_weights=…)`."""

    @property
    @abstractmethod
    def units(self) -> int:
        """Logits a row."""

    @property
    @abstractmethod
    def bias(self) -> tuple[float, ...]:
        """The logits with which a model that knows nothing of a row has the least loss, `[units]`."""

    @abstractmethod
    def outputs(self, logits: Any) -> Any:
        """The model's output, a tensor named for what it is."""

    @abstractmethod
    def loss(self) -> keras.losses.Loss:
        """Of the outputs, and of labels `[rows]`."""

    @abstractmethod
    def metrics(self) -> list[keras.metrics.Metric]:
        """New ones; their states can be added up over ranks."""

    def logits(self, hidden: Any, name: str = "logits", **options: Any) -> Any:
        """A dense layer on `hidden` `[rows, n]`, with `bias` at first; `options` are keras.layers.Dense's."""
        bias = keras.initializers.Constant(list(self.bias))
        return keras.layers.Dense(self.units, bias_initializer=bias, dtype="float32", name=name, **options)(hidden)


@dataclass(frozen=True)
class BinaryHead(Head):
    """Of two classes, label 0 or 1; the output `probability` `[rows, 1]` is that of 1.

    Attributes:
        counts: How many rows have 0 and 1; empty where that is not known.
    """

    counts: tuple[int, ...] = ()
    units: ClassVar[int] = 1

    @property
    def bias(self) -> tuple[float, ...]:
        return (_log(self.counts[1]) - _log(self.counts[0]),) if self.counts else (0.0,)

    def outputs(self, logits: Any) -> Any:
        return keras.layers.Activation("sigmoid", dtype="float32", name="probability")(logits)

    def loss(self) -> keras.losses.Loss:
        return keras.losses.BinaryCrossentropy()

    def metrics(self) -> list[keras.metrics.Metric]:
        return [
            keras.metrics.BinaryAccuracy("accuracy"),
            keras.metrics.AUC(THRESHOLDS, name="auc"),
            keras.metrics.AUC(THRESHOLDS, curve="PR", name="auc_precision_recall"),
            keras.metrics.Precision(name="precision"),
            keras.metrics.Recall(name="recall"),
            *_means(),
        ]


@dataclass(frozen=True)
class ClassesHead(Head):
    """Of several classes, label from 0 to `classes` - 1; the output `probabilities` is `[rows, classes]`.

    Attributes:
        counts: How many rows have each class; empty where that is not known.
    """

    classes: int
    counts: tuple[int, ...] = ()

    @property
    def units(self) -> int:
        return self.classes

    @property
    def bias(self) -> tuple[float, ...]:
        return tuple(_log(count) - _log(sum(self.counts)) for count in self.counts) or (0.0,) * self.classes

    def outputs(self, logits: Any) -> Any:
        return keras.layers.Activation("softmax", dtype="float32", name="probabilities")(logits)

    def loss(self) -> keras.losses.Loss:
        return keras.losses.SparseCategoricalCrossentropy()

    def metrics(self) -> list[keras.metrics.Metric]:
        found = [keras.metrics.SparseCategoricalAccuracy("accuracy")]
        if self.classes > TOP:
            found.append(keras.metrics.SparseTopKCategoricalAccuracy(TOP, f"top_{TOP}_accuracy"))
        return found


@dataclass(frozen=True)
class RegressionHead(Head):
    """Of a number; the output `prediction` `[rows, 1]` is in the label's unit.

    A logit is in standard deviations from the mean, and the loss, the mean squared error, is weighted by the label's
    variance, so that learning rates and penalties mean the same whatever the unit: a model that knows nothing has 1.

    Attributes:
        mean, std: Of the label.
    """

    mean: float = 0.0
    std: float = 1.0
    units: ClassVar[int] = 1
    bias: ClassVar[tuple[float, ...]] = (0.0,)

    @property
    def loss_weight(self) -> float:  # type: ignore[override]
        return 1 / self.std**2

    def outputs(self, logits: Any) -> Any:
        return keras.layers.Rescaling(self.std, self.mean, dtype="float32", name="prediction")(logits)

    def loss(self) -> keras.losses.Loss:
        return keras.losses.MeanSquaredError()

    def metrics(self) -> list[keras.metrics.Metric]:
        return [
            keras.metrics.RootMeanSquaredError("rmse"),
            keras.metrics.MeanAbsoluteError("mae"),
            _r2_score(self.mean),
            *_means(),
        ]


@dataclass(frozen=True)
class CountsHead(Head):
    """Of a whole number from 0 on; the output `prediction` `[rows, 1]` is the mean of a Poisson distribution.

    Attributes:
        mean: Of the label.
    """

    mean: float = 1.0
    units: ClassVar[int] = 1

    @property
    def bias(self) -> tuple[float, ...]:
        return (_log(self.mean),)

    def outputs(self, logits: Any) -> Any:
        return keras.layers.Activation("exponential", dtype="float32", name="prediction")(logits)

    def loss(self) -> keras.losses.Loss:
        return keras.losses.Poisson()

    def metrics(self) -> list[keras.metrics.Metric]:
        return [
            keras.metrics.MeanMetricWrapper(_poisson_deviance, name="poisson_deviance"),
            keras.metrics.MeanAbsoluteError("mae"),
            *_means(),
        ]


def head_of(schema: TableSchema) -> Head:
    """The head for the label of a schema, with a first bias by its statistics.

    Raises:
        UserError: The schema has no label.
    """
    if schema.label is None:
        raise UserError("the schema has no label to be learned; give a column role: label, and the schema its `task`")
    summary = schema.columns[schema.label].statistics
    if schema.classes:
        counts = summary.counts if summary is not None else ()
        return BinaryHead(counts) if schema.task == "binary" else ClassesHead(len(schema.classes), counts)
    mean, std = (summary.mean, summary.std) if summary is not None else (None, None)
    if schema.task == "counts":
        return CountsHead() if mean is None else CountsHead(mean)
    return RegressionHead(mean or 0.0, std or 1.0)


def _log(count: float) -> float:
    """Its logarithm; of half a row where there is none."""
    return math.log(max(count, 0.5))


def _means() -> Sequence[keras.metrics.Metric]:
    """Of labels and of predictions: where they differ, the model is not calibrated."""
    wrapper = keras.metrics.MeanMetricWrapper
    return wrapper(_label, name="label_mean"), wrapper(_prediction, name="prediction_mean")


def _label(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.reshape(y_true, keras.ops.shape(y_pred))


def _prediction(y_true: Any, y_pred: Any) -> Any:
    return y_pred


def _poisson_deviance(y_true: Any, y_pred: Any) -> Any:
    """2 (y log(y / p) - (y - p)), `[rows]` (McCullagh and Nelder, Generalized Linear Models, 1989, 2.3)."""
    ops = keras.ops
    y_true = ops.cast(_label(y_true, y_pred), y_pred.dtype)
    ratio = ops.maximum(y_true, keras.config.epsilon()) / ops.maximum(y_pred, keras.config.epsilon())
    return ops.squeeze(2 * (y_true * ops.log(ratio) - (y_true - y_pred)), -1)


def _r2_score(mean: float) -> keras.metrics.Metric:
    return _centred_r2_score()(mean)


@cache
def _centred_r2_score() -> type[Any]:
    """A class, made once Keras is imported."""

    class R2Score(keras.metrics.R2Score):  # type: ignore[misc]
        """Keras's, of numbers less a mean: else sums of squares in float32 lose all digits where the mean is large."""

        def __init__(self, mean: float) -> None:
            super().__init__(name="r2")
            self._mean = mean

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            y_true, y_pred = (keras.ops.cast(each, "float64") - self._mean for each in (y_true, y_pred))
            super().update_state(y_true, y_pred, sample_weight)

    return R2Score
