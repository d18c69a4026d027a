"""A chief that takes no steps: it receives the workers' state, saves, evaluates and exports it, and tells."""

from __future__ import annotations

from typing import Any

from hpc_train.distributed.channel import Channel, Message
from hpc_train.distributed.world import World
from hpc_train.engine.background_evaluation import Evaluating
from hpc_train.engine.lifecycle import Result, Run
from hpc_train.engine.loop import Outcome
from hpc_train.engine.recovery import last_whole
from hpc_train.engine.run_context import Session
from hpc_train.evaluation.runner import Assessment
from hpc_train.strategies.synchronous.dedicated_worker import outcome_of
from hpc_train.strategies.synchronous.remote_state import Received
from hpc_train.telemetry.reporter import Told

LISTEN_SECS = 0.05
WAITING = "waiting for the workers"


class DedicatedChief:
    """Serves the workers through `channel` until they have ended."""

    def __init__(self, session: Session, channel: Channel, received: Received) -> None:
        self._s, self._channel, self._received = session, channel, received
        alone = World.alone()
        self._saving = session.saving(alone, received)
        self._run = Run(session, alone, self._saving, received, self._heard_of)
        self._step = session.first_step
        self._outcome: Outcome | None = None
        self._signal: str | None = None
        self._being_written, self._seen_moves = False, 0
        self._passed_on: set[str] = set()

    def serve(self) -> str | None:
        """Serves until the workers have ended; returns the signal that stopped them, the state being saved then."""
        s = self._s
        assert s.reporting is not None
        s.hooks.begin()
        with Evaluating(s, self._run, self._received) as evaluating, s.reporting.showing():
            self._evaluating = evaluating
            s.watchdog.at(WAITING, None)
            while self._outcome is None:
                message = self._channel.take(LISTEN_SECS)
                if message is not None:
                    self._hear(message)
                    s.watchdog.at(WAITING, None)
                self._look_around()
            if self._signal is None:
                evaluating.finish(self._outcome.step, lambda: s.watchdog.at("evaluation", self._step))
        if self._signal is not None:
            self._run.save_for(self._signal, self._outcome.step)
        return self._signal

    def finish(self) -> Result:
        """The last evaluation, and the exports."""
        assert self._outcome is not None
        self._run.take_last_state(self._outcome.step)
        return self._run.finish(self._outcome)

    def _hear(self, message: Message) -> None:
        s, kind = self._s, message["kind"]
        assert s.reporting is not None
        if kind == "told":
            told = Told(**message["told"])
            self._step = told.step
            s.reporting.tell(told)
        elif kind == "say":
            s.reporting.say(message["text"])
        elif kind == "snapshot":
            self._save(message)
        elif kind == "decide":
            self._run.decide(message["step"], message["reasons"])
        elif kind == "end":
            self._outcome, self._signal = outcome_of(message), message["signal"]
        elif kind == "settle":
            self._run.before_halt(message["step"])
            self._channel.send({"kind": "settled"})
        elif kind == "back":
            self._go_back(message["step"])

    def _save(self, message: Message) -> None:
        s = self._s
        step = self._received.take(message)
        self._step = max(self._step, step)
        s.watchdog.at("checkpoint", step)
        self._written()
        self._saving.save(step, self._received, message["stall_secs"])
        self._being_written = True
        if step > 0:  # else it is there to go back to alone
            self._run.plan.saved(step)
        self._run.telling.weights(step, self._saving)

    def _written(self) -> None:
        """The snapshot before is on the disk, and its memory is needed no more for that."""
        if self._being_written:
            self._being_written = False
            self._received.give_back()

    def _look_around(self) -> None:
        s, run = self._s, self._run
        assert s.saver is not None
        if self._being_written and s.saver.moves != self._seen_moves:
            self._seen_moves = s.saver.moves
            s.watchdog.at("writing a checkpoint", None)
        if self._being_written and not s.saver.busy:
            self._written()
            s.watchdog.at(WAITING, None)
        run.telling.saves(self._saving)
        self._evaluating.look(self._step)
        run.look_at_rules(self._step + 1)
        if run.finish_asked:
            self._pass_on({"kind": "finish"})
        if s.signals.received is not None:
            self._pass_on({"kind": "signal", "name": s.signals.received})

    def _pass_on(self, message: Message) -> None:
        """Tells the workers, once."""
        if message["kind"] not in self._passed_on:
            self._passed_on.add(message["kind"])
            self._channel.send(message)

    def _heard_of(self, assessment: Assessment) -> None:
        """The workers' hooks are to hear of an evaluation, too."""
        told: dict[str, Any] = {"step": assessment.step, "name": assessment.name, "metrics": assessment.metrics}
        self._channel.send({"kind": "evaluated", **told})

    def _go_back(self, step: int) -> None:
        s = self._s
        going_back = "going back to the last checkpoint"
        s.watchdog.at(going_back, step)
        self._saving.wait(step, halt=False)
        self._written()
        whole = last_whole(s, lambda: s.watchdog.at(going_back, step))
        self._saving.went_back_to(None, whole)
        self._run.went_back(whole, self._received)
        self._step = whole
        self._channel.send({"kind": "whole", "step": whole})
