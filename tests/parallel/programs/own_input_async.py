"""A script of a user's own with parameter servers; workers' inputs end unevenly. Argument: a folder for job-dirs."""

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import hpc_train as ht


def build_model(params):
    layers = [keras.layers.Dense(params["units"]), keras.layers.ActivityRegularization(params.get("activity", 0.0))]
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    return model


def batches(context):
    """The worker with part p of the data has 7 + 4 p batches."""
    assert context.num_input_pipelines in (1, 2), "workers; one alone evaluates"
    count = 7 + 4 * context.input_pipeline_id
    x = np.random.default_rng(context.seed % 2**32).normal(size=(count * 4, 3)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).batch(4)


def train(name, max_steps, params=None, **run):
    config = ht.RunConfig(Path(sys.argv[1]) / name, strategy="async", save_checkpoints_steps=3, report=False, **run)
    metrics, exports = ht.train_and_evaluate(
        ht.Estimator(build_model, config, {"units": 5, **(params or {})}),
        ht.TrainSpec(input_fn=batches, max_steps=max_steps),
        ht.EvalSpec(input_fn=batches, steps=None, throttle_secs=0, exporters=[ht.FinalExporter("final")]),
    )
    assert len(exports) == 1
    assert (exports[0] / "saved_model.pb").exists()
    assert np.isfinite(metrics["mae"])
    return metrics["global_step"]


found = [
    train("free", 1000),  # each worker reads its input to the end
    train("together", 1000, max_staleness=0),  # the first that runs out ends it
    train("terms", 1000, {"activity": 0.01}, max_staleness=0),  # workers exchange numbers before each gradient
    train("cut", 4),
    train("cut", 6),
]
assert found == [18, 7, 7, 4, 6], found
print("script done")
