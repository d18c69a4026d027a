"""Checks compression, loss scale, pieces and clipping in the training step; run on any number of ranks.

argv: the folder with `alone.npz`, what one process made of all ranks' rows (`alone` as second argument: makes it).
"""

import sys
from pathlib import Path

import numpy as np

from hpc_train.distributed.devices import set_up_tensorflow
from hpc_train.distributed.startup import join_world
from hpc_train.distributed.world import World

folder, alone = Path(sys.argv[1]), len(sys.argv) > 2
world = World.alone() if alone else join_world()
set_up_tensorflow(world)

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from hpc_train.distributed.allreduce import GradientAllreduce  # noqa: E402
from hpc_train.distributed.horovod import collectives_of  # noqa: E402
from hpc_train.engine.step_report import Flags  # noqa: E402
from hpc_train.engine.train_step import make_train_step  # noqa: E402

ROWS, STEPS = 24, 5
random = np.random.default_rng(0)
X = random.normal(size=(STEPS, ROWS, 8)).astype(np.float32)


def rows_of(step: int, spoilt: bool = False) -> tuple[tf.Tensor, tf.Tensor]:
    """This rank's rows of a step; spoilt: the last row of all makes gradients overflow in float16, not the loss."""
    x, y = X[step], X[step, :, :3].copy()
    if spoilt:
        y[-1] = 4000.0
    part = slice(world.rank * ROWS // world.size, (world.rank + 1) * ROWS // world.size)
    return tf.constant(x[part]), tf.constant(y[part])


def train(allreduce, optimizer, pieces=1, policy="float32", spoilt=(), batch_norm=False):
    """Variables, loss scales after each step, the steps' reports."""
    keras.utils.set_random_seed(1)
    hidden = [keras.layers.BatchNormalization(dtype=policy)] if batch_norm else []
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(13, "tanh", dtype=policy), *hidden, keras.layers.Dense(3, dtype=policy)]
    )
    model.compile(optimizer, "mse", auto_scale_loss=False)
    model.optimizer.build(model.trainable_variables)
    step = make_train_step(model, allreduce, model.non_trainable_variables, False, accumulate_steps=pieces)
    scales, reports = [], []
    for number in range(STEPS):
        reports.append(step(rows_of(number, number in spoilt), Flags(finish=number == 2 and world.rank == 0))())
        scales.append(float(getattr(model.optimizer, "dynamic_scale", 0)))
    values = [v.numpy() for v in [*model.variables, *model.optimizer.variables]]
    assert [report.raised.finish for report in reports] == [False, False, True, False, False]
    assert all(report.applied for report in reports)
    return values, scales, reports


def same_on_all_ranks(values):
    return len({tuple(told) for told in world.all_gather([v.tobytes().hex() for v in values])}) == 1


def scaled():
    return keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.05), initial_scale=2.0**10, dynamic_growth_steps=2
    )


def clipped():
    return keras.optimizers.SGD(0.5, momentum=0.9, global_clipnorm=0.05)


collectives = collectives_of(world)
sync = GradientAllreduce(collectives)
half = {"policy": "mixed_float16", "spoilt": (1,)}
if alone:
    plain, _, _ = train(sync, clipped())
    low, scales, _ = train(sync, scaled(), **half)
    assert scales == [1024, 512, 512, 1024, 1024], scales
    np.savez(folder / "alone.npz", scales=scales, **{f"plain{i}": v for i, v in enumerate(plain)})
    np.savez(folder / "half.npz", **{f"half{i}": v for i, v in enumerate(low)})
    sys.exit()

with np.load(folder / "alone.npz") as file:
    scales_alone, plain = file["scales"].tolist(), [file[f"plain{i}"] for i in range(len(file.files) - 1)]
with np.load(folder / "half.npz") as file:
    low = [file[f"half{i}"] for i in range(len(file.files))]

exact_loss, two = 0.0, world.size == 2  # on more ranks, what takes long is left out
# Clipping by the norm of the average, and pieces, give what one process makes of all rows.
for pieces in (1, 3) if two else (1,):
    values, _, reports = train(sync, clipped(), pieces)
    assert same_on_all_ranks(values)
    for ours, theirs in zip(values, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6)
    assert all(0 < report.communication_secs < 60 and 0 < report.apply_secs < 60 for report in reports)
    assert len({report.loss for report in reports}) == STEPS
    exact_loss = exact_loss if pieces > 1 else reports[0].loss
exact_batch_norm = train(sync, keras.optimizers.SGD(0.0), batch_norm=True)[0] if two else []

for kind, most in (("fp16", 1e-3), ("bf16", 1e-2)):
    compressed = GradientAllreduce(collectives, kind)
    values, _, reports = train(compressed, clipped())
    assert reports[0].loss == exact_loss, "the loss is never compressed"
    assert same_on_all_ranks(values)
    off = max(float(np.abs(ours - theirs).max()) for ours, theirs in zip(values, plain, strict=True))
    assert 0 < off < most, off
    if two:
        batch_norm = train(compressed, keras.optimizers.SGD(0.0), batch_norm=True)[0]
        assert same_on_all_ranks(batch_norm)
        for ours, theirs in zip(batch_norm, exact_batch_norm, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg="batch-norm averages are never compressed")

    @tf.function
    def mean(gradients, exact, allreduce=compressed):
        return allreduce.average([tf.identity(g) for g in gradients], [tf.identity(e) for e in exact])

    given = [tf.fill([3], 60000.0), tf.constant(world.rank + 0.5), tf.zeros([0, 2]), tf.constant([1, 2], tf.float64)]
    (large, scalar, nothing, doubles), (whole,) = mean(given, [tf.constant([1 / 3 + world.rank])])
    assert np.allclose(large, 60000.0, rtol=1e-2), "a sum of large gradients does not overflow"
    assert scalar.shape == ()
    assert float(scalar) == world.size / 2
    assert nothing.shape == (0, 2)
    assert doubles.numpy().tolist() == [1, 2]
    assert np.isclose(whole.numpy()[0], 1 / 3 + (world.size - 1) / 2, rtol=1e-6)
    beyond = mean([tf.constant([1e6 if world.rank == 0 else 1.0, 1.0])], [])[0][0].numpy()
    assert np.isfinite(beyond[0]) == (kind == "bf16"), "float16 has no such number: the step is one of bad numbers"
    assert beyond[1] == 1

# Only the last rank has the row that overflows.
for allreduce in (sync, GradientAllreduce(collectives, "fp16")) if two else (sync,):
    values, scales, _ = train(allreduce, scaled(), **half)
    assert scales == scales_alone, scales
    assert same_on_all_ranks(values)
    for ours, theirs in zip(values, low, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=3e-3)
print(f"rank {world.rank} of {world.size} is fine")
