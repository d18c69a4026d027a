"""Jobs whose model draws from TensorFlow's global generator, in one process: prints a line of JSON.

It has for each way of running the job what is in the last checkpoint: weights, and states of generators.
"""

import json
import sys
from pathlib import Path

import h5py
import keras
import tensorflow as tf

import hpc_train as ht
from tests.support import write_rows

FOLDER = Path(sys.argv[1])
if "deterministic" in sys.argv:
    tf.config.experimental.enable_op_determinism()


class Noise(keras.layers.Layer):
    def call(self, x):
        return x + tf.random.get_global_generator().normal(tf.shape(x))


def model(params):
    layers = [keras.Input((8,)), Noise(), keras.layers.Dense(4)]
    built = keras.Sequential(layers)
    built.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return built


def run(name, *stops, seed=1):
    for stop in stops:
        config = ht.RunConfig(FOLDER / name, save_checkpoints_steps=5, tf_random_seed=seed, report=False)
        data = ht.HDF5Input(str(FOLDER / "rows.h5"), batch_size=16, features="x", label="y")
        keras.utils.clear_session()
        ht.train_and_evaluate(ht.Estimator(model, config), ht.TrainSpec(data, max_steps=stop), ht.EvalSpec(data))
    with h5py.File(FOLDER / name / f"checkpoints/step-{stops[-1]:08d}/state.h5") as file:
        return {
            f"{group}/{name}": array[()].tolist() for group in ("model", "rng") for name, array in file[group].items()
        }


write_rows(FOLDER / "rows.h5", 96, seed=1)


once = run("once", 10)
found = {"once": once, "again": run("again", 10), "resumed": run("resumed", 5, 10), "other": run("other", 10, seed=2)}
if "deterministic" not in sys.argv:
    found["unseeded"] = run("unseeded", 5, seed=None)
print(json.dumps(found))
