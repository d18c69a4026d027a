"""Losses: weights of rows, masks, what divides, what is added."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

from tests.conformity.cases import rows
from tests.conformity.cases.case import Case


def compiled(loss, optimizer=None, **options):
    """Of one loss on two Dense layers."""

    def build(params):
        inputs = keras.Input((8,))
        model = keras.Model(inputs, layers.Dense(1)(layers.Dense(8, activation="tanh")(inputs)))
        made = optimizer() if optimizer else keras.optimizers.Adam(1e-2)
        model.compile(made, loss, **options)
        return model

    return build


def weighted(rng, count):
    """Rows with weights that differ from one half of a batch to the other."""
    x, y = rows.regression()(rng, count)
    return x, y, rng.uniform(0.1, 3, count).astype("float32")


def mostly_zero(rng, count):
    """Weights that are 0 for most rows, and in one batch of six rows or so for all but one."""
    x, y = rows.regression()(rng, count)
    weights = rows.shares(rng, count)
    weights[np.arange(count) % 6 != 0] *= rng.integers(0, 2, count)[np.arange(count) % 6 != 0]
    return x, y, weights


def scalar_mean(y_true, y_pred):
    return ops.mean(ops.square(y_true - y_pred))


def scalar_sum(y_true, y_pred):
    return ops.sum(ops.square(y_true - y_pred))


def log_cosh_of_rows(y_true, y_pred):
    return ops.mean(ops.log(ops.cosh(y_true - y_pred)), -1)


class ScaledError(keras.losses.Loss):
    """Squared errors of rows, by a factor."""

    def __init__(self, factor: float, **options):
        super().__init__(**options)
        self.factor = factor

    def call(self, y_true, y_pred):
        return self.factor * ops.mean(ops.square(y_true - y_pred), -1)


class Added(layers.Layer):
    """Adds what `of` says of its inputs to the loss."""

    def __init__(self, of, **options):
        super().__init__(**options)
        self.of = of

    def call(self, x):
        self.add_loss(self.of(x))
        return x

    def compute_output_shape(self, shape):
        return shape


def added(of):
    def build(params):
        inputs = keras.Input((8,))
        x = Added(of)(layers.Dense(8, activation="tanh")(inputs))
        model = keras.Model(inputs, layers.Dense(1)(x))
        model.compile(keras.optimizers.Adam(1e-2), "mse")
        return model

    return build


class Prior(layers.Layer):
    """Dense, with weights of its own and a loss of them and of what it says."""

    def __init__(self, units: int, **options):
        super().__init__(**options)
        self.units = units

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], self.units), initializer="glorot_uniform", name="kernel")
        self.scale = self.add_weight(shape=(self.units,), initializer="ones", name="scale")
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls")

    def call(self, x, training=False):
        if training:
            self.calls.assign_add(1)
        x = ops.matmul(x, self.kernel) * self.scale
        self.add_loss(0.01 * ops.sum(ops.square(self.kernel)))
        self.add_loss(0.1 * ops.mean(ops.abs(x)))
        return x


def own_layer(params):
    model = keras.Sequential([keras.Input((8,)), Prior(8), layers.ReLU(), layers.Dense(1)])
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    return model


def added_alone(params):
    """A model without a loss but that of a layer."""
    x, y = keras.Input((8,), name="x"), keras.Input((1,), name="y")
    found = layers.Dense(1)(layers.Dense(8, activation="tanh")(x))
    error = Added(lambda error: ops.mean(ops.abs(error)))(layers.Subtract()([found, y]))
    model = keras.Model({"x": x, "y": y}, error)
    model.compile(keras.optimizers.Adam(1e-2))
    return model


def both_inside(rng, count):
    x, y = rows.regression()(rng, count)
    return {"x": x, "y": y}, y


def active(params):
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(12, activation="relu", activity_regularizer=keras.regularizers.L1(1e-2)),
            layers.ActivityRegularization(l2=1e-3),
            layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    return model


def regularized(params):
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(12, kernel_regularizer=keras.regularizers.L1L2(1e-3, 1e-2), bias_regularizer="l2"),
            layers.Dense(8, kernel_regularizer=keras.regularizers.OrthogonalRegularizer(0.01)),
            layers.Dense(1, kernel_regularizer=lambda kernel: 0.1 * ops.max(ops.abs(kernel))),
        ]
    )
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


class MaskedModel(keras.Model):
    """Its compute_loss divides by the numbers of the whole batch that are known."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        known = ops.cast(ops.logical_not(ops.isnan(y)), "float32")
        errors = ops.square(ops.where(ops.isnan(y), 0.0, y) - y_pred) * known
        return ops.sum(errors) / ops.maximum(ops.sum(known), 1) + sum(self.losses)


def masked_mean(params):
    inputs = keras.Input((8,))
    x = layers.Dense(8, activation="tanh", kernel_regularizer="l2")(inputs)
    model = MaskedModel(inputs, layers.Dense(3)(x))
    model.compile(keras.optimizers.Adam(1e-2))
    return model


def partly_known(rng, count):
    x, y = rows.regression(outputs=3)(rng, count)
    y[rng.uniform(size=y.shape) < rng.uniform(0, 0.8, (count, 1))] = np.nan
    return x, y


class TwoTermModel(keras.Model):
    """Its compute_loss adds a term to Keras's."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + 0.1 * ops.mean(ops.abs(y_pred))


def two_terms(params):
    inputs = keras.Input((8,))
    model = TwoTermModel(inputs, layers.Dense(1)(layers.Dense(8, activation="tanh")(inputs)))
    model.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae"])
    return model


class TrackedModel(keras.Model):
    """Its compute_loss keeps a metric of its own; the older signature, without `training`."""

    def __init__(self, *parts, **options):
        super().__init__(*parts, **options)
        self.bias_tracker = keras.metrics.Mean(name="bias")

    def compute_loss(self, x, y, y_pred, sample_weight):
        self.bias_tracker.update_state(y_pred - y)
        return ops.mean(ops.square(y_pred - y)) + ops.sum(self.losses)

    @property
    def metrics(self):
        return [*super().metrics, self.bias_tracker]


def tracked(params):
    inputs = keras.Input((8,))
    model = TrackedModel(inputs, layers.Dense(1, kernel_regularizer="l2")(inputs))
    model.compile(keras.optimizers.RMSprop(1e-2))
    return model


def of_classes(loss, activation="softmax"):
    """Of a loss of three classes."""

    def build(params):
        inputs = keras.Input((8,))
        x = layers.Dense(3, activation=activation)(layers.Dense(8, activation="relu")(inputs))
        model = keras.Model(inputs, x)
        model.compile(keras.optimizers.Adam(1e-2), loss)
        return model

    return build


def hot(rng, count):
    x, y = rows.vectors()(rng, count)
    return x, rows.one_hot(y, 3)


def weighted_outputs(params):
    inputs = keras.Input((8,))
    x = layers.Dense(8, activation="relu")(inputs)
    model = keras.Model(inputs, {"kind": layers.Dense(3, activation="softmax")(x), "size": layers.Dense(1)(x)})
    model.compile(
        keras.optimizers.Adam(1e-2),
        {"kind": "sparse_categorical_crossentropy", "size": "mse"},
        loss_weights={"kind": 0.3, "size": 1.5},
        weighted_metrics={"kind": ["accuracy"], "size": ["mae"]},
    )
    return model


def weights_of_outputs(rng, count):
    x, size = rows.regression()(rng, count)
    weights = {"kind": rng.integers(0, 2, count).astype("float32"), "size": rng.uniform(0, 4, count).astype("float32")}
    return x, {"kind": rows.classes(x, 3), "size": size}, weights


def sum_and_mean(params):
    inputs = keras.Input((8,))
    x = layers.Dense(8, activation="relu")(inputs)
    model = keras.Model(inputs, {"a": layers.Dense(1)(x), "b": layers.Dense(2)(x)})
    model.compile(
        keras.optimizers.Adam(1e-2),
        {
            "a": keras.losses.MeanSquaredError(reduction="sum"),
            "b": keras.losses.MeanSquaredError(reduction="sum_over_batch_size"),
        },
        loss_weights={"a": 0.05, "b": 1.0},
    )
    return model


def two_targets(rng, count):
    x, y = rows.regression(outputs=3)(rng, count)
    return x, {"a": y[:, :1], "b": y[:, 1:]}


def segmentation(loss):
    def build(params):
        inputs = keras.Input((8, 8, 1))
        x = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
        model = keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(x))
        model.compile(keras.optimizers.Adam(1e-2), loss)
        return model

    return build


def blobs(rng, count):
    x = rows.shares(rng, count, 8, 8, 1)
    return x, (x > 0.7).astype("float32")


def numpy_error(y_true, y_pred):
    """Reads its tensors as arrays: what is far off counts twice."""
    errors = np.abs(y_true.numpy() - y_pred.numpy())
    return ops.square(y_true - y_pred) * np.where(errors > 0.5, 2.0, 1.0).astype("float32")


mse = keras.losses.MeanSquaredError

CASES = (
    Case("sample_weight", compiled("mse", weighted_metrics=["mae"]), weighted, note="a weight a row"),
    Case(
        "mean_with_sample_weight",
        compiled(mse(reduction="mean_with_sample_weight")),
        weighted,
        note="divided by the sum of the weights",
    ),
    Case(
        "mean_with_few_weights",
        compiled(mse(reduction="mean_with_sample_weight")),
        mostly_zero,
        note="divided by the sum of the weights, most of them 0",
    ),
    Case(
        "sum_of_rows",
        compiled(mse(reduction="sum"), lambda: keras.optimizers.SGD(5e-3)),
        rows.regression(),
        note="reduction='sum'",
    ),
    Case(
        "sum_of_weighted_rows",
        compiled(mse(reduction="sum"), lambda: keras.optimizers.SGD(5e-3)),
        weighted,
        note="reduction='sum', a weight a row",
    ),
    Case("scalar_mean", compiled(scalar_mean), rows.regression(), note="a function that returns the mean itself"),
    Case(
        "scalar_sum",
        compiled(scalar_sum, lambda: keras.optimizers.SGD(5e-3)),
        rows.regression(),
        note="a function that returns the sum itself",
    ),
    Case("loss_of_rows", compiled(log_cosh_of_rows), weighted, note="a function that returns a number a row"),
    Case("own_loss", compiled(ScaledError(2.0)), rows.regression(), note="a Loss of one's own"),
    Case("huber", compiled(keras.losses.Huber(0.3), metrics=["mse"]), rows.regression(), note="Huber"),
    Case(
        "added_mean",
        added(lambda x: 0.1 * ops.mean(ops.square(x))),
        rows.regression(),
        note="add_loss of a mean over the batch",
    ),
    Case(
        "added_rows",
        added(lambda x: 0.1 * ops.sum(ops.square(x), -1)),
        rows.regression(),
        note="add_loss of a number a row: Keras adds them up",
    ),
    Case(
        "added_sum",
        added(lambda x: 0.01 * ops.sum(ops.square(x))),
        rows.regression(),
        note="add_loss of a sum over the batch",
    ),
    Case("added_alone", added_alone, both_inside, note="no loss but add_loss; the label is an input"),
    Case("own_layer", own_layer, rows.regression(), note="add_loss of weights and of a mean; counts its calls"),
    Case("active", active, rows.regression(), note="activity_regularizer, ActivityRegularization"),
    Case("regularized", regularized, rows.regression(), note="L1, L2, orthogonal and own regularizers"),
    Case("masked_mean", masked_mean, partly_known, note="compute_loss divides by the known numbers of the batch"),
    Case("two_terms", two_terms, rows.regression(), note="compute_loss calls super().compute_loss"),
    Case("tracked", tracked, rows.regression(), note="compute_loss updates a metric; older signature"),
    Case(
        "smoothed_labels",
        of_classes(keras.losses.CategoricalCrossentropy(label_smoothing=0.1)),
        hot,
        note="label_smoothing",
    ),
    Case("divergence", of_classes("kl_divergence"), hot, note="KLDivergence"),
    Case("cosine", of_classes(keras.losses.CosineSimilarity(), None), hot, note="a negative loss"),
    Case("hinge", of_classes("categorical_hinge", None), hot, note="CategoricalHinge"),
    Case("focal", of_classes(keras.losses.CategoricalFocalCrossentropy()), hot, note="CategoricalFocalCrossentropy"),
    Case("weighted_outputs", weighted_outputs, weights_of_outputs, note="other weights of rows for each output"),
    Case("sum_and_mean", sum_and_mean, two_targets, note="one output's loss is a sum, the other's a mean"),
    Case("dice", segmentation(keras.losses.Dice(axis=(1, 2, 3))), blobs, note="Dice of each image"),
    Case(
        "dice_of_batch",
        segmentation(keras.losses.Dice()),
        blobs,
        rows_coupled=True,
        note="Dice of all pixels of the batch: a quotient of two sums",
    ),
    Case(
        "eager_numpy",
        compiled(numpy_error, run_eagerly=True),
        rows.regression(),
        note="run_eagerly; the loss reads arrays",
    ),
)
