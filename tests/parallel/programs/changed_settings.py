"""Jobs that go on with other settings, one after the other in the same ranks; each is checked on every rank."""

import json
import shutil
import sys
from pathlib import Path

import keras
import numpy as np

import hpc_train as ht
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention
from hpc_train.distributed.startup import join_world
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.report.tables import changes
from tests.support import write_rows

folder = Path(sys.argv[1])
world = join_world()
if world.is_chief:
    write_rows(folder / "train.h5", 192, seed=1)
    write_rows(folder / "test.h5", 50, seed=2)
world.broadcast(None)

SCHEDULE = "a schedule"


def build_model(params):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(params.get("units", 4)), keras.layers.Dense(4)])
    rate = params["learning_rate"]
    if rate == SCHEDULE:
        rate = keras.optimizers.schedules.PiecewiseConstantDecay([params.get("at", 100)], [0.5, 0.25])
    if params.get("several"):
        biases = {".*bias": keras.optimizers.SGD(0.1)}
        several = keras.optimizers.OptimizerMap(keras.optimizers.Adam(rate), biases)
        optimizer = keras.optimizers.MultiOptimizer(several)
    else:
        optimizer = {"Adam": keras.optimizers.Adam, "SGD": keras.optimizers.SGD}[params.get("optimizer", "Adam")](rate)
    if params.get("scaled"):
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class Rates(ht.Hook):
    """Notes the learning rate of each step, and what else is to happen before one."""

    def __init__(self, lower_to=None, spoil_once_at=None):
        self.rates, self.lower_to, self.spoil_once_at = {}, lower_to, spoil_once_at

    def begin(self, context):
        self.model = context.model
        if self.lower_to is not None:
            self.model.optimizer.learning_rate = self.lower_to

    def before_step(self, step):
        optimizer = self.model.optimizer
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        last = getattr(optimizer, "optimizers", [optimizer])[-1]
        self.rates[step] = round(float(last.learning_rate), 6)
        if step == self.spoil_once_at:
            self.spoil_once_at = None
            self.model.layers[0].kernel.assign(np.full((8, 4), np.nan, np.float32))


def run(job_dir, max_steps, learning_rate, hook=None, warm=None, options=None, **params):
    """The learning rates by step."""
    keras.utils.clear_session()
    hook = hook or Rates()
    options = {"save_checkpoints_steps": 2, "tf_random_seed": 1, "report": False, **(options or {})}
    config = ht.RunConfig(folder / job_dir, **options)
    shard = {"features": "x", "label": "y"}
    estimator = ht.Estimator(build_model, config, {"learning_rate": learning_rate, **params}, warm_start_from=warm)
    train = ht.TrainSpec(
        ht.HDF5Input(str(folder / "train.h5"), batch_size=16, **shard),
        max_steps=max_steps,
        hooks=[hook],
    )
    evaluation = ht.EvalSpec(ht.HDF5Input(str(folder / "test.h5"), batch_size=25, **shard), steps=1)
    ht.train_and_evaluate(estimator, train, evaluation)
    world.broadcast(None)  # the chief has written all
    return hook.rates


def changed(job_dir):
    """Of each change that the report shows: step, key, before, now and why it has no effect."""
    return [row for row in changes(JobDir(folder / job_dir).history()).rows if not row[1].startswith("train.")]


def test_another_rate_is_trained_with_and_recorded():
    assert run("rate", 4, 0.01) == {1: 0.01, 2: 0.01, 3: 0.01, 4: 0.01}
    assert run("rate", 6, 0.1) == {5: 0.1, 6: 0.1}
    expected = [
        ("4", "params.learning_rate", "0.01", "0.1", "–"),
        ("4", "optimizer.learning_rate", "0.01", "0.1", "–"),
    ]
    assert changed("rate") == expected
    assert run("rate", 8, 0.1) == {7: 0.1, 8: 0.1}
    assert changed("rate") == expected


def test_what_counts_is_the_run_that_made_the_checkpoint():
    assert run("lost", 4, 0.01) == dict.fromkeys(range(1, 5), 0.01)
    assert run("lost", 6, 0.1) == {5: 0.1, 6: 0.1}
    if world.is_chief:  # as if that run had ended before its first checkpoint
        shutil.rmtree(folder / "lost/checkpoints/step-00000006")
    world.broadcast(None)
    assert run("lost", 6, 0.1) == {5: 0.1, 6: 0.1}
    assert [row[:2] for row in changed("lost")] == [("4", "params.learning_rate"), ("4", "optimizer.learning_rate")]
    if world.is_chief:
        shutil.rmtree(folder / "lost/checkpoints/step-00000006")
    world.broadcast(None)
    assert run("lost", 6, 0.01) == {5: 0.01, 6: 0.01}
    assert changed("lost") == []


def test_a_rate_that_training_has_lowered_stays_until_another_one_is_asked_for():
    assert run("lowered", 4, 0.01, Rates(lower_to=0.001)) == dict.fromkeys(range(1, 5), 0.001)
    assert run("lowered", 6, 0.01) == {5: 0.001, 6: 0.001}
    assert run("lowered", 8, 0.02) == {7: 0.02, 8: 0.02}


def test_a_constant_and_a_schedule_take_each_others_place():
    assert run("schedule", 2, 0.01) == {1: 0.01, 2: 0.01}
    assert run("schedule", 4, SCHEDULE) == {3: 0.5, 4: 0.5}
    assert run("schedule", 6, SCHEDULE, at=2) == {5: 0.25, 6: 0.25}
    assert run("schedule", 8, 0.03) == {7: 0.03, 8: 0.03}
    keys = [(step, key) for step, key, *_ in changed("schedule") if key.startswith("optimizer.learning_rate")]
    assert ("2", "optimizer.learning_rate") in keys and ("2", "optimizer.learning_rate.class_name") in keys
    assert ("4", "optimizer.learning_rate.config.boundaries") in keys and ("6", "optimizer.learning_rate") in keys


def test_of_several_optimizers():
    for scaled in (False, True):
        how = {"several": True, "scaled": scaled}
        assert run(f"several-{scaled}", 2, 0.01, **how) == {1: 0.01, 2: 0.01}
        assert run(f"several-{scaled}", 4, 0.02, **how) == {3: 0.02, 4: 0.02}
        assert [row[2:4] for row in changed(f"several-{scaled}")] == [("0.01", "0.02")] * 2


def test_with_loss_scaling():
    assert run("scaled", 2, 0.01, scaled=True) == {1: 0.01, 2: 0.01}
    assert run("scaled", 4, 0.02, scaled=True) == {3: 0.02, 4: 0.02}
    assert run("scaled", 6, SCHEDULE, scaled=True) == {5: 0.5, 6: 0.5}
    assert run("scaled", 8, 0.04, scaled=True) == {7: 0.04, 8: 0.04}


def test_a_rollback_to_the_checkpoint_of_the_run_before():
    assert run("back", 4, 0.01) == dict.fromkeys(range(1, 5), 0.01)
    assert run("back", 6, 0.1, Rates(spoil_once_at=5), options={"on_nan": "rollback"}) == {5: 0.1, 6: 0.1}
    starts = [record for record in JobDir(folder / "back").records() if record.kind == "start"]
    assert [(start.step, start.text("reason")) for start in starts[1:]] == [(4, None), (4, "on_nan: rollback")]
    keys = ["params.learning_rate", "run.on_nan", "optimizer.learning_rate"]
    assert [row[:2] for row in changed("back")] == [("4", key) for key in keys]


def rate_in(job_dir, step):
    saved = CheckpointManager(folder / job_dir / "checkpoints", Retention()).load(step)
    return round(float(saved.optimizer["adam/learning_rate"]), 6)


def test_other_roles_and_strategies():
    for options in ({"chief": "dedicated"}, {"strategy": "async"}):
        job_dir = "-".join(options.values())
        run(job_dir, 2, 0.01, options=options)
        run(job_dir, 4, 0.1, options=options)
        assert (rate_in(job_dir, 2), rate_in(job_dir, 4)) == (0.01, 0.1), job_dir
        assert [row[1:] for row in changed(job_dir)][1:] == [("optimizer.learning_rate", "0.01", "0.1", "–")]
    spoiling = {"chief": "dedicated", "on_nan": "rollback"}
    run("dedicated", 6, 0.2, Rates(spoil_once_at=5), options=spoiling)
    assert rate_in("dedicated", 6) == 0.2


def refused(job_dir, **how):
    before = [(folder / job_dir / name).read_bytes() for name in ("job.yaml", "metrics.jsonl")]
    try:
        run(job_dir, 4, **how)
    except (ht.UserError, ht.RankError) as error:
        assert before == [(folder / job_dir / name).read_bytes() for name in ("job.yaml", "metrics.jsonl")]
        return str(error)
    raise AssertionError("it was accepted")


def test_another_optimizer_or_shape_is_refused_by_name():
    run("refused", 2, 0.01)
    error = refused("refused", learning_rate=0.01, optimizer="SGD")
    if world.is_chief:
        assert "holds another model" in error and "optimizer.class was Adam, and is SGD" in error, error
        assert "warm_start_from" in error
    error = refused("refused", learning_rate=0.01, units=5)
    if world.is_chief:
        assert "params.units was None, and is 5" in error, error
    assert run("refused", 4, 0.01) == {3: 0.01, 4: 0.01}


def test_what_has_no_effect_is_recorded_as_that():
    run("idle", 2, 0.01)
    assert run("idle", 2, 0.1) == {}
    over = "nothing is left to train"
    expected = [
        ("2", "params.learning_rate", "0.01", "0.1", over),
        ("2", "optimizer.learning_rate", "0.01", "0.1", over),
    ]
    assert changed("idle") == expected
    assert run("idle", 4, 0.1, warm=folder / "rate") == {3: 0.1, 4: 0.1}
    ignored = {row[1]: row[4] for row in changed("idle")}
    assert ignored.pop("warm_start_from.ckpt_to_initialize_from").startswith(
        "the variables are those of the checkpoint"
    )
    assert ignored["optimizer.learning_rate"] == "–"


def test_of_a_checkpoint_without_settings_the_rate_is_the_one_asked_for_now():
    import h5py

    from hpc_train.checkpoint.manifest import write_manifest

    run("old", 2, 0.01)
    step = folder / "old/checkpoints/step-00000002"
    if world.is_chief:
        about = json.loads((step / "manifest.json").read_text())
        with h5py.File(step / "state.h5", "a") as file:
            del file.attrs["settings"]
        (step / "manifest.json").unlink()
        write_manifest(step, 2, about["time"], about["world_size"])
    world.broadcast(None)
    assert run("old", 4, 0.1) == {3: 0.1, 4: 0.1}
    assert changed("old") == []
    assert run("old", 6, 0.2) == {5: 0.2, 6: 0.2}


for name, test in [item for item in globals().items() if item[0].startswith("test_")]:
    print(f"next: {name}", file=sys.stderr, flush=True)
    test()
if world.is_chief:
    print("settings are fine")
