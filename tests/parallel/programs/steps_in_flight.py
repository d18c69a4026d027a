"""The same small jobs with 0 to 3 steps in flight, one after the other in the same ranks: nothing may differ."""

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
from tests.support import collect_log, records_of, variables

folder = Path(sys.argv[1])
world = join_world()
DEPTHS = (0, 2)
lines, _ = collect_log()


def build_model(params):
    """With what keeps state outside of the optimizer: batch-norm averages and dropout's random states."""
    layers = [keras.layers.Dense(16), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
    model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def rows(batches, bad=()):
    """An input of so many batches on rank 0, one more on rank 1; `bad` steps have a NaN on the last rank."""

    def dataset(context):
        rank, size = context.input_pipeline_id, context.num_input_pipelines
        random = np.random.default_rng(rank)
        x = random.normal(size=(batches + rank, 4, 8)).astype(np.float32)
        for step in bad if rank == size - 1 else ():
            x[step - 1, 0, 0] = np.nan
        return tf.data.Dataset.from_tensor_slices((x, x.sum(axis=2, keepdims=True)))

    return dataset


def run(name, depth, source, max_steps=None, hooks=(), evaluations=1, **config):
    """Metrics of a job, or the signal that stopped it."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    run_config = ht.RunConfig(
        folder / name / str(depth), steps_in_flight=depth, tf_random_seed=1, report=False, **config
    )
    evaluation = ht.EvalSpec(rows(2), steps=None, start_delay_secs=0, throttle_secs=0)
    spec = ht.TrainSpec(source, max_steps=max_steps, hooks=hooks)
    try:
        result = ht.train_and_evaluate(ht.Estimator(build_model, run_config), spec, evaluation)[0]
    except JobStopped as error:
        result = f"{type(error).__name__}: {error}"
    world.broadcast(None)  # the chief writes when the others have left
    return result


def told(name, depth, *kinds):
    """The numbers of a job's records but those of clocks."""
    names = ("kind", "step", "loss", "mae", "learning_rate")
    return [{name: record.get(name) for name in names} for record in records_of(folder / name / str(depth), *kinds)]


def same_at_all_depths(name, *args, steps=(), kinds=("train", "eval"), **more):
    """Runs a job at each depth; its result, log of numbers and checkpoints have to be the same."""
    results = [run(name, depth, *args, **more) for depth in DEPTHS]
    assert results == [results[0]] * len(DEPTHS), results
    if world.is_chief:
        first = told(name, 0, *kinds)
        assert all(told(name, depth, *kinds) == first for depth in DEPTHS), (name, first)
        for step in steps:
            plain, *others = (variables(folder / name / str(depth), step) for depth in DEPTHS)
            for other in others:
                assert all(np.array_equal(plain[key], other[key]) for key in plain), (name, step)
    return results[0]


class Calls(ht.Hook):
    """Notes what is called; does not look at the model."""

    needs_state = False

    def __init__(self):
        self.calls = []

    def before_step(self, step):
        self.calls.append(("before", step))

    def after_step(self, step, loss):
        self.calls.append(("after", step, loss))

    def after_checkpoint(self, step, path):
        self.calls.append(("checkpoint", step))

    def end(self, step):
        self.calls.append(("end", step))


# Checkpoints, evaluations, records and comparisons at their steps; hooks hear of the same in the same order.
heard = []


def hooks():
    heard.append(Calls())
    return heard[-1]


results = []
for depth in (0, 1, 3):
    at_steps = {"save_checkpoints_steps": 4, "save_summary_steps": 3, "check_replicas_steps": 5}
    results.append(run("steps", depth, rows(50), 11, hooks=(hooks(),), **at_steps))
assert results == [results[0]] * 3, results
assert [hook.calls for hook in heard] == [heard[0].calls] * 3, heard[1].calls
assert [call[:2] for call in heard[0].calls[:5]] == [
    ("before", 1),
    ("after", 1),
    ("before", 2),
    ("after", 2),
    ("before", 3),
]
if world.is_chief:
    first = told("steps", 0, "train", "eval", "checkpoint")
    assert [(r["kind"], r["step"]) for r in first if r["kind"] == "train"] == [("train", s) for s in (3, 6, 9, 11)]
    assert {r["step"] for r in first if r["kind"] == "eval"} == {4, 8, 11}
    for depth in (1, 3):
        assert told("steps", depth, "train", "eval") == told("steps", 0, "train", "eval")
        for step in (4, 8, 11):
            plain, other = variables(folder / "steps/0", step), variables(folder / f"steps/{depth}", step)
            assert all(np.array_equal(plain[key], other[key]) for key in plain), step

# A rank whose input ends first ends all of them, after the same step; also where it has fewer batches than may fly.
for batches in (9, 1):
    same_at_all_depths(f"input-{batches}", rows(batches), steps=[batches], save_checkpoints_steps=100)

# Numbers that are not finite never reach the model, and training goes on or back as without steps in flight.
same_at_all_depths("skip", rows(50, bad=(4, 5, 9)), 12, steps=[6, 12], on_nan="skip", save_checkpoints_steps=6)
same_at_all_depths("rollback", rows(50, bad=(5, 6, 9)), 12, steps=[12], on_nan="rollback", save_checkpoints_steps=3)


# A signal to one rank stops all at most as many steps later as may be in flight; a restart ends at the same bits.
class Signal(ht.Hook):
    needs_state = False

    def after_step(self, step, loss):
        self.step = step
        if step == 5 and world.rank == world.size - 1:
            os.kill(os.getpid(), signal.SIGTERM)


for depth in DEPTHS:
    stopping = Signal()
    ended = run("signal", depth, rows(50), 12, hooks=(stopping,), save_checkpoints_steps=100)
    assert ended.startswith("JobStopped"), ended
    assert 6 <= stopping.step <= 6 + 2 * depth, (depth, stopping.step)
    assert world.all_gather(stopping.step) == [stopping.step] * world.size
if world.is_chief:
    shutil.copytree(folder / "signal", folder / "again")
same_at_all_depths("again", rows(50), 12, steps=[12], kinds=("eval",), save_checkpoints_steps=100)


# A hook that only looks ends training, too, and one that looks at the model keeps steps apart.
class Enough(ht.Hook):
    needs_state = False

    def begin(self, context):
        self.ask = context.request_stop

    def after_step(self, step, loss):
        if step == 4:
            self.ask("four are enough")


class Weights(Calls):
    needs_state = True
    chief_only = True

    def begin(self, context):
        self.model, self.seen = context.model, []

    def after_step(self, step, loss):
        self.seen.append(int(self.model.optimizer.iterations.numpy()))


for depth in DEPTHS:
    run("enough", depth, rows(50), hooks=(Enough(),), save_checkpoints_steps=100)
    last = max(record["step"] for record in records_of(folder / "enough" / str(depth), "checkpoint"))
    assert 5 <= last <= 5 + 2 * depth, (depth, last)
weights = Weights()
run("weights", 1, rows(50), 6, hooks=(weights,), save_checkpoints_steps=100)
if world.is_chief:
    assert weights.seen == [1, 2, 3, 4, 5, 6], weights.seen
    assert any("Weights.before_step is called between steps" in line for line in lines), lines

# The chief's clock asks for checkpoints: they hold the state of their step.
clock = [run("clock", depth, rows(50), 20, save_checkpoints_secs=1e-6) for depth in DEPTHS]
assert clock[1:] == clock[:1], clock
if world.is_chief:
    for depth in DEPTHS:
        taken = [record["step"] for record in records_of(folder / f"clock/{depth}", "checkpoint")]
        assert len(taken) >= 20 // (2 * (depth + 1)), (depth, taken)
        step = max(step for step in taken if step < 20)
        at_this_step = variables(folder / f"clock/{depth}", step)
        assert int(next(v for key, v in at_this_step.items() if "iteration" in key)) == step, (depth, step)

print("steps in flight are fine", flush=True)

# Numbers that are not finite end the job after their step, and with it all ranks.
run("halt", 2, rows(50, bad=(6,)), 12, save_checkpoints_steps=4)
