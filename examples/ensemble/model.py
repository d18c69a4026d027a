"""A small convolutional network for 28 x 28 grey images, with a constant learning rate."""

import keras
from keras import layers


def build_model(params):
    """Images uint8 [B, 28, 28] to logits [B, 10]."""
    model = keras.Sequential(
        [
            keras.Input((28, 28), dtype="uint8", name="image"),
            layers.Rescaling(1 / 255),
            layers.Reshape((28, 28, 1)),
            layers.Conv2D(params["filters"], 3, use_bias=False),
            layers.MaxPooling2D(),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10, name="logits"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(params["learning_rate"]),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    return model
