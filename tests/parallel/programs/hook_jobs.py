"""Small jobs with hooks, one after the other in the same ranks, through the API; each is checked on every rank."""

import csv
import json
import sys
from pathlib import Path

import keras

import hpc_train as ht
from hpc_train.distributed.startup import join_world
from tests.support import write_rows

folder = Path(sys.argv[1])
world = join_world()
ROWS = 192
BATCH = 32 // world.size  # 6 steps are an epoch, at any number of ranks

if world.is_chief:
    write_rows(folder / "train.h5", ROWS, seed=1)
    write_rows(folder / "test.h5", 50, seed=2)
world.broadcast(None)


def build_model(params):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    model.compile(
        keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    return model


def run(job_dir, max_steps, save=2, evaluations=(None,), eval_hooks=(), hooks=(), listeners=()):
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    config = ht.RunConfig(
        folder / job_dir, save_checkpoints_steps=save, tf_random_seed=1, save_summary_steps=1, report=False
    )
    shard = {"features": "x", "label": "y"}
    sets = [
        ht.EvalSpec(
            ht.HDF5Input(str(folder / "test.h5"), batch_size=25, **shard),
            steps=None,
            name=name,
            start_delay_secs=0,
            throttle_secs=0,
            hooks=eval_hooks if name == evaluations[-1] else (),
        )
        for name in evaluations
    ]
    spec = ht.TrainSpec(
        ht.HDF5Input(str(folder / "train.h5"), batch_size=BATCH, **shard),
        max_steps=max_steps,
        hooks=hooks,
        saving_listeners=listeners,
    )
    metrics = ht.train_and_evaluate(ht.Estimator(build_model, config), spec, sets)[0]
    world.broadcast(None)  # the chief writes status.json when the others have left
    return metrics


def status(job_dir):
    return json.loads((folder / job_dir / "status.json").read_text())


def told(job_dir, kind):
    records = map(json.loads, (folder / job_dir / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["kind"] == kind]


def alike(value):
    """`value`, which is the same on all ranks."""
    values = world.all_gather(value)
    assert values == [values[0]] * world.size, values
    return value


class Log(ht.Hook):
    """Notes each call."""

    def __init__(self, chief_only=False):
        self.chief_only, self.calls, self.losses = chief_only, [], []

    def begin(self, context):
        assert (context.rank, context.size) == (world.rank, world.size)
        assert context.is_chief == world.is_chief
        assert context.job_dir == folder / "order"
        self.calls.append(f"begin {context.first_step} of {context.max_steps}")

    def before_step(self, step):
        self.calls.append(f"before {step}")

    def after_step(self, step, loss):
        self.losses.append(loss)
        self.calls.append(f"after {step}")

    def after_checkpoint(self, step, path):
        assert path == folder / "order" / "checkpoints" / f"step-{step:08d}"
        self.calls.append(f"checkpoint {step}")

    def before_evaluate(self, step, name):
        self.calls.append(f"evaluate {step} {name}")

    def before_evaluation_batch(self, name, batch):
        self.calls.append(f"before batch {batch} {name}")

    def after_evaluation_batch(self, name, batch):
        self.calls.append(f"after batch {batch} {name}")

    def after_evaluate(self, step, name, metrics):
        alike(metrics) if not self.chief_only else None
        assert set(metrics) == {"loss", "accuracy"}
        self.calls.append(f"evaluated {step} {name}")

    def end(self, step):
        self.calls.append(f"end {step}")


class Listener:
    def __init__(self):
        self.calls = []

    def before_save(self, step):
        assert not (folder / "order" / "checkpoints" / f"step-{step:08d}").exists()
        self.calls.append(f"before save {step}")

    def after_save(self, step, path):
        assert (path / "state.h5").exists()
        self.calls.append(f"saved {step}")


def test_order():
    everywhere, chief, of_set, listener = Log(), Log(chief_only=True), Log(), Listener()
    run("order", 4, 2, (None, "more"), [of_set], [everywhere, chief], [listener])
    of_one = everywhere.calls
    batches = sum(call.startswith("before batch") for call in of_one)
    assert sum(world.all_gather(batches)) == 8, "two batches of two sets at two steps"
    steps = [call for call in of_one if "batch" not in call]
    expected = ["begin 0 of 4"]
    for step in (2, 4):
        expected += [f"before {step - 1}", f"after {step - 1}", f"before {step}", f"after {step}"]
        expected += ["end 4"] if step == 4 else []
        expected += [f"checkpoint {step}"]
        for name in (None, "more"):
            expected += [f"evaluate {step} {name}", f"evaluated {step} {name}"]
    assert steps == expected, steps
    around = [call for call in of_one if call.endswith("None") and ("batch" in call or call.startswith("evaluate"))]
    number = batches // 4
    assert around[: 2 * number + 2] == [
        "evaluate 2 None",
        *(f"{when} batch {n} None" for n in range(number) for when in ("before", "after")),
        "evaluated 2 None",
    ], around
    alike(everywhere.losses)
    assert everywhere.losses == [record["loss"] for record in told("order", "train")]
    assert chief.calls == (of_one if world.is_chief else [])
    of_more = [call for call in of_one if call.endswith("more")]
    assert [c for c in of_set.calls if c.endswith("more")] == of_more
    assert [c for c in of_set.calls if not c.endswith("more")] == ["begin 0 of 4", "end 4"]
    saves = ["before save 2", "saved 2", "before save 4", "saved 4"]
    assert sorted(listener.calls) == (sorted(saves) if world.is_chief else []), listener.calls
    assert not world.is_chief or listener.calls.index("before save 4") > listener.calls.index("before save 2")

    again = Log()
    again.begin = lambda context: again.calls.append("begin")
    run("order", 6, 2, hooks=[again])
    assert again.calls[:3] == ["begin", "before 5", "after 5"], "steps are counted over restarts"


class Asks(ht.Hook):
    def begin(self, context):
        self.context, self.steps = context, []

    def after_step(self, step, loss):
        self.steps.append(step)
        if step == 3 and self.context.rank == world.size - 1:
            self.context.request_stop("this rank has seen enough")


def test_request_stop():
    hook = Asks()
    metrics = run("asked", 100, 50, hooks=[hook])
    assert alike(metrics)["global_step"] == 4
    assert alike(hook.steps) == [1, 2, 3, 4]
    found = status("asked")
    assert found["state"] == "succeeded"
    assert found["stopped_early"] == {"step": 4, "reason": "this rank has seen enough"}
    assert [record["step"] for record in told("asked", "eval")] == [4]
    assert (folder / "asked/checkpoints/step-00000004").is_dir()
    hook = Asks()
    assert run("asked", 100, 50, hooks=[hook])["global_step"] == 4, "it has ended, and trains no more"
    assert status("asked")["stopped_early"]["step"] == 4
    hook = Asks()
    assert run("asked", 101, 50, hooks=[hook])["global_step"] == 101, "it was given more to do"
    assert hook.steps[0] == 5
    assert status("asked").get("stopped_early") is None


class Rate(ht.Hook):
    """The learning rate that each step is taken with, and the one at the end."""

    def begin(self, context):
        self.model, self.rates = context.model, []

    def before_step(self, step):
        self.rates.append(round(float(self.model.optimizer.learning_rate), 6))

    def end(self, step):
        self.last = round(float(self.model.optimizer.learning_rate), 6)


class Own(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.calls = []

    def on_train_begin(self, logs=None):
        self.calls.append("train begins")

    def on_epoch_begin(self, epoch, logs=None):
        self.calls.append(f"epoch {epoch}")

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(f"batch {batch}")

    def on_test_end(self, logs=None):
        self.calls.append(f"test {sorted(logs)}")

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append(f"epoch ends {sorted(set(logs) - {'learning_rate'})}")

    def on_train_end(self, logs=None):
        self.calls.append("train ends")


def test_keras():
    rate, own = Rate(), Own()
    table, board = folder / "epochs.csv", folder / "board"
    early = keras.callbacks.EarlyStopping("val_loss", min_delta=100, patience=2)
    callbacks = [
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=100),
        early,
        keras.callbacks.CSVLogger(str(table)),
        keras.callbacks.TensorBoard(str(board)),
        own,
    ]
    metrics = run("keras", 600, 6, hooks=[*callbacks, rate])
    # The first epoch is the best; ReduceLROnPlateau waits for one more and EarlyStopping for two: then it is over.
    assert alike(early.stopped_epoch) == 2
    assert alike(metrics)["global_step"] == 19, "training ends after the next step"
    assert alike(rate.rates)[:12] == [0.1] * 12
    assert rate.rates[12:18] == [0.05] * 6
    assert alike(rate.last) == 0.025
    epoch = [f"batch {n}" for n in range(6)] + ["test ['accuracy', 'loss']"]
    ends = "epoch ends ['loss', 'val_accuracy', 'val_loss']"
    expected = ["train begins"]
    for number in range(3):
        expected += [f"epoch {number}", *epoch, ends]
    assert alike(own.calls) == [*expected, "train ends"], own.calls
    assert "EarlyStopping on val_loss" in status("keras")["stopped_early"]["reason"]
    if world.is_chief:
        rows = list(csv.DictReader(table.open()))
        assert [row["epoch"] for row in rows] == ["0", "1", "2"]
        evaluated = {record["step"]: record["loss"] for record in told("keras", "eval")}
        for row, step in zip(rows, (6, 12, 18), strict=True):
            assert abs(float(row["val_loss"]) - evaluated[step]) < 1e-6
        assert list(board.rglob("events.out.tfevents.*"))


def test_schedule():
    rate = Rate()
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.1 / 2**epoch)
    run("schedule", 9, 9, hooks=[schedule, rate])
    assert alike(rate.rates) == [0.1] * 6 + [0.05] * 3
    rate = Rate()
    run("schedule", 18, 9, hooks=[schedule, rate])
    assert alike(rate.rates) == [0.05] * 3 + [0.025] * 6, "epochs are counted over restarts"


def refused(said, **arguments):
    try:
        run("refused", 4, **arguments)
    except ht.UserError as error:
        assert said in str(error), str(error)
    else:
        raise AssertionError(f"{arguments} was accepted")
    assert not (folder / "refused").exists()


def test_refused():
    refused(
        "ModelCheckpoint is not allowed: the job saves by itself (save_checkpoints_steps)",
        hooks=[keras.callbacks.ModelCheckpoint(str(folder / "x.keras"))],
    )
    refused("did you mean `val_loss`? ", hooks=[keras.callbacks.EarlyStopping("val_los")])
    refused("give an object: Log()", hooks=[Log])
    refused("is a Keras callback; give it to TrainSpec.hooks", eval_hooks=[keras.callbacks.CSVLogger("x.csv")])
    refused("an ht.SavingListener, or an object with one of its methods", listeners=[3])


tests = [test_order, test_request_stop, test_keras, test_schedule, test_refused]
for test in tests:
    test()
print(f"rank {world.rank}: hooks are fine", flush=True)
