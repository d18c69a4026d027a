"""A worker of a job with a dedicated chief: it trains, and the first of them tells the chief."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

from hpc_train.data.loading.tf_dataset import OpenInput
from hpc_train.distributed.allreduce import GradientAllreduce
from hpc_train.distributed.channel import Channel, Message
from hpc_train.distributed.world import World
from hpc_train.engine.lifecycle import compare_replicas, first_signal
from hpc_train.engine.loop import Outcome
from hpc_train.engine.run_context import Session
from hpc_train.model import rng_state
from hpc_train.strategies.synchronous.remote_state import snapshot_message
from hpc_train.strategies.synchronous.strategy import train_through
from hpc_train.telemetry.reporter import Told

TELL_SECS = 0.1
"""Progress is told so often, beside the steps at which it is due."""
LONG_WAIT_SECS = 1.0
"""Waiting so long for the chief is worth a line."""


class DedicatedWorker:
    """Trains; `channel` is the first one's, the lead's. See loop.Events and reporting.Teller."""

    def __init__(self, session: Session, workers: World, allreduce: GradientAllreduce, channel: Channel | None) -> None:
        self._s, self._workers, self._allreduce, self._channel = session, workers, allreduce, channel
        self._at_hand = session.found
        self._finish = False
        self._news: list[Message] = []
        self._whole: int | None = None
        self._settled = False
        self._told_at = 0.0
        self._data: Any = session.data

    def train(self) -> None:
        """Trains to the end; the chief then has the last state, and knows why it is the last. Collective."""
        s, workers = self._s, self._workers
        s.state.reserve()
        if s.config.on_nan == "rollback" and s.found is None:
            self._save(0)
        s.hooks.begin()
        teller = self if self._channel is not None else None
        outcome = train_through(s, workers, self._allreduce, self, teller, self._go_back)
        signal = None
        if outcome.end == "signal":
            self._save(outcome.step)
            s.hooks.interrupted(outcome.step)
            signal = first_signal(workers.all_gather(s.signals.received))
        else:
            s.hooks.end(outcome.step)
            reasons = workers.all_gather(s.hooks.stop_requested)
            if self._channel is not None and outcome.end == "stopped early":
                self._channel.send({"kind": "decide", "step": outcome.step, "reasons": reasons})
            self._save(outcome.step)
        if self._channel is not None:
            self._channel.send({"kind": "end", "outcome": asdict(outcome), "signal": signal})
            s.watchdog.at("waiting for the chief to take the last checkpoint", outcome.step)
            self._channel.wait_until_sent(lambda: None)

    @property
    def finish_asked(self) -> bool:
        """Whether a hook of this rank or the chief asks to end training."""
        return self._finish or self._s.hooks.stop_requested is not None

    @property
    def has_news(self) -> bool:
        """Whether the chief has told of evaluations."""
        return bool(self._news)

    def at_news(self) -> None:
        """Hooks of all workers hear of what the chief has evaluated. Collective."""
        news, self._news = self._workers.broadcast(self._news), []
        for found in news:
            self._s.hooks.after_evaluate(found["step"], found["name"], found["metrics"])

    def before_step(self, step: int) -> None:
        """Hooks, and what the chief has said."""
        self._s.hooks.before_step(step)
        if self._channel is not None:
            while (message := self._channel.take()) is not None:
                self._hear(message)

    def _hear(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "finish":
            self._finish = True
        elif kind == "evaluated":
            self._news.append(message)
        elif kind == "signal":
            self._s.signals.received = self._s.signals.received or message["name"]
        elif kind == "whole":
            self._whole = message["step"]
        elif kind == "settled":
            self._settled = True

    def after_step(self, step: int, loss: float) -> None:
        """Hooks."""
        self._s.hooks.after_step(step, loss)

    def at_checkpoint(self, step: int) -> float:
        """Copies the state, which then leaves for the chief; returns the seconds that took. Collective."""
        begun = time.monotonic()
        self._save(step)
        return time.monotonic() - begun

    def _save(self, step: int) -> None:
        if step == self._at_hand:
            return
        s = self._s
        s.watchdog.at("checkpoint", step)
        s.state.average()
        rng = rng_state.gather(self._workers)
        if self._channel is not None:
            begun = time.monotonic()
            s.watchdog.at("waiting for the chief to take the checkpoint before", step)
            self._channel.wait_until_sent(lambda: None)
            if (waited := time.monotonic() - begun) > LONG_WAIT_SECS:
                self.say(f"warning: waited {waited:.1f} s for the chief to take the checkpoint before; save less often")
            s.watchdog.at("checkpoint", step)
            s.state.copy()
            stall = time.monotonic() - begun
            message = {**snapshot_message(step, self._data, time.time()), "stall_secs": stall}
            self._channel.send(message, [*s.state.room, *rng.values()])
        self._at_hand = step
        s.hooks.after_checkpoint(step, s.manager.path(step))

    def at_comparison(self, step: int) -> None:
        """Compares the workers' variables. Collective."""
        compare_replicas(self._s, step, self.before_halt)

    def before_halt(self, step: int) -> None:
        """The job is about to end: the chief finishes the checkpoint that it is writing first. Collective."""
        self._s.watchdog.at("waiting for the chief to finish the checkpoint", step)
        self._workers.on_chief(lambda: self._ask({"kind": "settle", "step": step}, lambda: self._settled))

    def _ask(self, question: Message, answered: Callable[[], bool]) -> None:
        assert self._channel is not None
        self._channel.send(question)
        while not answered():
            if (message := self._channel.take(0.5)) is not None:
                self._hear(message)

    def _go_back(self, step: int) -> tuple[int, OpenInput]:
        s = self._s
        s.watchdog.at("waiting for the chief to find the last checkpoint", step)

        def ask() -> int:
            self._whole = None
            self._ask({"kind": "back", "step": step}, lambda: self._whole is not None)
            assert self._whole is not None
            return self._whole

        first_step = self._workers.on_chief(ask)
        self._at_hand = first_step
        s.restore(self._workers, first_step)
        self._data = data = s.open_data(self._workers, first_step)[0]
        return first_step, data

    def showing(self) -> AbstractContextManager[object]:
        """Nothing: the chief shows progress."""
        return nullcontext()

    def say(self, text: str) -> None:
        """Has the chief print a line."""
        assert self._channel is not None
        self._channel.send({"kind": "say", "text": text})

    def tell(self, told: Told) -> None:
        """Tells the chief of a step, where it is due."""
        assert self._channel is not None
        now = time.monotonic()
        due = told.record or told.last or told.step % self._s.config.log_step_count_steps == 0
        if due or now - self._told_at >= TELL_SECS:
            self._told_at = now
            self._channel.send({"kind": "told", "told": asdict(told)})


def outcome_of(message: Message) -> Outcome:
    """The outcome that an "end" message tells of."""
    return Outcome(**message["outcome"])
