"""The same small jobs by Horovod and by MPI itself, in the same two ranks: nothing may differ.

argv: a folder, and the carrier that is compared with Horovod: mpi, or mpi-gpu, with what stands in for a GPU.
"""

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import hpc_train as ht
from hpc_train.distributed.startup import join_world
from tests.gpu import stand_in_for_gpu
from tests.support import collect_log, records_of, variables

folder, other = Path(sys.argv[1]), sys.argv[2]
if other == "mpi-gpu":
    stand_in_for_gpu()
world = join_world()
lines, _ = collect_log()
WHERE = {"mpi": "", "mpi-gpu": ", in the memory of GPUs"}
SAID = f"gradients are averaged by MPI itself, without Horovod{WHERE[other]} (run.allreduce)"


def build_model(params):
    layers = [keras.layers.Dense(600, "relu"), keras.layers.BatchNormalization(), keras.layers.Dense(600)]
    model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dropout(0.3), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def rows(context):
    """Six batches, the second with a NaN on the last rank."""
    random = np.random.default_rng(context.input_pipeline_id)
    x = random.normal(size=(6, 4, 8)).astype(np.float32)
    if context.input_pipeline_id:
        x[1, 0, 0] = np.nan
    return tf.data.Dataset.from_tensor_slices((x, np.nan_to_num(x).sum(axis=2, keepdims=True)))


def run(name, carrier, **config):
    """The numbers that the job logs, and its variables, on the chief."""
    keras.utils.clear_session()
    place = folder / name / carrier
    chosen = ht.RunConfig(place, allreduce=carrier, tf_random_seed=1, report=False, on_nan="skip", **config)
    ht.train_and_evaluate(
        ht.Estimator(build_model, chosen), ht.TrainSpec(rows, max_steps=5), ht.EvalSpec(rows, steps=1)
    )
    assert sum(SAID in line for line in lines) == (carrier == other and world.is_chief), lines
    lines.clear()
    world.broadcast(None)  # the chief writes when the others have left
    losses = [record.get("loss") for record in records_of(place, "train")] if world.is_chief else []
    return losses, variables(place, 5) if world.is_chief else {}


cases = {
    "plain": {},
    "in_flight": {"steps_in_flight": 2},
    "bits": {"compression": "bf16"},
    "half": {"mixed_precision": "float16"},
    "pieces": {"accumulate_steps": 2, "save_summary_steps": 1},
}
for name in cases if other == "mpi" else ("plain", "half"):
    config = cases[name]
    (losses, plain), (theirs, others) = run(name, "horovod", **config), run(name, other, **config)
    assert losses == theirs, (name, losses, theirs)
    for key in plain:
        assert np.array_equal(plain[key], others[key]), (name, key)
    assert plain or not world.is_chief
world.wait_asleep()
print(f"rank {world.rank} is fine")
