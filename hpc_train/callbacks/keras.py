"""Keras callbacks in a training loop that is not Keras's: the documented calls, in Keras's order, on each rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpc_train.callbacks.hook import Hook, HookContext
from hpc_train.callbacks.hook_list import is_keras_callback
from hpc_train.data.sampling.sampler import Sampler
from hpc_train.errors import UserError, did_you_mean
from hpc_train.lazy import keras

REFUSED = {
    "ModelCheckpoint": "the job saves by itself (save_checkpoints_steps), keeps the best (best_metric) and exports it "
    "(BestExporter); for what happens to checkpoints use saving_listeners",
    "BackupAndRestore": "the job goes on from its last checkpoint by itself; start it again with the same job-dir",
    "OrbaxCheckpoint": "the job saves by itself (save_checkpoints_steps)",
    "SwapEMAWeights": "checkpoints would hold the averages in the weights' place; with use_ema the averages are taken "
    "when training has ended",
}
"""Callbacks that work against the job, and why."""

WRITERS = ("CSVLogger", "TensorBoard", "RemoteMonitor", "ProgbarLogger")
"""Those that write somewhere run on the chief alone."""

SET_THE_RATE = ("LearningRateScheduler", "ReduceLROnPlateau")

TRAIN_BATCH = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


@dataclass(frozen=True)
class Epochs:
    """Passes over the data, counted in steps. Rows are a stream without gaps: an epoch need not be whole steps long.

    Args:
        rows: Of the data; `global_batch`: those that all ranks read in a step.
        step, rows_read: Where this run goes on; before it, batches may have had another size.
    """

    rows: int
    global_batch: int
    step: int = 0
    rows_read: int = 0

    @classmethod
    def of(cls, sampler: Sampler) -> Epochs:
        """Those of a job that reads in the order of `sampler`."""
        place = sampler.progress
        return cls(sampler.rows, sampler.batch_size * sampler.size, place.step, place.rows_read)

    def epoch_of(self, step: int) -> int:
        """Epochs that are over when `step` steps are done, and so the number of the one that the next step is in."""
        return max(0, self.rows_read + (step - self.step) * self.global_batch) // self.rows

    def first_step(self, epoch: int) -> int:
        """Steps that are done when `epoch` begins."""
        return max(0, self.step - (self.rows_read - epoch * self.rows) // self.global_batch)

    def batch_of(self, step: int) -> int:
        """The number, within its epoch, of the batch after `step` steps."""
        return step - self.first_step(self.epoch_of(step))


class KerasCallbacks(Hook):
    """A hook that makes a `keras.callbacks.CallbackList` of `callbacks` (see adapted).

    `on_epoch_end` comes just before the next step, or at the end, so that its logs have what was evaluated after the
    epoch's last step. They are the same on all ranks: `loss`, the mean over ranks and the epoch's steps in this run,
    and `val_<metric>` where the first evaluation set was evaluated since the epoch before.

    Args:
        epochs: None: an epoch ends with each evaluation of the first set.
        first_epoch: Evaluations of the runs before, where `epochs` is None.
        eval_name: Of the first evaluation set.
    """

    def __init__(
        self, callbacks: Sequence[Any], epochs: Epochs | None, first_epoch: int = 0, eval_name: str | None = None
    ) -> None:
        self._given, self._epochs, self._eval_name = list(callbacks), epochs, eval_name
        self._epoch, self._batch = first_epoch, -1
        self._step: int | None = None
        self._in_epoch = self._over = self._ended = self._testing = False
        self._loss_sum, self._losses = 0.0, 0
        self._val_logs: dict[str, float] = {}
        self._logs: dict[str, float] = {}

    def begin(self, context: HookContext) -> None:
        mine = [c for c in self._given if context.is_chief or not writes(c)]
        self._context, self._model = context, context.model
        last = context.max_steps
        self._list = keras.callbacks.CallbackList(
            mine,
            add_history=False,
            add_progbar=False,
            model=self._model,
            verbose=0,
            epochs=self._epochs.epoch_of(last - 1) + 1 if self._epochs and last else None,
            steps=-(-self._epochs.rows // self._epochs.global_batch) if self._epochs else None,
        )
        self._train_batches = any(_overrides(c, TRAIN_BATCH) for c in mine)
        self._test_begins = any(_overrides(c, ("on_test_batch_begin",)) for c in mine)
        self._test_ends = any(_overrides(c, ("on_test_batch_end",)) for c in mine)
        self._model.stop_training = False
        self._step = context.first_step
        self._list.on_train_begin()
        self._see_whether_to_stop()

    def before_step(self, step: int) -> None:
        if self._over:
            self._end_epoch()
        if self._model.stop_training:  # of the step that training ends with, Keras would know nothing
            return
        epoch = self._epochs.epoch_of(step - 1) if self._epochs else self._epoch
        if not self._in_epoch or epoch != self._epoch:
            self._begin_epoch(epoch, step)
        elif step - 1 != self._step:  # a rollback
            self._count_from(step)
        self._batch += 1
        self._step = step
        if self._train_batches:
            self._list.on_train_batch_begin(self._batch)

    def after_step(self, step: int, loss: float) -> None:
        if not self._in_epoch:
            return
        if math.isfinite(loss):
            self._loss_sum, self._losses = self._loss_sum + loss, self._losses + 1
        if self._train_batches:
            # As in Keras, the mean so far; what is not finite is shown as it is.
            self._list.on_train_batch_end(self._batch, {"loss": self._mean() if math.isfinite(loss) else loss})
            self._see_whether_to_stop()
        self._over = self._model.stop_training or (
            self._epochs is not None and self._epochs.epoch_of(step) > self._epoch
        )

    def before_evaluate(self, step: int, name: str | None) -> None:
        if name == self._eval_name and not self._ended:
            self._testing = True
            self._list.on_test_begin()

    def before_evaluation_batch(self, name: str | None, batch: int) -> None:
        if self._test_begins and self._testing:
            self._list.on_test_batch_begin(batch)

    def after_evaluation_batch(self, name: str | None, batch: int) -> None:
        if self._test_ends and self._testing:  # the logs are of this rank's batches alone
            self._list.on_test_batch_end(batch, self._model.get_metrics_result())

    def after_evaluate(self, step: int, name: str | None, metrics: Mapping[str, float]) -> None:
        if name != self._eval_name or self._ended:
            return
        if self._testing:
            self._testing = False
            self._list.on_test_end(dict(metrics))
        self._val_logs = {f"val_{key}": value for key, value in metrics.items()}
        if self._epochs is None and self._in_epoch:
            self._over = True
        self._see_whether_to_stop()

    def end(self, step: int) -> None:
        if self._in_epoch:
            self._end_epoch()
        self._finish()

    def interrupted(self, step: int) -> None:
        if self._over:
            self._end_epoch()
        self._finish()

    def _begin_epoch(self, epoch: int, step: int) -> None:
        self._epoch, self._in_epoch = epoch, True
        self._count_from(step)
        self._list.on_epoch_begin(epoch)
        self._see_whether_to_stop()

    def _count_from(self, step: int) -> None:
        self._loss_sum, self._losses = 0.0, 0
        self._batch = (self._epochs.batch_of(step - 1) if self._epochs else 0) - 1

    def _end_epoch(self) -> None:
        self._logs = {"loss": self._mean(), **self._val_logs}
        self._val_logs = {}
        self._list.on_epoch_end(self._epoch, self._logs)
        self._in_epoch = self._over = False
        self._see_whether_to_stop()
        self._epoch += 1

    def _finish(self) -> None:
        if not self._ended:
            self._ended = True
            self._list.on_train_end(self._logs or None)

    def _mean(self) -> float:
        return self._loss_sum / self._losses if self._losses else math.nan

    def _see_whether_to_stop(self) -> None:
        if self._model.stop_training:
            stopped = [c for c in self._list.callbacks if getattr(c, "stopped_epoch", 0) > 0]
            who = f"{type(stopped[0]).__name__} on {stopped[0].monitor}" if stopped else "a callback"
            self._context.request_stop(f"{who} set model.stop_training in epoch {self._epoch}")


def writes(callback: Any) -> bool:
    """Whether it is one of those that run on the chief alone."""
    return getattr(callback, "chief_only", False) or isinstance(callback, _kinds(WRITERS))


def adapted(
    hooks: Sequence[Any],
    model: keras.Model,
    *,
    epochs: Epochs | None,
    first_epoch: int = 0,
    eval_name: str | None = None,
    metric_names: Sequence[str] = (),
    asynchronous: bool = False,
) -> list[Any]:
    """`hooks` with all Keras callbacks among them as one KerasCallbacks, in the place of the first. Local.

    Args:
        epochs, first_epoch, eval_name: See KerasCallbacks.
        metric_names: What the first evaluation set gives; without them no callback's `monitor` is checked.

    Raises:
        UserError: A callback cannot work in this job.
    """
    callbacks = [c for hook in hooks if is_keras_callback(hook) for c in getattr(hook, "callbacks", None) or [hook]]
    if not callbacks:
        return list(hooks)
    if asynchronous:
        raise UserError(
            f"hooks: {type(callbacks[0]).__name__} is a Keras callback, for `strategy: sync`: in an asynchronous job "
            "optimizer and weights are the parameter servers'; an ht.Hook works there"
        )
    for callback in callbacks:
        _check(callback, model)
    if metric_names and all(type(c).__module__.startswith("keras.") for c in callbacks):  # others may add to the logs
        for callback in callbacks:
            _check_monitor(callback, metric_names)
    one = KerasCallbacks(callbacks, epochs, first_epoch, eval_name)
    first = next(number for number, hook in enumerate(hooks) if is_keras_callback(hook))
    return [*hooks[:first], one, *(hook for hook in hooks[first:] if not is_keras_callback(hook))]


def _check(callback: Any, model: Any) -> None:
    name = type(callback).__name__
    for refused, reason in REFUSED.items():
        if isinstance(callback, _kinds((refused,))):
            raise UserError(f"hooks: {name} is not allowed: {reason}")
    if isinstance(callback, _kinds(SET_THE_RATE)) and not isinstance(model.optimizer.learning_rate, keras.Variable):
        raise UserError(
            f"hooks: {name} sets the optimizer's learning rate, which is a schedule; compile the model with a number "
            f"as learning_rate, or leave {name} out"
        )


def _check_monitor(callback: Any, metric_names: Sequence[str]) -> None:
    monitor = getattr(callback, "monitor", None)
    allowed = ["loss", *(f"val_{name}" for name in metric_names)]
    known = monitor in [*allowed, "learning_rate"]
    if isinstance(callback, _kinds(("EarlyStopping", "ReduceLROnPlateau"))) and not known:
        raise UserError(
            f"hooks: {type(callback).__name__} monitors {monitor!r}, which is not known; "
            f"{did_you_mean(str(monitor), allowed)}allowed: {', '.join(allowed)} (of training there is the loss alone)"
        )


def _kinds(names: Sequence[str]) -> tuple[type, ...]:
    """Keras's callbacks of these names; not every release has all of them."""
    known = [getattr(keras.callbacks, name, None) for name in names]
    return tuple(kind for kind in known if kind is not None)


def _overrides(callback: Any, methods: Sequence[str]) -> bool:
    base = keras.callbacks.Callback
    return any(getattr(getattr(callback, m), "__func__", None) is not getattr(base, m) for m in methods)
