"""Metrics of canned estimators that Keras has not, by tf.estimator's names. They are means, so ranks add them up."""

from __future__ import annotations

from typing import Any

import keras

_PACKAGE = "hpc_train"


@keras.saving.register_keras_serializable(package=_PACKAGE)
class LabelMean(keras.metrics.Mean):  # type: ignore[misc]
    """The mean of all labels."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Takes the labels of a batch."""
        super().update_state(y_true, sample_weight)


@keras.saving.register_keras_serializable(package=_PACKAGE)
class AccuracyBaseline(LabelMean):
    """The accuracy of who always says the class that is more frequent."""

    def result(self) -> Any:
        """The mean of the labels, 0 and 1, or one minus that."""
        mean = super().result()
        return keras.ops.maximum(mean, 1 - mean)


@keras.saving.register_keras_serializable(package=_PACKAGE)
class PredictionMean(keras.metrics.Mean):  # type: ignore[misc]
    """The mean of all predictions: of the logits, or of the probabilities where these are asked for."""

    def __init__(self, probabilities: bool = False, name: str = "prediction/mean", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.probabilities = probabilities

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Takes the logits of a batch."""
        super().update_state(keras.ops.sigmoid(y_pred) if self.probabilities else y_pred, sample_weight)

    def get_config(self) -> dict[str, Any]:
        """What it can be made from again."""
        return {"name": self.name, "dtype": self.dtype, "probabilities": self.probabilities}
