"""Trains a perceptron of 20 million parameters with a whole optimizer and with a sharded one; run on ranks.

The first rank writes what it found, as JSON: seconds of each step by way, in turns of some steps there and back, the
peak of resident memory of the rank that had most, and bytes of each rank's optimizer.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from support.timing import there_and_back

from hpc_train.distributed.devices import set_up_tensorflow
from hpc_train.distributed.startup import join_world

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--ways", nargs="+", choices=["plain", "zero"], required=True)
parser.add_argument("--optimizer", default="Adam")
parser.add_argument("--carrier", choices=["horovod", "mpi"], required=True)
parser.add_argument("--width", type=int, default=2048)
parser.add_argument("--rows", type=int, default=64)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--passes", type=int, default=6)
parser.add_argument("--out", type=Path, required=True)
args = parser.parse_args()
world = join_world()
set_up_tensorflow(world)

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from hpc_train.distributed.allreduce import GradientAllreduce  # noqa: E402
from hpc_train.distributed.carrier import collectives_by  # noqa: E402
from hpc_train.distributed.mesh import Mesh  # noqa: E402
from hpc_train.engine.step_report import Flags  # noqa: E402
from hpc_train.engine.train_step import make_train_step  # noqa: E402
from hpc_train.model.own_steps import updates_of  # noqa: E402

allreduce = GradientAllreduce(collectives_by(args.carrier, world))
random = np.random.default_rng(world.rank)
batch = (
    tf.constant(random.normal(size=(args.rows, args.width // 4)).astype(np.float32)),
    tf.constant(random.integers(0, 1000, size=args.rows)),
)


def peak_bytes() -> int:
    """The most memory of this process that was resident at once."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def made(way: str) -> tuple[Callable[[], float], int, int]:
    """A step that returns its seconds, bytes of this rank's optimizer, and of the model's parameters."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(args.width, "relu") for _ in range(5)]
    model = keras.Sequential([keras.Input((args.width // 4,)), *layers, keras.layers.Dense(1000)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(getattr(keras.optimizers, args.optimizer)(1e-4), loss)
    updates = updates_of(model, None, "model", Mesh(world.size, 1, world.rank) if way == "zero" else None)
    step = make_train_step(model, allreduce, [], False, sharded=updates.pieces[0] if updates.pieces else None)

    def timed() -> float:
        begun = time.perf_counter()
        assert step(batch, Flags())().applied
        return time.perf_counter() - begun

    sizes = [sum(v.numpy().nbytes for v in own) for own in (model.optimizer.variables, model.trainable_variables)]
    return timed, *sizes


at_start = peak_bytes()
ways = {way: made(way) for way in args.ways}
secs: dict[str, list[float]] = {way: [] for way in ways}
for step, _, _ in ways.values():
    step()
gc.collect()
for way in there_and_back(list(ways), args.passes):
    secs[way] += [ways[way][0]() for _ in range(args.steps)]
told = world.gather(
    {
        "peak": peak_bytes(),
        "at_start": at_start,
        "optimizer": {way: size for way, (_, size, _) in ways.items()},
    }
)
if told is not None:
    parameters = next(iter(ways.values()))[2]
    args.out.write_text(json.dumps({"secs": secs, "ranks": told, "parameters": parameters}))
