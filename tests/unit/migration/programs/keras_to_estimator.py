"""A Keras model that became an estimator."""

import tensorflow as tf


def make_model(units=16, rate=0.01):
    """Compiled."""
    inputs = tf.keras.Input(shape=(4,), name="x")
    hidden = tf.keras.layers.Dense(units, activation="relu")(inputs)
    network = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))
    network.compile(optimizer=tf.keras.optimizers.SGD(rate), loss="mse", metrics=["mae"])
    return network


def input_fn():
    """A few rows."""
    return tf.data.Dataset.from_tensor_slices(({"x": [[0.0] * 4]}, [[1.0]])).repeat(100).batch(10)


keras_estimator = tf.keras.estimator.model_to_estimator(keras_model=make_model(), model_dir="/tmp/keras")
keras_estimator.train(input_fn=input_fn, steps=500)
print(keras_estimator.evaluate(input_fn, steps=10))
keras_estimator.export_saved_model("/tmp/export", lambda: None)
