"""Layers: how they are put together, frozen, normalized and constrained, and in what precision they compute."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers, ops

from tests.conformity.cases import rows
from tests.conformity.cases.case import Case


def sequence(*parts, optimizer=None, shape=(8,)):
    """Of functions that each make a layer."""

    def build(params):
        model = keras.Sequential([keras.Input(shape), *(part() for part in parts)])
        model.compile(
            optimizer() if optimizer else keras.optimizers.Adam(1e-2),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        return model

    return build


def dense(units, *arguments, **options):
    return lambda: layers.Dense(units, *arguments, **options)


def frozen(params):
    inputs = keras.Input((8,))
    x = layers.Dense(12, activation="relu", trainable=False)(inputs)
    x = layers.Dense(8, activation="relu")(x)
    last = layers.Dense(3)
    model = keras.Model(inputs, last(x))
    last.bias.trainable = False
    model.compile(
        keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    return model


def low_rank(params):
    """A Dense and an Embedding that learn through LoRA alone."""
    inputs = keras.Input((6,), dtype="int32")
    embedding, hidden = layers.Embedding(10, 6), layers.Dense(8, activation="relu")
    x = layers.Flatten()(embedding(inputs))
    model = keras.Model(inputs, layers.Dense(2)(hidden(x)))
    embedding.enable_lora(2)
    hidden.enable_lora(2)
    model.compile(
        keras.optimizers.Adam(2e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    return model


def shared(params):
    first, second = keras.Input((4,), name="first"), keras.Input((4,), name="second")
    tower = layers.Dense(6, activation="tanh")
    x = layers.Concatenate()([tower(first), tower(tower(second)[:, :4])])
    model = keras.Model([first, second], layers.Dense(1)(x))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def pairs(rng, count):
    x = {"first": rows.numbers(rng, count, 4), "second": rows.numbers(rng, count, 4)}
    return x, (x["first"] * x["second"]).sum(1, keepdims=True)


class Perceptron(keras.Model):
    """Layers made in __init__, built by the first batch."""

    def __init__(self, units: int, labels: int):
        super().__init__()
        self.hidden = [layers.Dense(units, activation="relu") for _ in range(2)]
        self.last = layers.Dense(labels)

    def call(self, x, training=False):
        for layer in self.hidden:
            x = layer(x)
        return self.last(x)


def subclassed(params):
    model = Perceptron(8, 3)
    model.compile(
        keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    return model


def unbuilt(params):
    """A Sequential that learns from its first batch how wide its input is."""
    model = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(3)])
    model.compile("rmsprop", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def nested(params):
    inner = keras.Sequential([keras.Input((8,)), layers.Dense(6, activation="relu")], name="inner")
    inputs = keras.Input((8,))
    middle = keras.Model(inputs, layers.Add()([inner(inputs), layers.Dense(6)(inputs)]), name="middle")
    outer = keras.Input((8,))
    model = keras.Model(outer, layers.Dense(3)(layers.Concatenate()([middle(outer), inner(outer)])))
    model.compile(
        keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    return model


def named_outputs(params):
    inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((4,), name="b")}
    x = layers.Dense(8, activation="relu")(layers.Concatenate()(list(inputs.values())))
    model = keras.Model(inputs, {"sum": layers.Dense(1, name="sum")(x), "sign": layers.Dense(2, name="sign")(x)})
    model.compile(
        keras.optimizers.Adam(1e-2),
        {"sum": "mae", "sign": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
        metrics={"sign": "accuracy"},
    )
    return model


def sums_and_signs(rng, count):
    x = {"a": rows.numbers(rng, count, 4), "b": rows.numbers(rng, count, 4)}
    total = (x["a"] + x["b"]).sum(1)
    return x, {"sum": total[:, None], "sign": (total > 0).astype("uint8")}


def batch_normalized(synchronized: bool):
    return sequence(
        dense(12),
        lambda: layers.BatchNormalization(synchronized=synchronized, momentum=0.9),
        lambda: layers.ReLU(),
        dense(3),
    )


def masked_batch_normalization(params):
    """Mean and variance of the steps that are no padding, over all rows."""
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(12, 6, mask_zero=True)(inputs)
    x = layers.BatchNormalization(synchronized=True)(x)
    x = layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, layers.Dense(2, activation="softmax")(x))
    model.compile(keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy")
    return model


class RunningMean(layers.Layer):
    """Subtracts a moving mean of what it saw."""

    def build(self, shape):
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="mean")

    def call(self, x, training=False):
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, 0))
        return x - self.mean


class StepCounter(layers.Layer):
    """Learns less and less: divides by how often it was called in training."""

    def build(self, shape):
        self.count = self.add_weight(shape=(), initializer="ones", trainable=False, name="count")

    def call(self, x, training=False):
        if training:
            self.count.assign_add(1.0)
        return x / ops.sqrt(self.count)


def in_precision(policy, optimizer, labels="float32"):
    """All layers of one policy; the loss in `labels`."""

    def build(params):
        inputs = keras.Input((8,), dtype=labels)
        x = layers.Dense(16, activation="relu", dtype=policy)(inputs)
        x = layers.LayerNormalization(dtype=policy)(x)
        outputs = layers.Dense(1, dtype=policy)(x)
        model = keras.Model(inputs, outputs)
        model.compile(optimizer(), keras.losses.MeanSquaredError(dtype=labels))
        return model

    return build


def mixed_policy(params):
    """Keras's global policy while the layers are made; softmax in float32."""
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        inputs = keras.Input((12, 12, 1))
        x = layers.Conv2D(6, 3, activation="relu")(inputs)
        x = layers.Dense(3)(layers.Flatten()(x))
        model = keras.Model(inputs, layers.Activation("softmax", dtype="float32")(x))
    finally:
        keras.mixed_precision.set_global_policy(before)
    model.compile(keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def doubles(rng, count):
    x, y = rows.regression()(rng, count)
    return x.astype("float64"), y.astype("float64")


def constrained(params):
    inputs = keras.Input((8,))
    x = layers.Dense(12, activation="relu", kernel_constraint=keras.constraints.MaxNorm(0.5, axis=0))(inputs)
    x = layers.Dense(8, kernel_constraint=keras.constraints.UnitNorm(), bias_constraint=keras.constraints.NonNeg())(x)
    model = keras.Model(inputs, layers.Dense(1, kernel_constraint=keras.constraints.MinMaxNorm(0.2, 0.6))(x))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


class StraightThrough(layers.Layer):
    """Weights rounded to 1/8 where they are used; gradients pass the rounding."""

    def __init__(self, units: int, **options):
        super().__init__(**options)
        self.units = units

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], self.units), initializer="glorot_uniform", name="kernel")

    def call(self, x):
        kernel = ops.convert_to_tensor(self.kernel)
        return ops.matmul(x, kernel + ops.stop_gradient(ops.round(kernel * 8) / 8 - kernel))


@tf.custom_gradient
def reversed_gradient(x):
    return x, lambda gradient: -0.5 * gradient


class ReversedGradient(layers.Layer):
    """What follows learns against what comes before."""

    def call(self, x):
        return reversed_gradient(x)


class TensorFlowLayer(layers.Layer):
    """Of TensorFlow's operations, with variables of TensorFlow's that Keras takes over as weights."""

    def build(self, shape):
        self.table = self.add_weight(shape=(4, shape[-1]), initializer="glorot_uniform", name="table")

    def call(self, x):
        rows_of_table = tf.gather(self.table, tf.argmax(x[:, :4], axis=1))
        return tf.nn.relu(x * rows_of_table)


def flags(params):
    inputs = keras.Input((6,), dtype="bool")
    x = layers.Lambda(lambda x: ops.cast(x, "float32"), output_shape=(6,))(inputs)
    model = keras.Model(inputs, layers.Dense(1, use_bias=False)(layers.Dense(6, use_bias=False, activation="tanh")(x)))
    model.compile(keras.optimizers.SGD(0.1), keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def set_flags(rng, count):
    x = rng.integers(0, 2, (count, 6)).astype(bool)
    return x, (x[:, :1] ^ x[:, 1:2])


def scalar_features(params):
    """Inputs without a dimension beyond rows."""
    inputs = {"a": keras.Input((), name="a"), "b": keras.Input((), dtype="int32", name="b")}
    x = ops.stack([inputs["a"], ops.cast(inputs["b"], "float32")], -1)
    model = keras.Model(inputs, layers.Dense(1)(layers.Dense(6, activation="tanh")(x)))
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    return model


def scalars(rng, count):
    x = {"a": rows.numbers(rng, count), "b": rng.integers(-2, 3, count).astype("int32")}
    return x, (x["a"] * x["b"]).astype("float32")


class Gate(layers.Layer):
    """A single number that is learned, and a weight no loss depends on."""

    def build(self, shape):
        self.share = self.add_weight(shape=(), initializer="zeros", name="share")
        self.unused = self.add_weight(shape=(2,), initializer="ones", name="unused")

    def call(self, x):
        return x * ops.sigmoid(self.share)


CASES = (
    Case("frozen", frozen, rows.vectors(), note="a frozen layer, and a frozen bias of another"),
    Case("low_rank", low_rank, rows.sentences(6, 10), note="enable_lora of Dense and of Embedding"),
    Case("shared", shared, pairs, note="one layer called three times"),
    Case("subclassed", subclassed, rows.vectors(), note="a Model class, built by its first batch"),
    Case("unbuilt", unbuilt, rows.vectors(), note="a Sequential without an Input"),
    Case("nested", nested, rows.vectors(), note="models in models, one of them twice"),
    Case("named_outputs", named_outputs, sums_and_signs, note="dict in, dict out, uint8 labels"),
    Case(
        "group_normalized",
        sequence(dense(12), lambda: layers.GroupNormalization(3), lambda: layers.ReLU(), dense(3)),
        rows.vectors(),
        note="GroupNormalization",
    ),
    Case(
        "layer_normalized",
        sequence(dense(12), lambda: layers.LayerNormalization(), lambda: layers.ELU(), dense(3)),
        rows.vectors(),
        note="LayerNormalization",
    ),
    Case(
        "unit_normalized",
        sequence(dense(12, "relu"), lambda: layers.UnitNormalization(), dense(3)),
        rows.vectors(),
        note="UnitNormalization",
    ),
    Case(
        "spectral_normalized",
        sequence(lambda: layers.SpectralNormalization(layers.Dense(12, "relu")), dense(3)),
        rows.vectors(),
        note="SpectralNormalization, which assigns its kernel in call()",
    ),
    Case(
        "batch_normalized",
        batch_normalized(False),
        rows.vectors(),
        rows_coupled=True,
        note="BatchNormalization, of a rank's rows",
    ),
    Case(
        "batch_normalized_together",
        batch_normalized(True),
        rows.vectors(),
        asynchronous=False,
        note="BatchNormalization(synchronized=True)",
    ),
    Case(
        "batch_normalized_masked",
        masked_batch_normalization,
        rows.sentences(6, 12),
        asynchronous=False,
        note="BatchNormalization(synchronized=True) of what is no padding",
    ),
    Case(
        "running_mean",
        sequence(lambda: RunningMean(), dense(3)),
        rows.vectors(),
        rows_coupled=True,
        note="an own moving mean, of a rank's rows, which outputs depend on",
    ),
    Case(
        "step_counter",
        sequence(dense(8, "relu"), lambda: StepCounter(), dense(3)),
        rows.vectors(),
        note="counts its calls in training",
    ),
    Case(
        "dropout",
        sequence(dense(16, "relu"), lambda: layers.Dropout(0.3), dense(3)),
        rows.vectors(),
        random=True,
        note="Dropout",
    ),
    Case(
        "gaussian_noise",
        sequence(lambda: layers.GaussianNoise(0.1), dense(16, "relu"), lambda: layers.AlphaDropout(0.1), dense(3)),
        rows.vectors(),
        random=True,
        note="GaussianNoise, AlphaDropout",
    ),
    Case(
        "no_dropout",
        sequence(dense(16, "relu"), lambda: layers.Dropout(0.0), dense(3)),
        rows.vectors(),
        note="Dropout that drops nothing",
    ),
    Case("mixed_bfloat16", mixed_policy, rows.images(), note="the global policy mixed_bfloat16"),
    Case(
        "mixed_float16",
        in_precision("mixed_float16", lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-2), 256)),
        rows.regression(),
        note="mixed_float16 with LossScaleOptimizer, whose scale does not overflow",
    ),
    Case(
        "bfloat16",
        in_precision("bfloat16", lambda: keras.optimizers.SGD(0.1)),
        rows.regression(),
        note="weights in bfloat16",
    ),
    Case(
        "float64",
        in_precision("float64", lambda: keras.optimizers.Adam(1e-2), "float64"),
        doubles,
        note="features, labels, weights and loss in float64",
    ),
    Case("constrained", constrained, rows.regression(), note="MaxNorm, UnitNorm, NonNeg, MinMaxNorm"),
    Case(
        "rounded_weights",
        sequence(lambda: StraightThrough(12), lambda: layers.ReLU(), lambda: StraightThrough(3)),
        rows.vectors(),
        note="trained for 4-bit weights",
    ),
    Case(
        "custom_gradient",
        sequence(dense(12, "relu"), lambda: ReversedGradient(), dense(3)),
        rows.vectors(),
        note="tf.custom_gradient",
    ),
    Case(
        "tensorflow_layer",
        sequence(lambda: TensorFlowLayer(), dense(3)),
        rows.vectors(),
        note="tf.gather of a weight: a gradient of rows of it",
    ),
    Case("flags", flags, set_flags, note="bool features and labels, no bias"),
    Case("scalar_features", scalar_features, scalars, note="features that are one number a row"),
    Case(
        "unused_weight",
        sequence(dense(8, "relu"), lambda: Gate(), dense(3)),
        rows.vectors(),
        note="a scalar weight; a weight without a gradient",
    ),
    Case(
        "parametric_relu",
        sequence(
            lambda: layers.Dense(8), lambda: layers.PReLU(), dense(8, "swish"), lambda: layers.LeakyReLU(), dense(3)
        ),
        rows.vectors(),
        note="activations with and without weights",
    ),
    Case(
        "maxout",
        sequence(dense(12), lambda: layers.Reshape((4, 3)), lambda: layers.Lambda(lambda x: ops.max(x, -1)), dense(3)),
        rows.vectors(),
        note="Lambda",
    ),
)
