"""The training loop: steps until the end, checkpoints and evaluations in between."""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from hpc_train.data.loading.feed import Feed
from hpc_train.distributed.world import World
from hpc_train.engine.nan_policy import NanPolicy
from hpc_train.engine.run_context import RunContext
from hpc_train.engine.step_report import Flags, StepReport, TrainStep
from hpc_train.errors import JobEndedError, UserError
from hpc_train.lazy import tf
from hpc_train.model.learning_rate import rate_of
from hpc_train.resilience.watchdog import TRAINING
from hpc_train.telemetry.progress import Rate, TimeShares
from hpc_train.telemetry.reporter import StepReporter, StepSummary, by_rank

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
    """What else to log of it."""
    reason: str | None = None
    """Why it ended early, where that is known."""


class RunControl(Protocol):
    """What happens beside the steps, and whether they go on."""

    @property
    def finish_asked(self) -> bool:
        """Whether somebody on this rank asks to end training normally. Local."""

    @property
    def has_news(self) -> bool:
        """Whether this rank has something that the others are to hear. Local."""

    def before_step(self, step: int) -> None:
        """`step` is about to be made. Local."""

    def after_step(self, step: int, loss: float) -> None:
        """`step` has been made. Local."""

    def at_news(self) -> None:
        """A rank has something that all are to hear. Collective."""

    def at_checkpoint(self, step: int) -> float:
        """It is time for a checkpoint after `step`. Returns the seconds that it took. Collective."""

    def before_halt(self, step: int) -> None:
        """The numbers of `step` went bad, and the job is about to end. Collective."""


class TrainingLoop:
    """The steps of one run, from a checkpoint on.

    Args:
        world: The ranks that train. reporter: the first one's.
    """

    def __init__(
        self,
        context: RunContext,
        world: World,
        train_step: TrainStep,
        control: RunControl,
        reporter: StepReporter | None,
    ) -> None:
        self._config, self._watchdog, self._signals = context.config, context.watchdog, context.signals
        self._model, self._max_steps = context.model, context.plan.max_steps
        self._state, self._input, self._delay_secs = context.state, context.input, context.job.step_delay_secs
        self._world, self._train_step, self._control, self._reporter = world, train_step, control, reporter
        self._policy = NanPolicy(context.config.on_nan)

    def run(self, first_step: int) -> Outcome:
        """Trains from `first_step` (steps done) to `max_steps`, the input's end, or a request to stop. Collective.

        Saves nothing at its end: the caller does. Ends with "rollback", too, where the numbers went bad and `on_nan`
        asks for it; the caller takes the state back and calls again.

        Raises:
            JobEndedError: The numbers went bad, and `on_nan` ends the job; or the ranks' variables differ.
        """
        self._step, self._rate, self._times = first_step, Rate(), TimeShares()
        data = self._input.current
        shown: AbstractContextManager[object] = self._reporter.showing() if self._reporter else nullcontext()
        with Feed(data.dataset, lambda: data.failure) as self._batches, shown:
            return self._train()

    def _train(self) -> Outcome:
        batch = self._first_batch()
        end: End = "max_steps" if self._is_done else "end of input"
        self._last_save = time.monotonic()
        while batch is not None:
            following = self._next_batch()
            last_of_all = self._step + 1 == self._max_steps
            report, step_secs = self._take_step(batch, exhausted=following is None and not last_of_all)
            self._step += 1
            if not report.applied and self._left_out(report):
                return self._outcome("rollback")
            if report.applied:
                self._policy.step_was_good()
            self._control.after_step(self._step, report.loss)
            if report.raised.news:
                self._control.at_news()
            self._count(batch, step_secs, report)
            batch = None if report.raised.exhausted else following
            if last_of_all:
                end = "max_steps"
            elif report.raised.stop:
                end, batch = "signal", None
            elif report.raised.finish:
                end, batch = "stopped early", None
            elif batch is None:
                end = "end of input"
            self._report(report, last=batch is None)
            self._compare_and_save(report.raised, last=batch is None)
        return self._outcome(end)

    @property
    def _is_done(self) -> bool:
        return self._max_steps is not None and self._step >= self._max_steps

    def _outcome(self, end: End) -> Outcome:
        return Outcome(self._step, end, self._rate.mean, self._times.input_mean)

    def _first_batch(self) -> Any:
        """The first batch; None where there is nothing to do, or a rank has none. Collective."""
        self._watchdog.at("waiting for input", self._step)
        batch = None if self._is_done else next(self._batches, None)
        have = self._world.all_gather(batch is not None)
        if all(have):
            return batch
        if self._step == 0 and not self._is_done:
            rank = have.index(False) + self._world.offset
            raise UserError(f"no batch to train on for rank {rank}; give each its part")
        return None

    def _next_batch(self) -> Any:
        self._watchdog.at("waiting for input", self._step)
        return None if self._step + 1 == self._max_steps else next(self._batches, None)

    def _take_step(self, batch: Any, exhausted: bool) -> tuple[StepReport, float]:
        """The next step, and the seconds that it took. Collective."""
        step = self._step + 1
        self._watchdog.at(TRAINING, step)
        interval = self._config.checkpoint_interval_secs
        overdue = self._world.is_chief and interval is not None and time.monotonic() - self._last_save >= interval
        self._control.before_step(step)
        flags = Flags(
            stop=self._signals.received is not None,
            save=overdue,
            exhausted=exhausted,
            finish=self._control.finish_asked,
            news=self._control.has_news,
            leave_out=step in self._policy.left_out,
        )
        begun = time.perf_counter()
        if self._delay_secs:
            time.sleep(self._delay_secs)
        report = self._train_step(batch, flags)
        return report, time.perf_counter() - begun

    def _left_out(self, report: StepReport) -> bool:
        """The step was not applied: logs why; returns whether training goes back. Collective."""
        step, world = self._step, self._world
        if report.raised.leave_out:
            if self._reporter:
                self._reporter.log(logging.INFO, f"step {step}: the batch is left out")
            return False
        blamed = [rank + world.offset for rank, bad in enumerate(world.all_gather(report.to_blame)) if bad]
        try:
            action, why = self._policy.step_was_bad(step, blamed)
        except JobEndedError:
            self._control.before_halt(step)
            raise
        if self._reporter:
            self._reporter.log(logging.WARNING, why)
        return action == "rollback"

    def _count(self, batch: Any, step_secs: float, report: StepReport) -> None:
        rows = rows_of(batch)
        self._rate.step(rows * self._world.size)
        waited = self._batches.waited_secs
        self._times.step(rows, waited, step_secs, report.communication_secs, report.apply_secs)

    def _report(self, report: StepReport, last: bool) -> None:
        """Reports the step that was taken. Collective where it is for the metrics."""
        step, max_steps = self._step, self._max_steps
        record = step % self._config.save_summary_steps == 0 or last
        taken = self._world.all_gather(self._times.take()) if record else []
        if record and report.values:  # they are means since the last record
            self._model.reset_metrics()
        if self._reporter:
            self._reporter.report(
                StepSummary(
                    step,
                    report.loss,
                    self._rate.recent,
                    self._rate.mean,
                    self._rate.secs_for(max_steps - step) if max_steps else None,
                    last,
                    record,
                    rate_of(self._state.updates.first) if record else None,
                    by_rank(taken, self._world.offset),
                    {name: value for name, value in report.values.items() if name != "loss"},
                )
            )

    def _compare_and_save(self, raised: Flags, last: bool) -> None:
        """Compares the replicas, and saves, where that is due after this step. Collective."""
        step, config = self._step, self._config
        if config.check_replicas_steps and step % config.check_replicas_steps == 0:
            self._watchdog.at("comparing replicas", step)
            try:
                self._state.compare(step)
            except JobEndedError:
                self._control.before_halt(step)
                raise
        due = config.save_checkpoints_steps is not None and step % config.save_checkpoints_steps == 0
        if not last and (raised.save or due):
            self._rate.pause()
            self._times.checkpoint(self._control.at_checkpoint(step))
            self._last_save = time.monotonic()
            self._rate.resume()
            self._times.resume(self._batches.waited_secs)


def rows_of(batch: Any) -> int:
    """Rows of a batch."""
    return int(tf.nest.flatten(batch)[0].shape[0])
