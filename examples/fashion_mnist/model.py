"""A small convolutional network for 28 x 28 grey images."""

import keras
from keras import layers


def convolution(filters):
    """Convolution, pooling and batch normalisation."""
    return [
        layers.Conv2D(filters, 3, use_bias=False),
        layers.MaxPooling2D(),
        layers.BatchNormalization(momentum=0.9),
        layers.ReLU(),
    ]


def build_model(params):
    """Images uint8 [B, 28, 28] to logits [B, 10]."""
    model = keras.Sequential(
        [
            keras.Input((28, 28), dtype="uint8", name="image"),
            layers.Rescaling(1 / 255),
            layers.Reshape((28, 28, 1)),
            *convolution(24),
            *convolution(48),
            layers.Flatten(),
            layers.Dropout(params["dropout"]),
            layers.Dense(128, activation="relu"),
            layers.Dropout(params["dropout"]),
            layers.Dense(10, name="logits"),
        ]
    )
    schedule = keras.optimizers.schedules.CosineDecay(params["learning_rate"], params["decay_steps"])
    model.compile(
        optimizer=keras.optimizers.Adam(schedule),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    return model
