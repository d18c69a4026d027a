"""The training loop: steps until the end, checkpoints and evaluations in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from hpc_train.cluster.world import World
from hpc_train.config.specs import RunConfig
from hpc_train.errors import JobEndedError, UserError
from hpc_train.estimator.feed import Feed
from hpc_train.estimator.health import Health
from hpc_train.estimator.train_step import Flags, TrainStep
from hpc_train.monitoring.metrics import MetricsWriter
from hpc_train.monitoring.progress import InputWait, Rate, TrainingProgress
from hpc_train.monitoring.status import StatusFile
from hpc_train.resilience.signals import StopSignals
from hpc_train.resilience.watchdog import Watchdog

MUCH_INPUT_WAIT = 0.1
"""Part of the time above which waiting for input is worth a warning."""

End = Literal["max_steps", "end of input", "signal", "rollback"]


@dataclass(frozen=True)
class Outcome:
    """Where training ended, and why."""

    step: int
    end: End
    examples_per_sec: float
    input_wait: float | None
    """Part of this rank's time that it waited for input; None before the second step."""
    more: str = ""
    """What else to tell of it."""


@dataclass
class Reporting:
    """Where the chief tells of progress; the other ranks have none."""

    metrics: MetricsWriter
    status: StatusFile
    progress: TrainingProgress
    learning_rate: Callable[[], float]
    input_advice: str
    input_wait: float | None = None
    told_of_input_wait: bool = False


class Events(Protocol):
    """What happens beside the steps. All are collective."""

    def at_checkpoint(self, step: int, last: bool) -> None:
        """It is time for a checkpoint after `step`, which may be the last one."""
        ...

    def at_comparison(self, step: int) -> None:
        """It is time to compare the ranks' variables."""
        ...

    def before_halt(self, step: int) -> None:
        """All ranks are about to end the job."""
        ...


def train(
    world: World,
    config: RunConfig,
    batches: Feed,
    train_step: TrainStep,
    first_step: int,
    max_steps: int | None,
    events: Events,
    signals: StopSignals,
    health: Health,
    watchdog: Watchdog,
    reporting: Reporting | None,
) -> Outcome:
    """Trains from `first_step` (steps already done) to `max_steps`, the end of the input, or a signal. Collective.

    Ends with "rollback", too, where `health` decides so; the caller takes the state back and calls again.

    Raises:
        JobEndedError: The numbers went bad, and `health` ends the job.
    """
    step, rate, wait = first_step, Rate(), InputWait()
    shown: AbstractContextManager[object] = reporting.progress if reporting else nullcontext()
    with shown:
        done = max_steps is not None and step >= max_steps
        watchdog.at("waiting for input", step)
        batch = None if done else next(batches, None)
        have = world.all_gather(batch is not None)
        if not all(have):
            batch = None
            if step == 0:
                raise UserError(f"no batch to train on for rank {have.index(False)}; give each its part")
        end: End = "max_steps" if done else "end of input"
        last_save = time.monotonic()
        while batch is not None:
            last_of_all = step + 1 == max_steps
            watchdog.at("waiting for input", step)
            following = None if last_of_all else next(batches, None)
            watchdog.at("training step", step + 1)
            overdue = (
                world.is_chief
                and config.checkpoint_interval_secs is not None
                and time.monotonic() - last_save >= config.checkpoint_interval_secs
            )
            flags = Flags(
                stop=signals.received is not None,
                save=overdue,
                exhausted=following is None and not last_of_all,
                leave_out=step + 1 in health.left_out,
            )
            report = train_step(batch, flags)
            step += 1
            if report.applied:
                health.step_was_good()
            elif not report.raised.leave_out:
                blamed = [rank for rank, bad in enumerate(world.all_gather(report.to_blame)) if bad]
                try:
                    action, told = health.step_was_bad(step, blamed)
                except JobEndedError:
                    events.before_halt(step)
                    raise
                if reporting:
                    reporting.progress.say(f"warning: {told}")
                if action == "rollback":
                    return Outcome(step, "rollback", rate.mean, wait.mean)
            elif reporting:
                reporting.progress.say(f"step {step}: the batch is left out")
            rate.step(rows_of(batch) * world.size)
            wait.step(batches.waited_secs)
            batch = None if report.raised.exhausted else following
            if report.raised.stop and not last_of_all:
                end, batch = "signal", None
            elif batch is None:
                end = "max_steps" if last_of_all else "end of input"
            waits = world.all_gather(wait.take()) if step % config.save_summary_steps == 0 or batch is None else []
            if reporting:
                tell_step(reporting, step, max_steps, report.loss, rate, waits, batch is None)
            if config.check_replicas_steps and step % config.check_replicas_steps == 0:
                events.at_comparison(step)
            steps_due = config.save_checkpoints_steps is not None and step % config.save_checkpoints_steps == 0
            if report.raised.save or steps_due or batch is None:
                rate.pause()
                events.at_checkpoint(step, batch is None)
                last_save = time.monotonic()
                rate.resume()
                wait.resume(batches.waited_secs)
    return Outcome(step, end, rate.mean, wait.mean)


def rows_of(batch: Any) -> int:
    """Rows of a batch."""
    import tensorflow as tf

    return int(tf.nest.flatten(batch)[0].shape[0])


def tell_step(
    reporting: Reporting,
    step: int,
    max_steps: int | None,
    loss: float,
    rate: Rate,
    waits: Sequence[float | None],
    last: bool,
    more: Mapping[str, float] | None = None,
    histograms: Mapping[str, Mapping[int, int]] | None = None,
) -> None:
    """Tells of `step`: in the progress, in status.json, and in the metrics where `waits` are given.

    Args:
        waits: Part of its time that each rank has waited for input; None where unknown.
        more: Further numbers for the metrics; histograms: counts by value.
    """
    if waits:
        values = {
            "loss": loss,
            "examples_per_sec": rate.recent,
            "learning_rate": reporting.learning_rate(),
            **(more or {}),
        }
        known = [(share, rank) for rank, share in enumerate(waits) if share is not None]
        if known:
            share, rank = max(known)
            values["input_wait"] = reporting.input_wait = share
            reporting.status.update(input_wait=share)
            if share > MUCH_INPUT_WAIT and not reporting.told_of_input_wait:
                reporting.told_of_input_wait = True
                reporting.progress.say(
                    f"warning: rank {rank} waited for input {share:.0%} of the time up to step {step}; "
                    f"{reporting.input_advice}"
                )
        reporting.metrics.record("train", step, values, histograms)
    left = rate.secs_for(max_steps - step) if max_steps else None
    reporting.status.update(step=step, loss=loss, examples_per_sec=rate.mean, secs_left=left)
    reporting.progress.update(step, loss, rate.recent, reporting.input_wait, left, last)
