"""Metrics of many kinds, on one small network each."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, metrics, ops

from tests.conformity.cases import rows
from tests.conformity.cases.case import Case


def measured(outputs: int, activation, loss: str, kinds, weighted=()):
    """Of functions that make metrics."""

    def build(params):
        inputs = keras.Input((8,))
        x = layers.Dense(8, activation="relu")(inputs)
        model = keras.Model(inputs, layers.Dense(outputs, activation=activation)(x))
        model.compile(
            keras.optimizers.Adam(1e-2),
            loss,
            metrics=[kind() for kind in kinds],
            weighted_metrics=[kind() for kind in weighted],
        )
        return model

    return build


class Total(metrics.Metric):
    """Adds up errors."""

    def __init__(self, name="total", **options):
        super().__init__(name=name, **options)
        self.sum = self.add_variable((), "zeros", name="sum")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.sum.assign_add(ops.sum(ops.abs(y_true - y_pred)))

    def result(self):
        return self.sum


class Largest(metrics.Metric):
    """The largest error."""

    def __init__(self, name="largest", **options):
        super().__init__(name=name, **options)
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(ops.maximum(self.value, ops.max(ops.abs(y_true - y_pred))))

    def result(self):
        return self.value


class Spread(metrics.Metric):
    """Standard deviation of errors, of three sums."""

    def __init__(self, name="spread", **options):
        super().__init__(name=name, **options)
        self.count = self.add_variable((), "zeros", dtype="int32", name="count")
        self.sums = self.add_variable((2,), "zeros", name="sums")

    def update_state(self, y_true, y_pred, sample_weight=None):
        errors = y_true - y_pred
        self.count.assign_add(ops.size(errors))
        self.sums.assign_add(ops.stack([ops.sum(errors), ops.sum(ops.square(errors))]))

    def result(self):
        count = ops.maximum(ops.cast(self.count, "float32"), 1)
        return ops.sqrt(ops.maximum(self.sums[1] / count - ops.square(self.sums[0] / count), 0))


class HuberedMean(metrics.MeanMetricWrapper):
    def __init__(self, name="hubered", **options):
        super().__init__(keras.losses.huber, name=name, **options)


def bias(y_true, y_pred):
    return ops.mean(y_pred - y_true, -1)


def hot(rng, count):
    x, y = rows.vectors()(rng, count)
    return x, rows.one_hot(y, 3)


def binary(rng, count):
    x = rows.numbers(rng, count, 8)
    return x, (x[:, :1] > 0).astype("int32")


def weighted_binary(rng, count):
    return *binary(rng, count), rng.uniform(0, 2, count).astype("float32")


class Watched(keras.Model):
    """Metrics as attributes, updated in call()."""

    def __init__(self):
        super().__init__()
        self.hidden, self.last = layers.Dense(8, activation="relu"), layers.Dense(1)
        self.active = metrics.Mean(name="active")

    def call(self, x):
        x = self.hidden(x)
        self.active.update_state(ops.cast(x > 0, "float32"))
        return self.last(x)


def watched(params):
    model = Watched()
    model.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae"])
    return model


def per_output(params):
    inputs = keras.Input((8,))
    x = layers.Dense(8, activation="relu")(inputs)
    outputs = {"kind": layers.Dense(3, activation="softmax")(x), "size": layers.Dense(1)(x)}
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.Adam(1e-2),
        {"kind": "sparse_categorical_crossentropy", "size": "mse"},
        metrics={
            "kind": [metrics.SparseCategoricalAccuracy(name="accuracy"), metrics.SparseCategoricalCrossentropy()],
            "size": [Largest(), metrics.R2Score(name="r2")],
        },
    )
    return model


def kinds_and_sizes(rng, count):
    x, size = rows.regression()(rng, count)
    return x, {"kind": rows.classes(x, 3), "size": np.abs(size)}


CASES = (
    Case(
        "binary_metrics",
        measured(
            1,
            "sigmoid",
            "binary_crossentropy",
            [
                lambda: "accuracy",
                lambda: metrics.AUC(name="auc"),
                lambda: metrics.AUC(curve="PR", num_thresholds=50, name="pr"),
                lambda: metrics.Precision(name="precision"),
                lambda: metrics.Recall(name="recall"),
                lambda: metrics.F1Score(threshold=0.5, average="micro", name="f1"),
                lambda: metrics.TruePositives(name="tp"),
                lambda: metrics.PrecisionAtRecall(0.5, name="p_at_r"),
            ],
        ),
        binary,
        note="AUC, F1Score, Precision, Recall, counts",
    ),
    Case(
        "weighted_metrics",
        measured(
            1,
            "sigmoid",
            "binary_crossentropy",
            [lambda: metrics.BinaryAccuracy(name="accuracy")],
            [
                lambda: metrics.BinaryAccuracy(name="weighted_accuracy"),
                lambda: metrics.AUC(name="auc"),
                lambda: metrics.BinaryIoU([0, 1], name="iou"),
                lambda: metrics.BinaryCrossentropy(name="entropy"),
            ],
        ),
        weighted_binary,
        note="some with weights of rows, some without",
    ),
    Case(
        "class_metrics",
        measured(
            3,
            "softmax",
            "categorical_crossentropy",
            [
                lambda: "accuracy",
                lambda: metrics.F1Score(average="macro", name="f1"),
                lambda: metrics.OneHotMeanIoU(3, name="iou"),
                lambda: metrics.TopKCategoricalAccuracy(2, name="top_2"),
                lambda: metrics.CosineSimilarity(name="cosine"),
                lambda: metrics.KLDivergence(name="divergence"),
            ],
        ),
        hot,
        note="F1Score(macro), OneHotMeanIoU, top 2",
    ),
    Case(
        "number_metrics",
        measured(
            1,
            None,
            "mse",
            [
                lambda: "mae",
                lambda: metrics.RootMeanSquaredError(name="rmse"),
                lambda: metrics.R2Score(name="r2"),
                lambda: metrics.LogCoshError(name="log_cosh"),
                lambda: metrics.PearsonCorrelation(axis=0, name="pearson"),
                lambda: bias,
            ],
        ),
        rows.regression(),
        note="RMSE, R2Score; PearsonCorrelation of the rows of a rank; a function",
    ),
    Case(
        "own_metrics_of_rows",
        measured(1, None, "mse", [Total, Largest, Spread, HuberedMean]),
        rows.regression(),
        note="one that adds up, one that is a maximum, one of three sums",
    ),
    Case("metrics_of_outputs", per_output, kinds_and_sizes, note="metrics of each output"),
    Case("metric_in_call", watched, rows.regression(), note="a metric of the model that call() updates"),
)
