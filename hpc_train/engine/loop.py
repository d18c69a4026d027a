"""The training loop: steps until the end, checkpoints and evaluations in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from hpc_train.config.specs import RunConfig
from hpc_train.data.loading.feed import Feed
from hpc_train.distributed.world import World
from hpc_train.engine.nan_policy import Health
from hpc_train.engine.train_step import Flags, TrainStep
from hpc_train.errors import JobEndedError, UserError
from hpc_train.resilience.signals import StopSignals
from hpc_train.resilience.watchdog import Watchdog
from hpc_train.telemetry.progress import Rate, TimeShares
from hpc_train.telemetry.reporter import Teller, Told, by_rank

End = Literal["max_steps", "end of input", "stopped early", "signal", "rollback"]


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
    reason: str | None = None
    """Why it ended early, where that is known."""


class Events(Protocol):
    """What happens beside the steps."""

    @property
    def finish_asked(self) -> bool:
        """Whether somebody on this rank asks to end training normally. Local."""
        ...

    @property
    def has_news(self) -> bool:
        """Whether this rank has something to tell the others. Local."""
        ...

    def before_step(self, step: int) -> None:
        """`step` is about to be made. Local."""
        ...

    def after_step(self, step: int, loss: float) -> None:
        """`step` has been made. Local."""
        ...

    def at_news(self) -> None:
        """A rank has something to tell. Collective."""
        ...

    def at_checkpoint(self, step: int) -> float:
        """It is time for a checkpoint after `step`. Returns the seconds that it took. Collective."""
        ...

    def at_comparison(self, step: int) -> None:
        """It is time to compare the ranks' variables. Collective."""
        ...

    def before_halt(self, step: int) -> None:
        """The numbers of `step` went bad, and the job is about to end. Collective."""
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
    teller: Teller | None,
    learning_rate: Callable[[], float],
) -> Outcome:
    """Trains from `first_step` (steps done) to `max_steps`, the end of the input, or a wish to stop. Collective.

    Saves nothing at its end: the caller does. Ends with "rollback", too, where `health` decides so; the caller takes
    the state back and calls again.

    Args:
        world: The ranks that train. teller: the first one's.

    Raises:
        JobEndedError: The numbers went bad, and `health` ends the job.
    """
    step, rate, times = first_step, Rate(), TimeShares()
    shown: AbstractContextManager[object] = teller.showing() if teller else nullcontext()
    with shown:
        done = max_steps is not None and step >= max_steps
        watchdog.at("waiting for input", step)
        batch = None if done else next(batches, None)
        have = world.all_gather(batch is not None)
        if not all(have):
            batch = None
            if step == 0 and not done:
                rank = have.index(False) + world.offset
                raise UserError(f"no batch to train on for rank {rank}; give each its part")
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
            events.before_step(step + 1)
            flags = Flags(
                stop=signals.received is not None,
                save=overdue,
                exhausted=following is None and not last_of_all,
                finish=events.finish_asked,
                news=events.has_news,
                leave_out=step + 1 in health.left_out,
            )
            begun = time.perf_counter()
            report = train_step(batch, flags)
            step_secs = time.perf_counter() - begun
            step += 1
            if report.applied:
                health.step_was_good()
            elif not report.raised.leave_out:
                blamed = [rank + world.offset for rank, bad in enumerate(world.all_gather(report.to_blame)) if bad]
                try:
                    action, told = health.step_was_bad(step, blamed)
                except JobEndedError:
                    events.before_halt(step)
                    raise
                if teller:
                    teller.say(f"warning: {told}")
                if action == "rollback":
                    return Outcome(step, "rollback", rate.mean, times.input_mean)
            elif teller:
                teller.say(f"step {step}: the batch is left out")
            events.after_step(step, report.loss)
            if report.raised.news:
                events.at_news()
            rows = rows_of(batch)
            rate.step(rows * world.size)
            times.step(rows, batches.waited_secs, step_secs, report.communication_secs, report.apply_secs)
            batch = None if report.raised.exhausted else following
            if last_of_all:
                end = "max_steps"
            elif report.raised.stop:
                end, batch = "signal", None
            elif report.raised.finish:
                end, batch = "stopped early", None
            elif batch is None:
                end = "end of input"
            record = step % config.save_summary_steps == 0 or batch is None
            taken = world.all_gather(times.take()) if record else []
            if teller:
                teller.tell(
                    Told(
                        step,
                        report.loss,
                        rate.recent,
                        rate.mean,
                        rate.secs_for(max_steps - step) if max_steps else None,
                        batch is None,
                        record,
                        learning_rate() if record else None,
                        by_rank(taken, world.offset),
                    )
                )
            if config.check_replicas_steps and step % config.check_replicas_steps == 0:
                events.at_comparison(step)
            steps_due = config.save_checkpoints_steps is not None and step % config.save_checkpoints_steps == 0
            if batch is not None and (report.raised.save or steps_due):
                rate.pause()
                times.checkpoint(events.at_checkpoint(step))
                last_save = time.monotonic()
                rate.resume()
                times.resume(batches.waited_secs)
    return Outcome(step, end, rate.mean, times.input_mean)


def rows_of(batch: Any) -> int:
    """Rows of a batch."""
    import tensorflow as tf

    return int(tf.nest.flatten(batch)[0].shape[0])
