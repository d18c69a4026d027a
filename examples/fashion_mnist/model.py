"""A small convolutional network for 28 x 28 grey images."""

import keras
from keras import layers


def build_model(params):
    """Images uint8 [B, 28, 28] to logits [B, 10]."""
    model = keras.Sequential(
        [
            keras.Input((28, 28), dtype="uint8", name="image"),
            layers.Rescaling(1 / 255),
            layers.Reshape((28, 28, 1)),
            layers.Conv2D(24, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(48, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(params["dropout"]),
            layers.Dense(128, activation="relu"),
            layers.Dense(10, name="logits"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(
            keras.optimizers.schedules.CosineDecay(params["learning_rate"], params["decay_steps"])
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    return model
