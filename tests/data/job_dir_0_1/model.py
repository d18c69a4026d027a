import keras
from keras import layers


def build_model(params):
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(16, activation="tanh", kernel_regularizer=keras.regularizers.L2(1e-3)),
            layers.Dense(4),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(params.get("learning_rate", 0.01)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    return model
