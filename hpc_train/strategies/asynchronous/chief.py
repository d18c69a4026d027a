"""The chief of an asynchronous job: the first parameter server, which also saves, evaluates and reports."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hpc_train.distributed.parameter_server.clocks import mean_of
from hpc_train.distributed.parameter_server.optimizer_shard import OptimizerShard
from hpc_train.distributed.parameter_server.server import Applied, Server
from hpc_train.distributed.parameter_server.window_layout import FINISH, GPU, SPENT
from hpc_train.distributed.world import World
from hpc_train.engine.background_evaluation import BackgroundEvaluation, LastSnapshot
from hpc_train.engine.lifecycle import Lifecycle
from hpc_train.engine.loop import End, Outcome
from hpc_train.engine.nan_policy import NanPolicy
from hpc_train.engine.run_context import ChiefServices, Result, RunContext
from hpc_train.errors import JobEndedError
from hpc_train.strategies.asynchronous.losses import Losses
from hpc_train.strategies.asynchronous.remote_state import RemoteInput, RemoteState
from hpc_train.telemetry.progress import BESIDE, GAP, OWN_SECS, Rate, own_of, shares_of
from hpc_train.telemetry.reporter import REPORT_SECS, StepSummary

log = logging.getLogger(__name__)

PARTS = (*(name for name in SPENT if name not in ("all", GAP, BESIDE)), "other", GAP)
"""What a worker's time is divided into, and its gap beside them."""


class AsyncChief:
    """Serves, and does beside it what a chief does. See server.Events.

    Attributes:
        cut_short: Whether a signal ended training before the last step.
        lifecycle: What happens beside the steps.
    """

    def __init__(
        self,
        context: RunContext,
        chief: ChiefServices,
        server: Server,
        state: RemoteState,
        shard: OptimizerShard,
        losses: Losses | None = None,
    ) -> None:
        self._context, self._reporter, self._shard = context, chief.reporter, shard
        self._config, self._max_steps = context.config, context.job.train_spec.max_steps
        if losses is not None:
            state.peers.meanwhile = lambda: losses.look(self._step)
        self._lost_workers = losses
        self._server, self._state, self._roles = server, state, (roles := context.plan.roles)
        self._step = self._reported = context.plan.first_step
        batches = roles.readers if context.config.max_staleness == 0 else 1
        read = RemoteInput(context.input.current, self._step, batches)
        self.lifecycle = Lifecycle(context, World.alone(), state, read)
        self._last = LastSnapshot(self.lifecycle.checkpointing)
        self._background = BackgroundEvaluation(context, chief, self.lifecycle, self._last)
        self._policy = NanPolicy(context.config.on_nan, can_go_back=False)
        self._rate, self._trained = Rate(), 0.0
        self._losses: list[float] = []
        self._spent = [dict.fromkeys(SPENT, 0.0) for _ in range(roles.readers)]
        self._steps = [0] * roles.readers
        self._all_spent = [dict.fromkeys(SPENT, 0.0) for _ in range(roles.readers)]
        self._gpus: list[dict[str, float]] = [{} for _ in range(roles.readers)]
        self._last_save = time.monotonic()
        self._reported_at = 0.0
        self._examples, self._counting_since = [0.0] * roles.readers, math.nan
        self.cut_short = False

    def train(self) -> int:
        """Serves until all workers have left, then saves and lets the other servers go; returns the step."""
        watchdog = self._context.watchdog
        self.lifecycle.events.begin()
        with self._background:
            with self._reporter.showing():
                watchdog.at("waiting for gradients", None)
                self._server.serve(self)
                if self._lost_workers is not None:
                    self._lost_workers.end(self._step)
                self.cut_short = self._server.signalled and self._max_steps != self._step
                if self._step > self._reported:
                    self._report(last=True)
            if self._ended_early:
                self.lifecycle.decide(self._step, [self._context.hooks.stop_requested])
            self._save()
            self._state.peers.release()
            if not self.cut_short:
                self._background.finish(self._step, lambda: watchdog.at("evaluation", self._step))
        return self._step

    def finish(self, reasons: Sequence[str | None]) -> Result:
        """The last evaluation, and the exports; `reasons`: for which hooks of the ranks asked to end training."""
        self.lifecycle.take_last_state(self._step)
        end: End = "max_steps" if self._step == self._max_steps else "end of input"
        if self._ended_early:
            end = "stopped early"
        histogram = self._server.clocks.histogram
        staleness = f"staleness {mean_of(histogram):.2f} on average, {max(histogram, default=0)} at most"
        waits = [shares["input"] for spent in self._all_spent if (shares := shares_of(spent))]
        reason = next((reason for reason in reasons if reason is not None), None)
        return self.lifecycle.finish(
            Outcome(self._step, end, self._rate.mean, max(waits, default=None), staleness, reason)
        )

    @property
    def _ended_early(self) -> bool:
        """Whether a rule or a hook has ended training."""
        return self._server.asked_to_finish and self._step != self._max_steps

    def applying(self) -> None:
        self._context.watchdog.at(f"applying the gradient of step {self._step + 1}", None)

    def applied(self, update: Applied) -> None:
        self._step += 1
        self._rate.step(update.examples)
        self._trained += update.examples
        if math.isnan(self._counting_since):
            self._counting_since = time.monotonic()
        for worker, spent in zip(update.workers, update.spent, strict=True):
            self._steps[worker] += 1
            self._examples[worker] += update.examples / len(update.workers)
            self._gpus[worker] = {name: spent[name] for name in GPU if name in spent}
            for sums in (self._spent[worker], self._all_spent[worker]):
                for name in sums:
                    sums[name] += spent[name]
        if update.bad:
            self._blame([worker + self._roles.servers for worker in update.bad])
        else:
            self._policy.step_was_good()
            self._losses = [*self._losses, update.loss][-self._roles.readers :]
        last = self._step == self._max_steps
        if self._step % self._config.save_summary_steps == 0 or last:
            self._report(last)
        elif self._is_time_to_report():
            self._reporter.report(self._summary(last=False))
        every, interval = self._config.save_checkpoints_steps, self._config.checkpoint_interval_secs
        overdue = interval is not None and time.monotonic() - self._last_save >= interval
        if overdue or (every is not None and self._step % every == 0):
            self._save()
            if not last:
                self.lifecycle.schedule.saved(self._step)
        self.idle()
        self._context.watchdog.at("waiting for gradients", None)

    def _is_time_to_report(self) -> bool:
        """Progress is for people: reporting every gradient would take a few per cent of the server's time."""
        now = time.monotonic()
        if self._step % self._config.log_step_count_steps != 0 and now - self._reported_at < REPORT_SECS:
            return False
        self._reported_at = now
        return True

    def idle(self) -> None:
        if self._lost_workers is not None:
            self._lost_workers.look(self._step)
        if self._context.signals.received is not None:
            self._server.stop()
        self._background.look(self._step)
        if self.lifecycle.finish_asked and not self._server.signalled:
            self._server.stop(FINISH)

    @property
    def _loss(self) -> float:
        """The mean over the last gradients, as many as there are workers."""
        return sum(self._losses) / len(self._losses) if self._losses else math.nan

    def _save(self) -> None:
        self._context.watchdog.at("checkpoint", self._step)
        self._last.wait_until_free()
        self._rate.pause()
        self.lifecycle.save(self._step)
        self._last_save = time.monotonic()
        self._rate.resume()

    def _blame(self, ranks: list[int]) -> None:
        try:
            _, why = self._policy.step_was_bad(self._step, ranks)
        except JobEndedError:
            self.lifecycle.before_halt(self._step)
            raise
        log.warning(why)

    def _report(self, last: bool) -> None:
        clocks = self._server.clocks
        self._reported = self._step
        staleness = {
            "staleness_mean": mean_of(clocks.histogram),
            "staleness_max": float(max(clocks.histogram, default=0)),
        }
        self._reporter.status.update(
            staleness={"mean": staleness["staleness_mean"], "max": max(clocks.histogram, default=0)},
            steps_by_rank={str(w + self._roles.servers): n for w, n in enumerate(clocks.applied)},
        )
        shares = [_known(spent) for spent in self._spent]
        own = [own_of(spent) / steps if steps else None for spent, steps in zip(self._spent, self._steps, strict=True)]
        self._steps = [0] * len(own)
        self._spent = [dict.fromkeys(SPENT, 0.0) for _ in self._spent]
        now = time.monotonic()
        secs = now - self._counting_since
        rates: list[float | None] = [examples / secs if secs > 0 else None for examples in self._examples]
        self._examples, self._counting_since = [0.0] * len(rates), now
        servers: list[float | None] = [None] * self._roles.servers
        self._reporter.report(
            replace(
                self._summary(last),
                record=True,
                learning_rate=self._shard.learning_rate,
                by_rank={
                    "examples_per_sec": [*servers, *rates],
                    **{part: [*servers, *(share[part] for share in shares)] for part in PARTS},
                    OWN_SECS: [*servers, *own],
                    **{name: [*servers, *(gpu.get(name) for gpu in self._gpus)] for name in GPU if any(self._gpus)},
                },
                more=staleness,
                staleness=clocks.histogram,
                examples=self._trained,
            )
        )

    def _summary(self, last: bool) -> StepSummary:
        left = self._rate.secs_for(self._max_steps - self._step) if self._max_steps else None
        return StepSummary(self._step, self._loss, self._rate.recent, self._rate.mean, left, last)


def _known(spent: Mapping[str, float]) -> dict[str, float | None]:
    """Where a worker's time went, by part, None where unknown: no device is without a gap, so 0 is an unknown one."""
    shares = shares_of(spent)
    return dict.fromkeys(PARTS) if shares is None else {**shares, GAP: shares[GAP] or None}
