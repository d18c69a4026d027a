"""The head of a canned estimator: what its logits mean. Labels, loss, metrics and predictions, by Estimator's names."""

from __future__ import annotations

import math
from typing import Any, Protocol

import keras
import tensorflow as tf

from hpc_train.canned.arguments import Task
from hpc_train.canned.metrics import AccuracyBaseline, label, number, probability
from hpc_train.errors import UserError


class Head(Protocol):
    """What a task makes of logits.

    Attributes:
        units: Logits a row.
        classes: Into which labels are divided, as their numbers; None: labels are other numbers.
    """

    units: int
    classes: int | None

    def labels(self, given: Any) -> Any:
        """Labels as loss and metrics take them."""
        ...

    def known(self, given: Any) -> Any | None:
        """1 for each label `[B]` that can be learnt from, NaN for others, float32; None where all can."""
        ...

    def loss(self) -> Any:
        """Of logits."""
        ...

    def metrics(self) -> list[Any]:
        """Of logits, made anew."""
        ...

    def predictions(self, logits: Any) -> dict[str, Any]:
        """By Estimator's names, `[B, ...]` each."""
        ...


def head_of(task: Task) -> Head:
    """The head for a task."""
    if not task.n_classes:
        return RegressionHead(task)
    return BinaryHead(task) if task.n_classes == 2 else MultiClassHead(task)


class _ClassHead:
    """What heads of classes have in common."""

    def __init__(self, task: Task) -> None:
        self._task, self.classes = task, None if task.label_vocabulary else task.n_classes
        self.units = 1 if task.n_classes == 2 else task.n_classes
        self._lookup = None
        if task.label_vocabulary:
            self._lookup = keras.layers.StringLookup(vocabulary=list(task.label_vocabulary), mask_token=None)

    def numbers(self, given: Any) -> Any:
        """Labels as numbers of classes, int64 `[B]`.

        A text that is not in the vocabulary becomes 0; `known` says which are.

        Raises:
            UserError: They are texts without a vocabulary, or numbers with one.
        """
        given = tf.convert_to_tensor(given)
        if (given.dtype == tf.string) != (self._lookup is not None):
            if self._lookup is None:
                raise UserError("labels are texts; give the estimator label_vocabulary, the classes in their order")
            raise UserError(
                f"labels are {given.dtype.name}, but label_vocabulary is for labels that are texts; leave it out, and "
                f"write labels from 0 to {self._task.n_classes - 1}"
            )
        given = tf.reshape(given, [-1])
        if self._lookup is None:
            return tf.cast(given, tf.int64)
        with tf.device("CPU"):
            return tf.maximum(tf.cast(self._lookup(given), tf.int64) - 1, 0)

    def known(self, given: Any) -> Any | None:
        """1 for each label that is in the vocabulary, float32 `[B]`, and NaN for others; None without a vocabulary."""
        if self._lookup is None:
            return None
        with tf.device("CPU"):
            found = self._lookup(tf.reshape(given, [-1]))
        return tf.where(found > 0, 1.0, math.nan)

    def named(self, numbers: Any) -> Any:
        """Numbers of classes as texts: the vocabulary's, or their digits."""
        if self._task.label_vocabulary is None:
            return tf.as_string(numbers)
        return tf.gather(tf.constant(self._task.label_vocabulary), numbers)


class BinaryHead(_ClassHead):
    """Two classes: one logit, that of class 1."""

    def labels(self, given: Any) -> Any:
        """0 and 1, float32 `[B, 1]`."""
        return tf.cast(self.numbers(given), tf.float32)[:, tf.newaxis]

    def loss(self) -> Any:
        """Binary cross-entropy."""
        return keras.losses.BinaryCrossentropy(from_logits=True, reduction=self._task.loss_reduction)

    def metrics(self) -> list[Any]:
        """Estimator's; a class is predicted where its probability is more than one half, so its logit above 0."""
        made = keras.metrics
        return [
            made.MeanMetricWrapper(made.binary_accuracy, name="accuracy", threshold=0.0),
            AccuracyBaseline(name="accuracy_baseline"),
            made.AUC(name="auc", from_logits=True),
            made.AUC(name="auc_precision_recall", curve="PR", from_logits=True),
            made.BinaryCrossentropy(name="average_loss", from_logits=True),
            made.MeanMetricWrapper(label, name="label/mean"),
            made.Precision(name="precision", thresholds=0.0),
            made.MeanMetricWrapper(probability, name="prediction/mean"),
            made.Recall(name="recall", thresholds=0.0),
        ]

    def predictions(self, logits: Any) -> dict[str, Any]:
        """logits, logistic `[B, 1]`, probabilities `[B, 2]`, class_ids, classes `[B, 1]`."""
        both = tf.concat([tf.zeros_like(logits), logits], axis=-1)
        numbers = tf.argmax(both, axis=-1)[:, tf.newaxis]
        return {
            "logits": logits,
            "logistic": tf.sigmoid(logits),
            "probabilities": tf.nn.softmax(both),
            "class_ids": numbers,
            "classes": self.named(numbers),
        }


class MultiClassHead(_ClassHead):
    """Three classes or more: a logit each."""

    def labels(self, given: Any) -> Any:
        """Numbers of classes, int64 `[B]`."""
        return self.numbers(given)

    def loss(self) -> Any:
        """Cross-entropy."""
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=self._task.loss_reduction)

    def metrics(self) -> list[Any]:
        """Estimator's."""
        made = keras.metrics
        return [
            made.SparseCategoricalAccuracy(name="accuracy"),
            made.SparseCategoricalCrossentropy(name="average_loss", from_logits=True),
        ]

    def predictions(self, logits: Any) -> dict[str, Any]:
        """logits, probabilities `[B, n_classes]`, class_ids, classes `[B, 1]`."""
        numbers = tf.argmax(logits, axis=-1)[:, tf.newaxis]
        return {
            "logits": logits,
            "probabilities": tf.nn.softmax(logits),
            "class_ids": numbers,
            "classes": self.named(numbers),
        }


class RegressionHead:
    """Numbers, which the logits are."""

    def __init__(self, task: Task) -> None:
        self._task, self.units = task, task.label_dimension
        self.classes: int | None = None

    def labels(self, given: Any) -> Any:
        """float32 `[B, label_dimension]`.

        Raises:
            UserError: They are of another shape, or texts.
        """
        given = tf.convert_to_tensor(given)
        if given.dtype == tf.string:
            raise UserError("labels are texts, and this is a regression; take the classifier, or labels of numbers")
        if (given.shape.rank or 1) > 2 or given.shape[1:].num_elements() != self.units:
            raise UserError(
                f"a row of labels has the shape {given.shape[1:].as_list()}, and label_dimension is {self.units}; make "
                "them the same"
            )
        return tf.reshape(tf.cast(given, tf.float32), [-1, self.units])

    def known(self, given: Any) -> None:
        """All labels can be learnt from."""

    def loss(self) -> Any:
        """The mean of squared differences, or the sum of all."""
        return keras.losses.MeanSquaredError(reduction=self._task.loss_reduction)

    def metrics(self) -> list[Any]:
        """Estimator's."""
        made = keras.metrics
        return [
            made.MeanSquaredError(name="average_loss"),
            made.MeanMetricWrapper(label, name="label/mean"),
            made.MeanMetricWrapper(number, name="prediction/mean"),
        ]

    def predictions(self, logits: Any) -> dict[str, Any]:
        """predictions, float32 `[B, label_dimension]`."""
        return {"predictions": logits}
