from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.callbacks.hook import Hook, HookContext
from hpc_train.callbacks.hook_list import Hooks, resolve_hooks
from hpc_train.callbacks.keras import Epochs, KerasCallbacks, adapted
from hpc_train.data.sampling.sampler import DataProgress, Sampler
from hpc_train.errors import UserError

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

BATCH, ROWS = 4, 12
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(ROWS, 3)).astype("float32"), RNG.normal(size=(ROWS, 1)).astype("float32")
VAL_X, VAL_Y = X[:6] + 1, Y[:6]
EPOCHS = Epochs(ROWS, BATCH)
CALLS = [
    f"on_{what}_{when}" for what in ("train", "epoch", "train_batch", "test", "test_batch") for when in ("begin", "end")
]


class Recorder(keras.callbacks.Callback):
    """Notes each call with its arguments and its logs."""


def _noting(name: str) -> Any:
    def note(self: Any, *args: Any, logs: Any = None) -> None:
        if name in ("on_train_begin", "on_train_end", "on_test_begin", "on_test_end"):
            args, logs = (), args[0] if args else logs
        elif len(args) == 2:
            args, logs = args[:1], args[1]
        self.log.append((name, *args, dict(logs) if logs else None))

    return note


for _name in CALLS:
    setattr(Recorder, _name, _noting(_name))


def recorder() -> Any:
    made = Recorder()
    made.log = []
    return made


def model_of(learning_rate: Any = 0.1) -> Any:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(optimizer=keras.optimizers.SGD(learning_rate), loss="mse")
    model.test_on_batch(VAL_X, VAL_Y)  # as build_model does, makes the metrics' variables
    model.reset_metrics()
    return model


class Loop:
    """Trains as the training loop does, with the calls that it makes."""

    def __init__(
        self,
        model: Any,
        given: Sequence[Any],
        first_step: int = 0,
        max_steps: int = 9,
        eval_steps: Sequence[int] = (),
        epochs: Epochs | None = EPOCHS,
        is_chief: bool = True,
        first_epoch: int = 0,
        metric_names: Sequence[str] = (),
    ) -> None:
        self.model, self.step, self.max_steps, self.eval_steps = model, first_step, max_steps, eval_steps
        hooks = adapted(
            resolve_hooks(given, lambda name: print),
            model,
            epochs=epochs,
            first_epoch=first_epoch,
            metric_names=metric_names,
        )
        context = HookContext(model, 0 if is_chief else 1, 2, is_chief, Path("/jobs/a"), first_step, max_steps)
        self.hooks = Hooks(hooks, context)

    def run(self, interrupt_after: int | None = None, losses: Iterator[float] | None = None) -> Loop:
        self.hooks.begin()
        while self.step < self.max_steps:
            self.hooks.before_step(self.step + 1)
            last = self.hooks.stop_requested is not None or self.step + 1 == self.max_steps
            loss = self.train(self.step) if losses is None else next(losses)
            self.step += 1
            self.hooks.after_step(self.step, loss)
            if self.step in self.eval_steps:
                self.evaluate()
            if self.step == interrupt_after:
                self.hooks.interrupted(self.step)
                return self
            if last:
                break
        self.hooks.end(self.step)
        return self

    def train(self, step: int) -> float:
        rows = np.arange(step * BATCH, (step + 1) * BATCH) % ROWS
        with tf.GradientTape() as tape:
            loss = self.model.compute_loss(X[rows], Y[rows], self.model(X[rows], training=True))
        variables = self.model.trainable_variables
        self.model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return float(loss)

    def evaluate(self, name: str | None = None) -> None:
        self.hooks.before_evaluate(self.step, name)
        self.model.reset_metrics()
        for number, start in enumerate(range(0, len(VAL_X), BATCH)):
            self.hooks.before_evaluation_batch(self.step, name, number)
            self.model.test_step((tf.constant(VAL_X[start : start + BATCH]), tf.constant(VAL_Y[start : start + BATCH])))
            self.hooks.after_evaluation_batch(self.step, name, number)
        metrics = {key: float(value) for key, value in self.model.get_metrics_result().items()}
        self.model.reset_metrics()
        self.hooks.after_evaluate(self.step, name, metrics)


def shape_of(log: Sequence[Any]) -> list[Any]:
    return [(*entry[:-1], sorted(entry[-1]) if entry[-1] else None) for entry in log]


@pytest.mark.parametrize("validation_freq", [None, 1, 2])
def test_calls_arguments_and_logs_are_those_of_fit(validation_freq: int | None) -> None:
    theirs, ours = recorder(), recorder()
    validation = {"validation_data": (VAL_X, VAL_Y), "validation_freq": validation_freq, "validation_batch_size": BATCH}
    model_of().fit(
        X, Y, BATCH, epochs=4, shuffle=False, verbose=0, callbacks=[theirs], **(validation if validation_freq else {})
    )
    Loop(
        model_of(),
        [ours],
        max_steps=12,
        eval_steps=range(3, 13, 3 * validation_freq) if validation_freq == 1 else [6, 12] if validation_freq else [],
    ).run()
    assert shape_of(ours.log) == shape_of(theirs.log)
    assert ours.params == {"verbose": 0, "epochs": 4, "steps": 3} == theirs.params
    for (*call, our_logs), (*_, their_logs) in zip(ours.log, theirs.log, strict=True):
        assert {k: float(v) for k, v in (our_logs or {}).items()} == pytest.approx(
            {k: float(v) for k, v in (their_logs or {}).items()}, rel=1e-4
        ), call


def test_stopping_leaves_no_more_calls_than_in_fit() -> None:
    class Stops(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = epoch == 1

    theirs, ours = recorder(), recorder()
    model_of().fit(X, Y, BATCH, epochs=4, shuffle=False, verbose=0, callbacks=[theirs, Stops()])
    loop = Loop(model_of(), [ours, Stops()], max_steps=12).run()
    assert shape_of(ours.log) == shape_of(theirs.log)
    assert loop.hooks.stop_requested == "a callback set model.stop_training in epoch 1"
    assert loop.step == 7  # all ranks agree on it in the step after the epoch


def test_stopping_within_an_epoch_ends_it_as_in_fit() -> None:
    def at(batch: int) -> Any:
        class Stops(keras.callbacks.Callback):
            def on_train_batch_end(self, number: int, logs: Any = None) -> None:
                self.model.stop_training = number == batch

        return Stops()

    theirs, ours = recorder(), recorder()
    model_of().fit(X, Y, BATCH, epochs=4, shuffle=False, verbose=0, callbacks=[theirs, at(1)])
    Loop(model_of(), [ours, at(1)], max_steps=12).run()
    assert shape_of(ours.log) == shape_of(theirs.log)


def test_a_run_goes_on_within_its_epoch() -> None:
    first, second = recorder(), recorder()
    Loop(model_of(), [first], max_steps=9).run(interrupt_after=4)
    Loop(model_of(), [second], first_step=4, max_steps=9).run()
    calls = [entry[:2] for entry in first.log if entry[0].startswith(("on_epoch", "on_train_batch"))]
    assert calls[-3:] == [("on_epoch_begin", 1), ("on_train_batch_begin", 0), ("on_train_batch_end", 0)]
    assert first.log[-1][0] == "on_train_end"
    calls = [entry[:2] for entry in shape_of(second.log)]
    assert calls[1:4] == [("on_epoch_begin", 1), ("on_train_batch_begin", 1), ("on_train_batch_end", 1)]
    assert [number for name, number, *_ in second.log[:-1] if name == "on_epoch_end"] == [1, 2]


def test_an_interrupted_run_ends_the_epoch_that_was_over() -> None:
    one = recorder()
    Loop(model_of(), [one], max_steps=9, eval_steps=[3]).run(interrupt_after=3)
    assert shape_of(one.log)[-2:] == [
        ("on_epoch_end", 0, ["loss", "val_loss"]),
        ("on_train_end", ["loss", "val_loss"]),
    ]


def test_without_epochs_of_the_data_each_evaluation_ends_one() -> None:
    one = recorder()
    Loop(model_of(), [one], first_step=2, max_steps=9, eval_steps=[4, 7], epochs=None, first_epoch=5).run()
    epochs = [entry for entry in shape_of(one.log) if entry[0].startswith("on_epoch")]
    assert epochs == [
        ("on_epoch_begin", 5, None),
        ("on_epoch_end", 5, ["loss", "val_loss"]),
        ("on_epoch_begin", 6, None),
        ("on_epoch_end", 6, ["loss", "val_loss"]),
        ("on_epoch_begin", 7, None),
        ("on_epoch_end", 7, ["loss"]),
    ]
    assert one.params == {"verbose": 0, "epochs": None, "steps": None}


def test_only_the_first_evaluation_set_is_seen() -> None:
    one = recorder()
    loop = Loop(model_of(), [one], max_steps=3)
    loop.hooks.begin()
    loop.hooks.before_step(1)
    loop.hooks.after_step(1, 1.0)
    loop.evaluate("holdout")
    loop.hooks.end(1)
    loop.evaluate()  # after the end they would find their files closed
    assert not [entry for entry in one.log if "test" in entry[0] or "val_loss" in (entry[-1] or {})]


def test_a_rollback_begins_where_it_went_back_to() -> None:
    one = recorder()
    loop = Loop(model_of(), [one], max_steps=12)
    loop.hooks.begin()
    for step in (1, 2, 3, 4, 5, 2, 3, 4):
        loop.hooks.before_step(step)
        loop.hooks.after_step(step, float(step))
    loop.hooks.end(4)
    calls = [entry[:2] for entry in one.log if entry[0] in ("on_epoch_begin", "on_epoch_end", "on_train_batch_end")]
    assert calls[-8:] == [
        ("on_train_batch_end", 1),  # of epoch 1
        ("on_epoch_begin", 0),
        ("on_train_batch_end", 1),
        ("on_train_batch_end", 2),
        ("on_epoch_end", 0),
        ("on_epoch_begin", 1),
        ("on_train_batch_end", 0),
        ("on_epoch_end", 1),
    ]
    assert one.log[-2][-1] == {"loss": 4.0}


def test_the_epochs_loss_is_the_mean_of_what_is_finite() -> None:
    one, stopper = recorder(), keras.callbacks.TerminateOnNaN()
    Loop(model_of(), [one], max_steps=3).run(losses=iter([1.0, math.nan, 2.0]))
    losses = [entry[-1]["loss"] for entry in one.log if entry[0] == "on_train_batch_end"]
    assert losses[::2] == [1.0, 1.5] and math.isnan(losses[1])
    assert one.log[-1] == ("on_train_end", {"loss": 1.5})
    assert Loop(model_of(), [stopper], max_steps=9).run(losses=iter([1.0, math.nan, 2.0])).step == 3


# Keras's own callbacks


def test_learning_rates_are_set_by_epoch() -> None:
    model = model_of()
    Loop(model, [keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.1 / (epoch + 1))]).run()
    assert float(model.optimizer.learning_rate) == pytest.approx(0.1 / 3)
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=1e9)
    model = model_of()
    Loop(model, [plateau], eval_steps=[3, 6, 9], metric_names=["loss"]).run()
    assert float(model.optimizer.learning_rate) == pytest.approx(0.1 * 0.5**2)


def test_early_stopping_stops_and_restores_the_best_weights() -> None:
    model, best = model_of(5.0), []  # diverges

    class Keeps(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 0:
                best.extend(self.model.get_weights())

    stopper = keras.callbacks.EarlyStopping("loss", patience=2, restore_best_weights=True)
    loop = Loop(model, [Keeps(), stopper], max_steps=99).run()
    assert loop.hooks.stop_requested == "EarlyStopping on loss set model.stop_training in epoch 2"
    assert loop.step == 10
    for weights, kept in zip(model.get_weights(), best, strict=True):
        np.testing.assert_array_equal(weights, kept)


def test_those_that_write_do_so_on_the_chief_alone(tmp_path: Path) -> None:
    for is_chief in (False, True):
        log, board = tmp_path / "log.csv", tmp_path / "board"
        callbacks = [
            keras.callbacks.CSVLogger(log),
            keras.callbacks.TensorBoard(board, histogram_freq=1, update_freq=2, write_steps_per_second=True),
        ]
        Loop(model_of(), callbacks, eval_steps=[3, 6], is_chief=is_chief).run()
        assert log.exists() == board.exists() == is_chief
    rows = list(csv.DictReader(log.open()))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert float(rows[0]["val_loss"]) > 0 and rows[2]["val_loss"] == "NA"
    tags = {value.tag for event in events(board / "train") for value in event.summary.value}
    assert {"epoch_loss", "epoch_learning_rate", "batch_loss", "keras"} <= tags
    tags = {value.tag for event in events(board / "validation") for value in event.summary.value}
    assert {"epoch_loss", "evaluation_loss_vs_iterations"} <= tags


def events(folder: Path) -> Iterator[Any]:
    for path in folder.glob("events.*"):
        yield from tf.compat.v1.train.summary_iterator(str(path))


def test_tensorboard_profiles_batches(tmp_path: Path) -> None:
    Loop(model_of(), [keras.callbacks.TensorBoard(tmp_path, profile_batch=(2, 3))]).run()
    assert list(tmp_path.glob("train/plugins/profile/*/*.xplane.pb"))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: keras.callbacks.ModelCheckpoint("x.keras"), "ModelCheckpoint is not allowed: the job saves by itself"),
        (lambda: keras.callbacks.BackupAndRestore("x"), "goes on from its last checkpoint by itself"),
        (lambda: keras.callbacks.EarlyStopping("val_los"), "'val_los', which is not known; did you mean `val_loss`"),
        (lambda: keras.callbacks.ReduceLROnPlateau("mae"), "allowed: loss, val_loss, val_mae"),
    ],
)
def test_what_cannot_work_is_refused(make: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        adapted([make()], model_of(), epochs=EPOCHS, metric_names=["loss", "mae"])


def test_a_schedule_in_the_optimizer_excludes_callbacks_that_set_the_rate() -> None:
    model = model_of(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))
    callbacks = [keras.callbacks.LearningRateScheduler(lambda epoch: 0.1), keras.callbacks.ReduceLROnPlateau()]
    for callback in callbacks:
        with pytest.raises(UserError, match="which is a schedule"):
            adapted([callback], model, epochs=EPOCHS)
        adapted([callback], model_of(), epochs=EPOCHS)
    scaled = model_of()
    scaled.optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    adapted(callbacks, scaled, epochs=EPOCHS)


def test_callbacks_are_for_synchronous_jobs_and_hooks_for_all() -> None:
    hook = Hook()
    assert adapted([hook], model_of(), epochs=None, asynchronous=True) == [hook]
    with pytest.raises(UserError, match="History is a Keras callback, for `strategy: sync`"):
        adapted([hook, keras.callbacks.History()], model_of(), epochs=None, asynchronous=True)


def test_one_list_of_callbacks_takes_the_place_of_the_first() -> None:
    hooks = [Hook(), recorder(), Hook(), keras.callbacks.CallbackList([recorder(), recorder()])]
    found = adapted(hooks, model_of(), epochs=EPOCHS)
    assert [type(hook) for hook in found] == [Hook, KerasCallbacks, Hook]
    one = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batches.append(batch))
    batches: list[int] = []
    Loop(model_of(), [one], max_steps=4).run()
    assert batches == [0, 1, 2, 0]


# Epochs


@given(
    rows=st.integers(1, 40),
    batch=st.integers(1, 20),
    step=st.integers(0, 30),
    rows_read=st.integers(0, 200),
    more=st.integers(0, 60),
)
def test_epochs_are_counted_in_rows(rows: int, batch: int, step: int, rows_read: int, more: int) -> None:
    epochs = Epochs(rows, batch, step, rows_read)
    sampler = Sampler(rows, batch, progress=DataProgress(step, rows_read, ((0, 1),)))
    now = step + more
    assert Epochs.of(sampler) == epochs
    assert epochs.epoch_of(now) == sampler.epoch_of(now)
    epoch = epochs.epoch_of(now)
    first = epochs.first_step(epoch)
    assert 0 <= epochs.batch_of(now) == now - first
    if first > step:
        assert epochs.epoch_of(first) == epoch > epochs.epoch_of(first - 1)


def test_an_epoch_ends_at_the_first_step_that_has_read_all_its_rows() -> None:
    epochs = Epochs(10, 4)
    assert [epochs.epoch_of(step) for step in range(6)] == [0, 0, 0, 1, 1, 2]
    assert [epochs.batch_of(step) for step in range(6)] == [0, 1, 2, 0, 1, 0]
