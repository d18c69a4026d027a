"""Models of time series and sounds."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

from tests.conformity.cases import rows
from tests.conformity.cases.case import Case

STEPS = 12


def conv1d_series(params):
    inputs = keras.Input((STEPS, 2))
    x = layers.Conv1D(8, 3, padding="same", activation="relu")(inputs)
    x = layers.Conv1D(8, 3, padding="same", activation="relu")(x)
    x = layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(x))
    model.compile(
        keras.optimizers.Adam(1e-2),
        "sparse_categorical_crossentropy",
        metrics=["sparse_categorical_accuracy"],
    )
    return model


def labelled_series(rng, count):
    x, _ = rows.series(STEPS)(rng, count)
    return x, rows.classes(x, 3)


def recurrent(layer):
    """Of a function that makes a recurrent layer."""

    def build(params):
        inputs = keras.Input((STEPS, 2))
        model = keras.Model(inputs, layers.Dense(1)(layer()(inputs)))
        model.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae"])
        return model

    return build


class MinimalCell(layers.Layer):
    """A cell with one gate."""

    def __init__(self, units: int, **options):
        super().__init__(**options)
        self.units = self.state_size = self.output_size = units

    def build(self, shape):
        self.gate = self.add_weight(shape=(shape[-1], self.units), initializer="glorot_uniform", name="gate")
        self.kernel = self.add_weight(shape=(shape[-1], self.units), initializer="glorot_uniform", name="kernel")
        self.recurrent = self.add_weight(shape=(self.units,) * 2, initializer="orthogonal", name="recurrent")

    def call(self, x, states):
        kept = ops.sigmoid(ops.matmul(x, self.gate))
        state = kept * ops.matmul(states[0], self.recurrent) + (1 - kept) * ops.tanh(ops.matmul(x, self.kernel))
        return state, [state]


def stateful_lstm(params):
    count = params.get("rows", 12)
    inputs = keras.Input(batch_shape=(count, STEPS, 2))
    x = layers.LSTM(6, stateful=True)(inputs)
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    return model


def conv_lstm(params):
    inputs = keras.Input((3, 8, 8, 1))
    x = layers.ConvLSTM2D(4, 3, padding="same", return_sequences=True)(inputs)
    x = layers.Conv3D(1, (1, 3, 3), padding="same", activation="sigmoid")(x)
    model = keras.Model(inputs, x)
    model.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy")
    return model


def frames(rng, count):
    x = rows.shares(rng, count, 4, 8, 8, 1)
    return x[:, :-1], x[:, 1:]


LETTERS = 5


def speech_recognizer(params):
    inputs = keras.Input((STEPS, 4))
    x = layers.Conv1D(8, 3, padding="same", activation="relu")(inputs)
    x = layers.Bidirectional(layers.GRU(6, return_sequences=True))(x)
    model = keras.Model(inputs, layers.Dense(LETTERS + 1)(x))
    model.compile(keras.optimizers.Adam(1e-2), keras.losses.CTC())
    return model


def utterances(rng, count):
    """Sounds with up to four letters each, from 1 on; 0 is CTC's blank and pads."""
    return rows.numbers(rng, count, STEPS, 4), rows.padded(rng, count, 4, LETTERS + 1)


def dilated_cnn(params):
    inputs = keras.Input((STEPS, 2))
    x = layers.Conv1D(6, 1)(inputs)
    for rate in (1, 2, 4):
        gate = layers.Conv1D(6, 2, padding="causal", dilation_rate=rate, activation="sigmoid")(x)
        signal = layers.Conv1D(6, 2, padding="causal", dilation_rate=rate, activation="tanh")(x)
        x = layers.Add()([x, layers.Multiply()([gate, signal])])
    model = keras.Model(inputs, layers.Dense(2)(x))
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    return model


def next_points(rng, count):
    x, _ = rows.series(STEPS + 1)(rng, count)
    return x[:, :-1], x[:, 1:]


def attention_forecast(params):
    inputs = keras.Input((STEPS, 2))
    past = layers.GRU(6, return_sequences=True)(inputs)
    last = layers.Lambda(lambda x: x[:, -1:], output_shape=(1, 6))(past)
    x = layers.AdditiveAttention()([last, past])
    model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(x)))
    model.compile(keras.optimizers.Adam(1e-2), "huber")
    return model


def weighted_series(params):
    inputs = keras.Input((STEPS, 2))
    x = layers.GRU(6, return_sequences=True)(inputs)
    model = keras.Model(inputs, layers.Dense(2)(x))
    model.compile(keras.optimizers.Adam(1e-2), "mse", weighted_metrics=["mae"])
    return model


def weights_of_points(rng, count):
    x, y = next_points(rng, count)
    weights = rows.shares(rng, count, STEPS) * rng.integers(0, 2, (count, 1))  # no point of some rows counts
    return x, y, weights.astype("float32")


def anomaly_autoencoder(params):
    inputs = keras.Input((STEPS, 2))
    x = layers.Conv1D(8, 3, strides=2, padding="same", activation="relu")(inputs)
    x = layers.Conv1D(4, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Conv1DTranspose(8, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Conv1DTranspose(2, 3, strides=2, padding="same")(x)
    model = keras.Model(inputs, x)
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    return model


def themselves(rng, count):
    x, _ = rows.series(STEPS)(rng, count)
    return x, x


def sound_classifier(params):
    inputs = keras.Input((256,))
    x = layers.STFTSpectrogram(mode="magnitude", frame_length=64, frame_step=32, fft_length=64, trainable=False)(
        layers.Reshape((256, 1))(inputs)
    )
    x = layers.Conv1D(6, 2, activation="relu")(x)
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(layers.GlobalMaxPooling1D()(x)))
    model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy")
    return model


def sounds(rng, count):
    y = rng.integers(0, 3, count).astype("int32")
    waves = np.sin(np.arange(256) * (0.2 + 0.3 * y[:, None])) + 0.1 * rng.normal(size=(count, 256))
    return waves.astype("float32"), y


def traffic_graph(params):
    """Roads that are neighbours, then time."""
    near = np.eye(5, dtype="float32") + np.eye(5, k=1, dtype="float32") + np.eye(5, k=-1, dtype="float32")
    inputs = keras.Input((6, 5, 1))
    x = layers.Dense(4, activation="relu")(ops.einsum("nm,btmc->btnc", near / near.sum(1, keepdims=True), inputs))
    x = layers.Reshape((6, 20))(x)
    model = keras.Model(inputs, layers.Dense(5)(layers.LSTM(8)(x)))
    model.compile(keras.optimizers.RMSprop(1e-2), "mse", metrics=["mae"])
    return model


def traffic(rng, count):
    x = rows.numbers(rng, count, 6, 5, 1)
    return x, x.mean((1, 3)).astype("float32")


CASES = (
    Case("conv1d_series", conv1d_series, labelled_series, note="Conv1D"),
    Case("lstm", recurrent(lambda: layers.LSTM(6)), rows.series(STEPS), note="LSTM"),
    Case("gru", recurrent(lambda: layers.GRU(6)), rows.series(STEPS), note="GRU"),
    Case(
        "bidirectional",
        recurrent(lambda: layers.Bidirectional(layers.SimpleRNN(6), merge_mode="sum")),
        rows.series(STEPS),
        note="Bidirectional",
    ),
    Case("own_cell", recurrent(lambda: layers.RNN(MinimalCell(6))), rows.series(STEPS), note="a cell of one's own"),
    Case(
        "stacked_cells",
        recurrent(lambda: layers.RNN([layers.GRUCell(5), layers.LSTMCell(4)], unroll=True)),
        rows.series(STEPS),
        note="two cells, unrolled",
    ),
    Case(
        "stateful_lstm",
        stateful_lstm,
        rows.series(STEPS),
        exports=False,
        note="keeps its state from batch to batch; a fixed number of rows, of params",
    ),
    Case("conv_lstm", conv_lstm, frames, note="ConvLSTM2D, the next frame"),
    Case("speech_recognizer", speech_recognizer, utterances, note="CTC"),
    Case("dilated_cnn", dilated_cnn, next_points, note="causal, dilated, gated"),
    Case("attention_forecast", attention_forecast, rows.series(STEPS), note="AdditiveAttention, Lambda"),
    Case("weighted_series", weighted_series, weights_of_points, note="a weight a time step, some rows without any"),
    Case("anomaly_autoencoder", anomaly_autoencoder, themselves, note="Conv1DTranspose; x is y"),
    Case("sound_classifier", sound_classifier, sounds, note="STFTSpectrogram, whose weights are frozen"),
    Case("traffic_graph", traffic_graph, traffic, note="graph convolution, then LSTM"),
)
