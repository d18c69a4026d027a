"""Metrics of canned estimators that Keras has not. All are means over rows, so that ranks add them up."""

from __future__ import annotations

from typing import Any

import keras

_registered = keras.saving.register_keras_serializable(package="hpc_train")


@_registered  # type: ignore[untyped-decorator]
def label(y_true: Any, y_pred: Any) -> Any:
    """The label itself."""
    return y_true


@_registered  # type: ignore[untyped-decorator]
def number(y_true: Any, y_pred: Any) -> Any:
    """The prediction, which is a number."""
    return y_pred


@_registered  # type: ignore[untyped-decorator]
def probability(y_true: Any, y_pred: Any) -> Any:
    """The probability of class 1, whose logit is predicted."""
    return keras.ops.sigmoid(y_pred)


@_registered  # type: ignore[untyped-decorator]
class AccuracyBaseline(keras.metrics.Mean):  # type: ignore[misc]
    """The accuracy of who always says the class that is more frequent, of labels 0 and 1."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Takes the labels of a batch."""
        super().update_state(y_true, sample_weight)

    def result(self) -> Any:
        """The mean of the labels, or one minus that."""
        mean = super().result()
        return keras.ops.maximum(mean, 1 - mean)
