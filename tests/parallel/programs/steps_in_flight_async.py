"""Asynchronous jobs with 0 to 4 steps in flight, one after the other in the same three ranks.

The model has one weight for each batch, from which each of its gradients takes 1, so that a checkpoint holds how often
each batch was pushed; one whose gradient is a tenth of its value, so that its course says which parameters gradients
were computed at; and a count of the steps that a worker keeps of its own.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import hpc_train as ht
from hpc_train.distributed.startup import join_world
from hpc_train.resilience.signals import JobStopped
from tests.support import collect_log, largest_staleness, records_of, variables

folder = Path(sys.argv[1])
world = join_world("serialized")
lines, _ = collect_log()
BATCHES = 64
"""Of each of two workers."""
ONE_WORKER = {"parameter_servers": 2}
"""Of three ranks; what it does is the same each time."""


class Probe(keras.layers.Layer):
    def build(self, shape):
        self.pushed = self.add_weight(shape=(shape[-1],), initializer="zeros", name="pushed")
        self.value = self.add_weight(shape=(), initializer="ones", name="value")
        self.calls = self.add_weight(shape=(), initializer="zeros", dtype="int32", trainable=False, name="calls")

    def call(self, x, training=False):
        if training:
            self.calls.assign_add(1)
        return keras.ops.sum(x * self.pushed, axis=-1, keepdims=True) + 0.05 * self.value**2


def build_model(params):
    model = keras.Sequential([keras.Input((2 * BATCHES,)), Probe()])
    model.compile(keras.optimizers.SGD(1.0), lambda y, predicted: predicted)
    return model


def rows(batches=BATCHES, bad=()):
    """An input of so many batches for each worker; those of `bad` steps are not finite."""

    def dataset(context):
        x = np.eye(2 * BATCHES, dtype=np.float32)[BATCHES * context.input_pipeline_id :][:batches]
        for step in bad:
            x[step - 1] = np.nan
        return tf.data.Dataset.from_tensor_slices((x[:, None], np.zeros((batches, 1, 1), np.float32)))

    return dataset


def run(name, depth, source, max_steps=None, hooks=(), **config):
    """Trains a job; whether it came to its end."""
    keras.utils.clear_session()
    config = {"save_summary_steps": 1, "save_checkpoints_steps": 1000, **config}
    run_config = ht.RunConfig(
        folder / name, strategy="async", steps_in_flight=depth, tf_random_seed=1, report=False, **config
    )
    spec = ht.TrainSpec(source, max_steps=max_steps, hooks=hooks)
    try:
        ht.train_and_evaluate(ht.Estimator(build_model, run_config), spec, ht.EvalSpec(rows(1), steps=None))
    except JobStopped:
        return False
    finally:
        world.broadcast(None)  # the chief writes when the others have left
    return True


def saved(name, step=None, left_out=0):
    """How often each batch was pushed, by worker; the value; the count of steps; and the step, of a checkpoint."""
    step = records_of(folder / name, "checkpoint")[-1]["step"] if step is None else step
    arrays = variables(folder / name, step)

    def named(end):
        return next(array for key, array in arrays.items() if key.endswith(end))

    assert int(named("iteration")) == step - left_out
    return -named("pushed").reshape(2, BATCHES), float(named("value")), int(named("calls")), step


def staleness(name):
    """Gradients by staleness."""
    record = records_of(folder / name, "train")[-1]
    assert sum(record["staleness"].values()) == record["step"]
    return {int(updates): count for updates, count in record["staleness"].items()}


def value_after(steps, depth, bad=()):
    """What one worker makes of the value with gradients that lack `depth` of its own; bad ones change nothing."""
    values = [np.float32(1)]
    for step in range(1, steps + 1):
        gradient = 0 if step in bad else np.float32(0.1) * values[max(0, step - 1 - depth)]
        values.append(values[-1] - gradient)
    return values[-1]


class Calls(ht.Hook):
    """Notes what is called; does not look at the model."""

    needs_state = False

    def __init__(self):
        self.calls = []

    def before_step(self, step):
        self.calls.append(("before", step))

    def after_step(self, step, loss):
        self.calls.append(("after", step))


# Two workers: `max_steps` is exact, and each worker pushes the gradient of each batch that it has taken once.
for depth in (0, 1, 4):
    assert run(f"two-{depth}", depth, rows(), 41)
    if world.is_chief:
        pushed, _, _, step = saved(f"two-{depth}")
        assert step == pushed.sum() == 41, (depth, pushed)
        for own in pushed:
            assert own.tolist() == [1.0] * int(own.sum()) + [0.0] * (BATCHES - int(own.sum())), (depth, own)
        gaps = [share for record in records_of(folder / f"two-{depth}", "train") for share in record["by_rank"]["gap"]]
        assert any(gaps), "the time in which a device waits for the host is measured"

# The bound counts own gradients in flight, too.
assert run("bounded", 4, rows(), 50, max_staleness=1)
if world.is_chief:
    assert max(staleness("bounded")) <= largest_staleness(2, 1, depth=4), staleness("bounded")
    assert saved("bounded")[0].sum() == 50

# One worker: each gradient lacks as many of its own as were in flight, and no other; a checkpoint is of its step.
for depth in (0, 1, 3):
    calls = Calls()
    assert run(f"one-{depth}", depth, rows(), 11, hooks=(calls,), save_checkpoints_steps=4, **ONE_WORKER)
    if world.rank == 2:
        assert calls.calls == [(what, step) for step in range(1, 12) for what in ("before", "after")], calls.calls
    if world.is_chief:
        first = dict.fromkeys(range(depth), 1)
        assert staleness(f"one-{depth}") == {**first, depth: 11 - depth}
        for step in (4, 8, 11):
            pushed, value, count, _ = saved(f"one-{depth}", step)
            assert pushed[0].tolist() == [1.0] * step + [0.0] * (BATCHES - step)
            assert count == step, "what a worker keeps of its own is as that step has left it"
            np.testing.assert_allclose(value, value_after(step, depth), rtol=1e-5)
assert run("one-bounded", 4, rows(), 11, max_staleness=2, **ONE_WORKER)
if world.is_chief:
    assert staleness("one-bounded") == {0: 1, 1: 1, 2: 9}, staleness("one-bounded")

# A hook that looks at the model keeps gradients apart.


class Weights(Calls):
    needs_state = True


assert run("weights", 2, rows(), 6, hooks=(Weights(),), **ONE_WORKER)
if world.is_chief:
    assert staleness("weights") == {0: 6}
    assert any("Weights.before_step is called between steps" in line for line in lines), lines

# A worker whose input ends pushes what is in flight, also where it has fewer batches than may fly.
for batches in (9, 1):
    assert run(f"input-{batches}", 3, rows(batches), **ONE_WORKER)
    if world.is_chief:
        assert saved(f"input-{batches}")[0].sum() == saved(f"input-{batches}")[3] == batches


# A signal ends training once what is in flight was pushed; a restart goes on with the next batch.
class Signal(Calls):
    def after_step(self, step, loss):
        super().after_step(step, loss)
        if step == 5:
            os.kill(os.getpid(), signal.SIGTERM)


stopping = Signal()
assert not run("signal", 3, rows(), BATCHES, hooks=(stopping,), **ONE_WORKER)
last = world.all_gather(stopping.calls[-1] if stopping.calls else None)[2]
if world.is_chief:
    pushed, _, count, step = saved("signal")
    assert last == ["after", step]
    assert 5 + 3 <= step == pushed.sum() == count < BATCHES
    shutil.copytree(folder / "signal", folder / "again")
assert run("again", 3, rows(), BATCHES, **ONE_WORKER)
if world.is_chief:
    pushed, _, count, step = saved("again")
    assert step == count == BATCHES
    assert pushed[0].tolist() == [1.0] * BATCHES

# Numbers that are not finite are steps that change nothing.
assert run("skip", 2, rows(bad=(4, 5, 9)), 12, on_nan="skip", **ONE_WORKER)
if world.is_chief:
    pushed, value, _, step = saved("skip", left_out=3)
    assert pushed[0, :12].tolist() == [float(step not in (4, 5, 9)) for step in range(1, 13)]
    np.testing.assert_allclose(value, value_after(12, 2, bad=(4, 5, 9)), rtol=1e-5)

print("steps in flight are fine", flush=True)

# They end the job at their step, and with it all ranks.
run("halt", 2, rows(bad=(6,)), 12, save_checkpoints_steps=4, **ONE_WORKER)
