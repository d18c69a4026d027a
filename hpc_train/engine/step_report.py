"""What a training step is asked and what it reports: flags that ranks raise, the loss, and where the time went."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from functools import cache, partial
from typing import Any

import numpy as np

from hpc_train.lazy import tf

TrainStep = Callable[[Any, "Flags"], Callable[[], "StepReport"]]
"""Dispatches a step with a batch; what it returns waits for the step, and gives its report. Both are collective."""


@dataclass(frozen=True)
class Flags:
    """What a rank signals to the others with a step: each is known to all of them once any has raised it.

    Attributes:
        stop: A signal asks to stop. save: the chief's clock asks for a checkpoint.
        exhausted: This rank has no further batch. finish: a hook or a rule asks to end training normally.
        news: The first rank has something to send to the others.
        leave_out: The batch is not to change the model.
    """

    stop: bool = False
    save: bool = False
    exhausted: bool = False
    finish: bool = False
    news: bool = False
    leave_out: bool = False


@dataclass(frozen=True)
class StepReport:
    """What a step reports. All but `to_blame` and the seconds are the same on all ranks.

    Attributes:
        loss: Mean over the ranks, with loss weights and regularisation.
        raised: The flags that any rank raised.
        applied: Whether the update was made.
        to_blame: Whether this rank's own loss or gradients were not finite.
        communication_secs: From when this rank had its own gradients until it had the averages: so with the time that
            it waited for slower ranks. On a GPU, the host's clock counts what is left of computing the gradients, too.
            0 where one rank trains alone.
        apply_secs: From then until the step's end. 0 on a GPU, which the host's clock does not follow, and for a model
            with a train_step of its own.
        values: What that train_step has returned, by name: means over the ranks.
        begun_at, done_at: When the step's first operation ran, and when its last one was over or, on a GPU, its report
            had come to the host; seconds since 1970.

    All times are 0 under TensorFlow's op determinism, which allows a graph no clock.
    """

    loss: float
    raised: Flags
    applied: bool
    to_blame: bool
    communication_secs: float = 0.0
    apply_secs: float = 0.0
    values: Mapping[str, float] = field(default_factory=dict)
    begun_at: float = 0.0
    done_at: float = 0.0


def reporting(
    step: Callable[[Any, tf.Tensor], tuple[tf.Tensor, tf.Tensor]], names: Sequence[str] | None = None
) -> TrainStep:
    """The compiled `step` with flags and what it reports as values.

    Args:
        step: Returns the report, and when it has begun, has its own gradients, has the averages and is done
            (see now_that).
        names: Of the numbers that its report ends with, known once it was called. None: there are none.
    """
    on_gpu = bool(tf.config.list_logical_devices("GPU"))

    @cache
    def as_tensor(flags: Flags) -> tf.Tensor:
        return tf.constant(np.array(astuple(flags), np.float32))

    def dispatch(batch: Any, flags: Flags) -> Callable[[], StepReport]:
        return partial(read, *step(batch, as_tensor(flags)))

    def read(report: tf.Tensor, times: tf.Tensor) -> StepReport:
        found, arrived_at = to_host(report)
        loss, *numbers = found.tolist()
        begun, computed, there, done = times.numpy().tolist()
        count = len(fields(Flags))
        raised, (applied, to_blame), more = numbers[:count], numbers[count : count + 2], numbers[count + 2 :]
        return StepReport(
            loss,
            Flags(*(flag > 0 for flag in raised)),
            applied > 0,
            to_blame > 0,
            communication_secs=max(0.0, there - computed),
            apply_secs=0.0 if on_gpu or names is not None else max(0.0, done - there),
            values=dict(zip(names or (), more, strict=True)),
            begun_at=begun,
            done_at=arrived_at if arrived_at and done else done,
        )

    return dispatch


def to_host(report: tf.Tensor) -> tuple[np.ndarray, float | None]:
    """The numbers of a step's report, `[n]` float32, and when they came from a device (s since 1970); None: from none.

    Here alone a device is waited for.
    """
    numbers = report.numpy()
    return numbers, time.time() if "GPU" in report.device else None


def now_that(there: list[tf.Tensor]) -> tf.Tensor:
    """The clock (float64, s) once all of `there` are computed; 0 under op determinism, which allows no clock."""
    from tensorflow.python.framework.config import is_op_determinism_enabled

    with tf.control_dependencies(there):
        return tf.zeros([], tf.float64) if is_op_determinism_enabled() else tf.timestamp()
