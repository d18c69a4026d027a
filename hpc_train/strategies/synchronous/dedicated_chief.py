"""A chief that takes no steps: it receives the workers' state, saves, evaluates and exports it, and reports."""

from __future__ import annotations

import logging

from hpc_train.distributed.channel import Channel, Message
from hpc_train.distributed.world import World
from hpc_train.engine.background_evaluation import BackgroundEvaluation
from hpc_train.engine.events import RunListener
from hpc_train.engine.lifecycle import Lifecycle
from hpc_train.engine.loop import Outcome
from hpc_train.engine.recovery import last_whole
from hpc_train.engine.run_context import ChiefServices, Result, RunContext
from hpc_train.evaluation.runner import EvaluationResult
from hpc_train.strategies.synchronous.remote_state import RemoteState
from hpc_train.telemetry.reporter import StepSummary

log = logging.getLogger(__name__)

LISTEN_SECS = 0.05
WAITING = "waiting for the workers"


class _ToWorkers(RunListener):
    """The workers' hooks hear of evaluations, too."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def evaluation(self, result: EvaluationResult, training_step: int, last: bool) -> None:
        about = {"step": result.step, "name": result.name, "metrics": result.metrics}
        self._channel.send({"kind": "evaluated", **about})


class DedicatedChief:
    """Serves the workers through `channel` until they have ended."""

    def __init__(self, context: RunContext, chief: ChiefServices, channel: Channel, state: RemoteState) -> None:
        self._context, self._chief, self._channel, self._state = context, chief, channel, state
        self._lifecycle = Lifecycle(context, World.alone(), state, state, [_ToWorkers(channel)])
        self._step = context.plan.first_step
        self._outcome: Outcome | None = None
        self._signal: str | None = None
        self._being_written, self._seen_moves = False, 0
        self._passed_on: set[str] = set()

    def serve(self) -> str | None:
        """Serves until the workers have ended; returns the signal that stopped them, the state being saved then."""
        watchdog = self._context.watchdog
        self._lifecycle.events.begin()
        background = BackgroundEvaluation(self._context, self._chief, self._lifecycle, self._state)
        with background, self._chief.reporter.showing():
            watchdog.at(WAITING, None)
            while self._outcome is None:
                message = self._channel.take(LISTEN_SECS)
                if message is not None:
                    self._hear(message)
                    watchdog.at(WAITING, None)
                self._look_around(background)
            if self._signal is None:
                background.finish(self._outcome.step, lambda: watchdog.at("evaluation", self._step))
        if self._signal is not None:
            self._lifecycle.save_for(self._signal, self._outcome.step)
        return self._signal

    def finish(self) -> Result:
        """The last evaluation, and the exports."""
        assert self._outcome is not None, "serve has returned"
        self._lifecycle.take_last_state(self._outcome.step)
        return self._lifecycle.finish(self._outcome)

    def _hear(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "step":
            summary = StepSummary(**message["summary"])
            self._step = summary.step
            self._chief.reporter.report(summary)
        elif kind == "log":
            log.log(message["level"], message["text"])
        elif kind == "snapshot":
            self._save(message)
        elif kind == "decide":
            self._lifecycle.decide(message["step"], message["reasons"])
        elif kind == "end":
            self._outcome, self._signal = Outcome(**message["outcome"]), message["signal"]
        elif kind == "settle":
            self._lifecycle.before_halt(message["step"])
            self._channel.send({"kind": "settled"})
        elif kind == "back":
            self._go_back(message["step"])

    def _save(self, message: Message) -> None:
        step = self._state.take(message)
        self._step = max(self._step, step)
        self._context.watchdog.at("checkpoint", step)
        self._written()
        self._lifecycle.save(step, message["stall_secs"])
        self._being_written = True
        if step > 0:  # else it is there to go back to alone
            self._lifecycle.schedule.saved(step)

    def _written(self) -> None:
        """The snapshot before is on the disk, and its memory is needed no more for that."""
        if self._being_written:
            self._being_written = False
            self._state.give_back()

    def _look_around(self, background: BackgroundEvaluation) -> None:
        context, lifecycle, saver = self._context, self._lifecycle, self._chief.saver
        if self._being_written and saver.moves != self._seen_moves:
            self._seen_moves = saver.moves
            context.watchdog.at("writing a checkpoint", None)
        if self._being_written and not saver.busy:
            self._written()
            context.watchdog.at(WAITING, None)
        background.look(self._step)
        if lifecycle.finish_asked:
            self._pass_on({"kind": "finish"})
        if context.signals.received is not None:
            self._pass_on({"kind": "signal", "name": context.signals.received})

    def _pass_on(self, message: Message) -> None:
        """Sends it to the workers, once."""
        if message["kind"] not in self._passed_on:
            self._passed_on.add(message["kind"])
            self._channel.send(message)

    def _go_back(self, step: int) -> None:
        watchdog = self._context.watchdog
        going_back = "going back to the last checkpoint"
        watchdog.at(going_back, step)
        self._lifecycle.checkpointing.wait(step, halt=False)
        self._written()
        whole = last_whole(self._context, self._chief, lambda: watchdog.at(going_back, step))
        self._lifecycle.went_back(whole, self._state)
        self._step = whole
        self._channel.send({"kind": "whole", "step": whole})
