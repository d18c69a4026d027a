"""A script with a model and an input function of its own, as a user writes one; the input ends unevenly.

The input takes whatever may wait for TensorFlow's threads: a generator, and Python that calls a tf.function.
"""

import sys

import keras
import numpy as np
import tensorflow as tf

import hpc_train as ht


def build_model(params):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(params["units"]), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    return model


@tf.function
def halved(x):
    return tf.where(x > 0, x, x) / 2


def in_python(x, y):
    out = tf.py_function(halved, [x], tf.float32)
    out.set_shape([None, 3])
    return out, y


def batches(context):
    """Rank r has 7 + r batches: training ends with the first rank that runs out."""
    count = 7 + context.input_pipeline_id
    x = np.random.default_rng(context.seed % 2**32).normal(size=(count * 4, 3)).astype(np.float32)
    row = tf.TensorSpec(3), tf.TensorSpec(1)
    rows = tf.data.Dataset.from_generator(lambda: zip(x, x.sum(1, keepdims=True), strict=True), output_signature=row)
    return rows.batch(4).map(in_python).prefetch(2)


metrics, exports = ht.train_and_evaluate(
    ht.Estimator(build_model, ht.RunConfig(sys.argv[1], save_checkpoints_steps=3, report=False), {"units": 5}),
    ht.TrainSpec(input_fn=batches, max_steps=1000),
    ht.EvalSpec(input_fn=batches, steps=None, throttle_secs=0, exporters=[ht.FinalExporter("final")]),
)
assert metrics["global_step"] == 7, metrics
assert len(exports) == 1
assert (exports[0] / "saved_model.pb").exists()
print(f"script done {sorted(metrics)}")
