"""A worker of a job with a dedicated chief: it trains, and the first of them, the lead, speaks to the chief."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict

import numpy as np

from hpc_train.distributed.allreduce import GradientAllreduce
from hpc_train.distributed.channel import Channel, Message
from hpc_train.distributed.world import World
from hpc_train.engine.checkpointing import LONG_WAIT_SECS
from hpc_train.engine.loop import Outcome
from hpc_train.engine.run_context import RunContext
from hpc_train.model import rng_state
from hpc_train.resilience.signals import signal_of_any
from hpc_train.strategies.synchronous.remote_state import snapshot_message
from hpc_train.strategies.synchronous.strategy import train_through
from hpc_train.telemetry.reporter import REPORT_SECS, StepSummary


class DedicatedWorker:
    """Trains. See loop.RunControl.

    Args:
        lead: What the first worker does besides; None on the others.
    """

    def __init__(self, context: RunContext, workers: World, allreduce: GradientAllreduce, lead: Lead | None) -> None:
        self._context, self._workers, self._allreduce, self._lead = context, workers, allreduce, lead
        self._at_hand = context.plan.restored_step

    def train(self) -> None:
        """Trains to the end; the chief then has the last state, and knows why it is the last. Collective."""
        context, hooks = self._context, self._context.hooks
        context.state.reserve()
        if context.config.on_nan == "rollback" and context.plan.restored_step is None:
            self._save(0)
        hooks.begin()
        outcome = train_through(context, self._workers, self._allreduce, self, self._lead, self._go_back)
        signal = None
        if outcome.end == "signal":
            self._save(outcome.step)
            hooks.interrupted(outcome.step)
            signal = signal_of_any(self._workers, context.signals.received)
        else:
            hooks.end(outcome.step)
            reasons = [self._workers.first(hooks.stop_requested)]
            if outcome.end == "stopped early" and self._lead:
                self._lead.send_decision(outcome.step, reasons)
            self._save(outcome.step)
        if self._lead:
            self._lead.send_end(outcome, signal)

    @property
    def finish_asked(self) -> bool:
        """Whether a hook of this rank or the chief asks to end training."""
        return bool(self._lead and self._lead.finish) or self._context.hooks.stop_requested is not None

    @property
    def has_news(self) -> bool:
        """Whether the chief has reported evaluations."""
        return bool(self._lead and self._lead.news)

    def at_news(self) -> None:
        """Hooks of all workers hear of what the chief has evaluated. Collective."""
        for found in self._workers.broadcast(self._lead.take_news() if self._lead else []):
            self._context.hooks.after_evaluate(found["step"], found["name"], found["metrics"])

    def before_step(self, step: int) -> None:
        """Hooks, and what the chief has sent."""
        self._context.hooks.before_step(step)
        if self._lead:
            self._lead.listen()

    def after_step(self, step: int, loss: float) -> None:
        self._context.hooks.after_step(step, loss)

    def at_checkpoint(self, step: int) -> float:
        """Copies the state, which then leaves for the chief; returns the seconds that took. Collective."""
        begun = time.monotonic()
        self._save(step)
        return time.monotonic() - begun

    def _save(self, step: int) -> None:
        if step == self._at_hand:
            return
        context = self._context
        context.watchdog.at("checkpoint", step)
        context.state.average()
        rng = rng_state.gather(self._workers, context.state.layers)
        if self._lead:
            self._lead.send_state(step, list(rng.values()))
        self._at_hand = step
        context.hooks.after_checkpoint(step, context.manager.path(step))

    def before_halt(self, step: int) -> None:
        """The job is about to end: the chief finishes the checkpoint that it is writing first. Collective."""
        self._context.watchdog.at("waiting for the chief to finish the checkpoint", step)
        self._workers.on_chief(lambda: self._lead.ask_to_settle(step) if self._lead else None)

    def _go_back(self, step: int) -> int:
        context = self._context
        context.watchdog.at("waiting for the chief to find the last checkpoint", step)
        first_step = self._workers.on_chief(lambda: self._lead.ask_for_whole(step) if self._lead else 0)
        self._at_hand = first_step
        context.restorer.restore(self._workers, first_step)
        context.input.reopen(self._workers, first_step)
        return first_step


class Lead:
    """What the first worker does besides: it sends its state, which is that of all, and hears the chief.

    As a reporter.StepReporter it has the chief show and log what there is to report.

    Args:
        channel: To the chief.

    Attributes:
        finish: Whether the chief asks to end training. news: evaluations that it has sent.
    """

    def __init__(self, context: RunContext, channel: Channel) -> None:
        self._context, self._channel = context, channel
        self.finish = False
        self.news: list[Message] = []
        self._whole: int | None = None
        self._settled = False
        self._reported_at = 0.0

    def listen(self) -> None:
        """Hears what the chief has sent."""
        while (message := self._channel.take()) is not None:
            self._hear(message)

    def take_news(self) -> list[Message]:
        """The evaluations that have come since the last call."""
        news, self.news = self.news, []
        return news

    def _hear(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "finish":
            self.finish = True
        elif kind == "evaluated":
            self.news.append(message)
        elif kind == "signal":
            self._context.signals.received = self._context.signals.received or message["name"]
        elif kind == "whole":
            self._whole = message["step"]
        elif kind == "settled":
            self._settled = True

    def send_decision(self, step: int, reasons: Sequence[str | None]) -> None:
        """The chief learns that training ends early after `step`, and for which reasons of hooks."""
        self._channel.send({"kind": "decide", "step": step, "reasons": list(reasons)})

    def send_end(self, outcome: Outcome, signal: str | None) -> None:
        """The chief learns that training has ended, and by which signal."""
        self._channel.send({"kind": "end", "outcome": asdict(outcome), "signal": signal})
        self._context.watchdog.at("waiting for the chief to take the last checkpoint", outcome.step)
        self._channel.wait_until_sent()

    def send_state(self, step: int, rng: Sequence[np.ndarray]) -> None:
        """The chief gets the state after `step`, once it has taken the one before."""
        watchdog, state = self._context.watchdog, self._context.state
        begun = time.monotonic()
        watchdog.at("waiting for the chief to take the checkpoint before", step)
        self._channel.wait_until_sent()
        if (waited := time.monotonic() - begun) > LONG_WAIT_SECS:
            text = f"waited {waited:.1f} s for the chief to take the checkpoint before; save less often"
            self.log(logging.WARNING, text)
        watchdog.at("checkpoint", step)
        state.copy()
        stall = time.monotonic() - begun
        message = {**snapshot_message(step, self._context.input.current, time.time()), "stall_secs": stall}
        self._channel.send(message, [*state.room, *rng])

    def ask_to_settle(self, step: int) -> None:
        """Returns once the chief has finished what it is writing."""
        self._ask({"kind": "settle", "step": step}, lambda: self._settled)

    def ask_for_whole(self, step: int) -> int:
        """The step of the newest whole checkpoint, which the chief looks for."""
        self._whole = None
        self._ask({"kind": "back", "step": step}, lambda: self._whole is not None)
        assert self._whole is not None, "what was asked for has come"
        return self._whole

    def _ask(self, question: Message, answered: Callable[[], bool]) -> None:
        self._channel.send(question)
        while not answered():
            if (message := self._channel.take(0.5)) is not None:
                self._hear(message)

    def showing(self) -> AbstractContextManager[object]:
        """Nothing: the chief shows progress."""
        return nullcontext()

    def log(self, level: int, text: str) -> None:
        """Has the chief log a line."""
        self._channel.send({"kind": "log", "level": level, "text": text})

    def report(self, summary: StepSummary) -> None:
        """Has the chief report a step, where that is due."""
        now = time.monotonic()
        due = summary.record or summary.last or summary.step % self._context.config.log_step_count_steps == 0
        if due or now - self._reported_at >= REPORT_SECS:
            self._reported_at = now
            self._channel.send({"kind": "step", "summary": asdict(summary)})
