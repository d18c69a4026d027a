"""What an asynchronous job cannot be, one after the other, through the API: UserError on all ranks, nothing written.

On three ranks. Argument: a folder for data and job-dirs.
"""

import os
import re
import sys
from pathlib import Path

import h5py
import keras
import numpy as np

import hpc_train as ht
from hpc_train.distributed.startup import join_world

folder = Path(sys.argv[1])
world = join_world("serialized")
assert world.size == 3


def model_of(optimizer, units=64, spectral=False):
    """`optimizer` makes one; units 0: a model of a single small variable. spectral: it assigns its kernel."""

    def build(params):
        layers = [keras.layers.Dense(units, name="wide"), keras.layers.Dense(4)] if units else []
        layers = [keras.layers.SpectralNormalization(layers[0]), *layers[1:]] if spectral else layers
        layers = layers or [keras.layers.Dense(1, use_bias=False)]
        model = keras.Sequential([keras.Input((8,)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True) if units else "mse"
        model.compile(optimizer(), loss)
        return model

    return build


def the_same():
    model = model_of(keras.optimizers.Adam)({})
    return lambda params: model


def the_same_optimizer():
    optimizer = keras.optimizers.Adam()
    return model_of(lambda: optimizer)


class WithoutConfig(keras.optimizers.SGD):
    """It cannot be made again from what get_config returns."""

    def __init__(self, steps, **more):
        super().__init__(**more)


def run(model=None, servers=1, job_dir="job", **config):
    given = ht.RunConfig(folder / job_dir, strategy="async", parameter_servers=servers, **config)
    return ht.train_and_evaluate(
        ht.Estimator(model or model_of(keras.optimizers.SGD), given),
        ht.TrainSpec(ht.HDF5Input(str(folder / "good.h5"), batch_size=8, features="x", label="y"), max_steps=2),
        ht.EvalSpec(ht.HDF5Input(str(folder / "good.h5"), features="x", label="y")),
    )


if world.is_chief:
    with h5py.File(folder / "good.h5", "w") as file:
        file["x"], file["y"] = np.zeros((64, 8), np.float32), np.zeros(64, np.int64)
world.broadcast(None)

optimizers = keras.optimizers
CASES = [
    (dict(servers=3), "run.parameter_servers: 3 ranks are 3 parameter servers and no worker; start at least 4 ranks"),
    (dict(servers=9), "3 ranks are .*9 parameter servers and no worker"),
    (dict(model=model_of(optimizers.Lamb), servers=2), "Lamb cannot be applied to a part of a variable .*wide/kernel"),
    (dict(model=model_of(optimizers.Adafactor), servers=2), "Adafactor cannot be applied .*set parameter_servers: 1"),
    (dict(model=model_of(lambda: WithoutConfig(3)), servers=2), "WithoutConfig cannot be tried out .*get_config"),
    (
        dict(model=model_of(lambda: optimizers.LossScaleOptimizer(optimizers.Adam()))),
        "cannot be used with LossScaleOptimizer .*mixed_bfloat16, or strategy: sync",
    ),
    (
        dict(model=model_of(lambda: optimizers.Adam(clipnorm=1.0)), servers=2, max_staleness=0),
        "run.max_staleness: 0 clips the mean .*set parameter_servers: 1, take clipvalue, or max_staleness: 1",
    ),
    (
        dict(model=model_of(lambda: optimizers.Adam(global_clipnorm=1.0)), servers=2, max_staleness=0),
        "run.max_staleness: 0 clips the mean",
    ),
    (
        dict(model=model_of(optimizers.SGD, spectral=True)),
        "assigns values to .*kernel when it is called.*strategy: sync",
    ),
    (dict(model=the_same()), "model_fn returned the same variables or optimizer twice"),
    (dict(model=the_same_optimizer()), "model_fn returned the same variables or optimizer twice"),
    (
        dict(model=model_of(optimizers.SGD, units=0), servers=2),
        "run.parameter_servers: the model's .* bytes of variables cannot be divided among 2 servers: .*; set fewer",
    ),
    (dict(model=model_of(optimizers.Lamb)), None),  # whole variables
    (dict(model=model_of(lambda: optimizers.Adam(clipnorm=1.0)), servers=2, job_dir="two"), None),
]

before = None
for arguments, said in CASES:
    if world.is_chief:
        before = sorted(os.listdir(folder))
    try:
        run(**arguments)
    except ht.UserError as error:
        assert said is not None and re.search(said, str(error)), (arguments, str(error))
        assert "\n" not in str(error)
        if world.is_chief:
            assert before == sorted(os.listdir(folder)), f"{arguments} left something behind"
    else:
        assert said is None, f"{arguments} was accepted"
print(f"rank {world.rank}: all {len(CASES)} cases are fine")
