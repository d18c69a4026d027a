"""The training loop: steps until the end, checkpoints and evaluations in between."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, Protocol

from hpc_train.data.loading.feed import Feed
from hpc_train.distributed.devices import peak_memory
from hpc_train.distributed.world import World
from hpc_train.engine.nan_policy import NanPolicy
from hpc_train.engine.run_context import RunContext
from hpc_train.engine.step_report import Flags, StepReport, TrainStep
from hpc_train.engine.steps_in_flight import Stream, depth_of, drains_after
from hpc_train.errors import JobEndedError, UserError
from hpc_train.lazy import tf
from hpc_train.model.learning_rate import rate_of
from hpc_train.resilience.watchdog import TRAINING
from hpc_train.telemetry.cpu_clock import CpuClock
from hpc_train.telemetry.progress import Rate, Stopwatch, TimeShares
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
        self._context = context
        self._config, self._watchdog, self._signals = context.config, context.watchdog, context.signals
        self._model, self._max_steps = context.model, context.plan.max_steps
        self._state, self._input, self._delay_secs = context.state, context.input, context.job.step_delay_secs
        self._world, self._train_step, self._control, self._reporter = world, train_step, control, reporter
        self._policy = NanPolicy(context.config.on_nan)
        self._examples, self._clock, self._beside = 0, CpuClock(world.cores), Stopwatch()

    def run(self, first_step: int) -> Outcome:
        """Trains from `first_step` (steps done) to `max_steps`, the input's end, or a request to stop. Collective.

        Saves nothing at its end: the caller does. Ends with "rollback", too, where the numbers went bad and `on_nan`
        asks for it; the caller takes the state back and calls again.

        Raises:
            JobEndedError: The numbers went bad, and `on_nan` ends the job; or the ranks' variables differ.
        """
        self._depth = depth_of(self._context, self._world)
        self._stream, self._drains = Stream(self._depth), drains_after(self._config)
        self._step = self._dispatched = first_step
        self._in_flight: deque[_Dispatched] = deque()
        self._rate, self._times, self._copies = Rate(), TimeShares(), self._context.plan.roles.model
        self._last_step = self._max_steps
        self._end: End = "end of input"
        self._save_asked, self._done_at = False, 0.0
        data = self._input.current
        shown: AbstractContextManager[object] = self._reporter.showing() if self._reporter else nullcontext()
        with Feed(data.dataset, lambda: data.failure) as self._batches, shown:
            return self._train()

    def _train(self) -> Outcome:
        self._look_ahead()
        self._last_save = time.monotonic()
        while True:
            while self._may_dispatch:
                self._dispatch()
            if not self._in_flight:
                break
            if not self._take_step():
                return self._outcome("rollback")
        is_done = self._max_steps is not None and self._step >= self._max_steps
        return self._outcome("max_steps" if is_done else self._end)

    def _outcome(self, end: End) -> Outcome:
        return Outcome(self._step, end, self._rate.mean, self._times.input_mean)

    def _look_ahead(self) -> None:
        """Takes the first batches; training ends where a rank has no more. Collective."""
        self._ahead: deque[Any] = deque()
        self._fetch()
        fewest = self._world.lowest(len(self._ahead))
        if fewest <= self._depth:
            self._end_after(self._step + fewest)
        lacking = self._world.first(None if self._ahead else self._world.rank)
        if self._step == 0 and self._last_step == 0 != self._max_steps and lacking is not None:
            raise UserError(f"no batch to train on for rank {lacking + self._world.offset}; give each its part")

    def _fetch(self) -> bool:
        """Takes batches for the next step and as many more as may be in flight; whether they are all there."""
        wanted = self._depth + 1
        if self._max_steps is not None:
            wanted = max(0, min(wanted, self._max_steps - self._dispatched))
        self._watchdog.at("waiting for input", self._dispatched)
        self._ahead.extend(islice(self._batches, wanted - len(self._ahead)))
        return len(self._ahead) == wanted

    def _end_after(self, step: int) -> None:
        self._last_step = step if self._last_step is None else min(step, self._last_step)

    @property
    def _is_last(self) -> bool:
        return self._last_step is not None and self._dispatched >= self._last_step

    @property
    def _may_dispatch(self) -> bool:
        """Whether the next step may be dispatched now; the same on all ranks."""
        if self._is_last or len(self._in_flight) > self._depth:
            return False
        return not self._in_flight or not (self._save_asked or self._drains(self._dispatched))

    def _dispatch(self) -> None:
        """Dispatches the next step. Collective."""
        batch, step = self._ahead.popleft(), self._dispatched + 1
        self._dispatched = step
        exhausted = not self._fetch()
        self._watchdog.at(TRAINING, step)
        interval = self._config.checkpoint_interval_secs
        overdue = self._world.is_chief and interval is not None and time.monotonic() - self._last_save >= interval
        if not self._in_flight:
            with self._beside:
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
        with self._stream.dispatching():
            report = self._train_step(batch, flags)
        self._in_flight.append(_Dispatched(rows_of(batch), begun, report))

    def _take_step(self) -> bool:
        """Takes note of the oldest step in flight; returns False where training goes back. Collective."""
        taken = self._in_flight.popleft()
        self._step += 1
        self._watchdog.at(TRAINING, self._step)
        report = taken.report()
        read_at = time.perf_counter()
        if not report.applied and self._left_out(report):
            return False
        if report.applied:
            self._policy.step_was_good()
        with self._beside:
            self._control.after_step(self._step, report.loss)
            if report.raised.news:
                self._control.at_news()
        self._count(taken.rows, read_at - taken.begun, report)
        self._follow(report.raised)
        last = self._is_last and not self._in_flight
        with self._beside:
            self._report(report, last)
            self._compare()
        self._save(last)
        if self._in_flight:  # whose turn it is now
            with self._beside:
                self._control.before_step(self._step + 1)
        return True

    def _follow(self, raised: Flags) -> None:
        """Does as the ranks have agreed upon with a step: further ones may be in flight, and are taken, too."""
        if raised.exhausted:
            self._end_after(self._step + self._depth)
        if raised.stop or raised.finish:
            self._end_after(self._dispatched)
            if self._end != "signal":
                self._end = "signal" if raised.stop else "stopped early"
        self._save_asked |= raised.save

    def _finish_in_flight(self) -> None:
        """Waits for the steps in flight, which nothing follows from. Collective."""
        while self._in_flight:
            self._in_flight.popleft().report()

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
            self._finish_in_flight()
            self._control.before_halt(step)
            raise
        if self._reporter:
            self._reporter.log(logging.WARNING, why)
        if action == "rollback":
            self._finish_in_flight()
        return action == "rollback"

    def _count(self, rows: int, step_secs: float, report: StepReport) -> None:
        """Counts a step that was over `step_secs` after it was dispatched, by the host's clock."""
        examples = rows * self._world.size // self._copies
        self._examples += examples
        self._rate.step(examples)
        waited, gap_secs = self._batches.waited_secs, None
        if report.done_at:
            begun_at = max(report.begun_at, self._done_at)
            gap_secs = begun_at - self._done_at if self._done_at else None
            step_secs, self._done_at = report.done_at - begun_at, report.done_at
        beside_secs, parts = self._beside.take(), (report.communication_secs, report.apply_secs)
        self._times.step(rows, waited, step_secs, *parts, gap_secs, beside_secs)

    def _report(self, report: StepReport, last: bool) -> None:
        """Reports the step that was taken. Collective where it is for the metrics."""
        step, max_steps = self._step, self._max_steps
        record = step % self._config.save_summary_steps == 0 or last
        own = self._times.take() if record else None
        if own:
            context = self._context
            own = {**own, **peak_memory(), **context.energy.taken(), **self._clock.taken(), **context.staged()}
        taken = self._world.gather(own) if record else []
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
                    by_rank(taken or [], self._world.offset),
                    {name: value for name, value in report.values.items() if name != "loss"},
                    examples=self._examples,
                )
            )

    def _compare(self) -> None:
        """Compares the replicas where that is due after this step. Collective."""
        step, config = self._step, self._config
        if config.check_replicas_steps and step % config.check_replicas_steps == 0:
            self._watchdog.at("comparing replicas", step)
            try:
                self._state.compare(step)
            except JobEndedError:
                self._control.before_halt(step)
                raise

    def _save(self, last: bool) -> None:
        """Saves where that is due after this step. Collective."""
        step, config = self._step, self._config
        due = config.save_checkpoints_steps is not None and step % config.save_checkpoints_steps == 0
        asked = self._save_asked and not self._in_flight
        if not last and (asked or due):
            self._save_asked, self._done_at = False, 0.0
            self._rate.pause()
            self._times.checkpoint(self._control.at_checkpoint(step))
            self._last_save = time.monotonic()
            self._rate.resume()
            self._times.resume(self._batches.waited_secs)
            self._beside.take()


@dataclass(frozen=True)
class _Dispatched:
    """A step in flight: this rank's rows, time.perf_counter() when it was dispatched, and what waits for its report."""

    rows: int
    begun: float
    report: Callable[[], StepReport]


def rows_of(batch: Any) -> int:
    """Rows of a batch."""
    return int(tf.nest.flatten(batch)[0].shape[0])
