"""The life of one run beside its training steps: checkpoints, evaluations, early stopping, and the end."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

from hpc_train.checkpoint.format import Snapshot
from hpc_train.distributed.groups import Groups
from hpc_train.distributed.world import World
from hpc_train.engine.checkpointing import Checkpointing, Read, Saved
from hpc_train.engine.events import EvaluationListener, RunEvents, RunListener
from hpc_train.engine.loop import Outcome
from hpc_train.engine.run_context import Result, RunContext
from hpc_train.engine.run_log import RunLog
from hpc_train.errors import JobEndedError
from hpc_train.evaluation.early_stopping import Decision, EarlyStopper, write_decision
from hpc_train.evaluation.runner import EvaluationResult, EvaluationRunner
from hpc_train.evaluation.schedule import EvaluationSchedule
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.outcome import EXIT_FAILED, STOP_CODES
from hpc_train.resilience.signals import JobStopped, signal_of_any
from hpc_train.telemetry.status import RESTARTS_VARIABLE

log = logging.getLogger(__name__)


class Lifecycle:
    """Checkpoints, evaluations and the end of one run. Methods are collective over `world` unless they say otherwise.

    Args:
        world: The ranks that save and evaluate together. state: what is saved.
        data: The training input, which a rollback opens anew.
        listeners: Who else listens to what happens. groups: of the ranks that train, where they evaluate, too.

    Attributes:
        checkpointing: Takes and writes checkpoints.
        decision: That training ends early, on the chief. runner: evaluates the model as it is. schedule: which
            checkpoint is evaluated when.
        events: What happens, to be passed on. log: the chief's, None elsewhere.
    """

    has_news = False

    def __init__(
        self,
        context: RunContext,
        world: World,
        state: Saved,
        data: Read,
        listeners: Sequence[RunListener] = (),
        groups: Groups | None = None,
    ) -> None:
        self._context, self._chief, self._world = context, context.chief, world
        self.checkpointing, self.data = Checkpointing(context, world, state), data
        self._hooks = context.hooks
        exporting = context.chief.exporter_runners if context.chief else ()
        self.runner = EvaluationRunner(world, context.evaluators, exporting, context.hooks, groups, context.whole)
        self.schedule = EvaluationSchedule(context.job.eval_specs, time.monotonic())
        self.log = RunLog(context, context.chief, self.checkpointing) if context.chief else None
        self._rules = _Rules(context.chief.stopper) if context.chief and context.chief.stopper else None
        own = (self.log, context.hooks, EvaluationListener(context.hooks), self._rules)
        self.events = RunEvents([*(one for one in own if one is not None), *listeners])
        self._kept: Decision | None = None

    @property
    def decision(self) -> Decision | None:
        """The decision of a rule to end training early, on the chief. Local."""
        return self._rules.stopper.decision if self._rules else None

    @property
    def finish_asked(self) -> bool:
        """Whether a hook or a rule asks to end training. Local."""
        return self.decision is not None or self._hooks.stop_requested is not None

    def at_news(self) -> None:
        """Nothing: what the chief evaluates, all ranks do."""

    def before_step(self, step: int) -> None:
        """Hooks first, then the rules: `step` is the last one where they say so. Local."""
        self.events.before_step(step)

    def look_at_rules(self, step: int) -> None:
        """Whether `step`, which is about to be made, is the last one. For a chief that takes no steps; local."""
        if self._rules is not None:
            self._rules.before_step(step)

    def after_step(self, step: int, loss: float) -> None:
        """Hooks, and what the thread that saves has done. Local."""
        self.events.after_step(step, loss)
        if self.log is not None:
            self.log.committed()

    def catch_up(self) -> None:
        """Evaluates the checkpoint that the job goes on from, where an evaluation of every checkpoint has missed it."""
        run = self._context.plan
        if run.restored_step is None or run.is_over:
            return

        missed = self._world.on_chief(lambda: missed_evaluations(self._context, [run.first_step]))
        self._evaluate(run.first_step, [number for number, _ in missed])

    def at_checkpoint(self, step: int) -> float:
        """Saves, then evaluates if it is time to; returns the seconds that saving took."""
        begun = time.monotonic()
        self.save(step)
        secs = time.monotonic() - begun
        self.schedule.saved(step)
        due = self.schedule.due(time.monotonic())
        self._evaluate(step, self._world.broadcast(due.numbers if due is not None else ()))
        return secs

    def save(self, step: int, stall_secs: float | None = None) -> None:
        """Copies the state after `step`, which is then written, unless the newest checkpoint is that."""
        self._context.watchdog.at("checkpoint", step)
        if self.checkpointing.save(step, self.data, stall_secs):
            log.debug(f"the state after step {step} is copied")
            self.events.after_checkpoint(step, self._context.manager.path(step))

    def _evaluate(self, step: int, numbers: Sequence[int]) -> None:
        if numbers:
            for result in self.runner.evaluate(step, self._taken(), numbers, self._moving(step)):
                self.evaluated(result, step)

    def _taken(self) -> float:
        return self._world.broadcast(self.checkpointing.taken)

    def _moving(self, step: int) -> Callable[[], None]:
        logged = False

        def moved() -> None:
            nonlocal logged
            self._context.watchdog.at("evaluation", step)
            signal = self._context.signals.received
            if signal is not None and not logged and self._chief is not None:
                logged = True
                log.info(f"{signal}: the job leaves when this evaluation has ended")

        return moved

    def before_halt(self, step: int) -> None:
        """All ranks are about to end the job: the checkpoint that is being written is finished first."""
        self._context.watchdog.at("checkpoint", step)
        if self.log is not None:  # before the ranks part: one of them is about to set it to failed
            self.log.status(state="running", step=step)
        self.checkpointing.wait(step, halt=False)

    def went_back(self, step: int, data: Read, restored: Snapshot | None = None) -> None:
        """A rollback has taken training back to the checkpoint of `step`, which this rank has `restored`. Local."""
        self.data = data
        self.checkpointing.went_back_to(restored, step)
        self.schedule.went_back(step)
        self.events.rollback(step)

    def stop(self, step: int) -> NoReturn:
        """A signal asked for it: saves, and leaves with its code."""
        name = signal_of_any(self._world, self._context.signals.received)
        assert name is not None, "a rank has raised its flag"
        self.save_for(name, step)
        raise JobStopped(STOP_CODES[name])

    def save_for(self, name: str, step: int) -> None:
        """Saves because of the signal called `name`, and logs that."""
        self._save_last(step)
        self.events.interrupted(step)
        if self.log is not None:
            by = "" if RESTARTS_VARIABLE in os.environ else f" by {name}"  # else the launcher has said by what
            log.info(f"stopped{by} after step {step}, which is saved; start the job again to go on")
            self.log.status(state="stopped", step=step)
            self.log.run_ended(step, "stopped", name)

    def _save_last(self, step: int) -> None:
        self.save(step)
        self.checkpointing.wait(step)
        if self.log is not None:
            self.log.committed()

    def take_last_state(self, step: int) -> None:
        """Gives the model, which evaluations have used, the state after `step`. For a chief that takes no steps."""
        snapshot = self.checkpointing.snapshot
        if snapshot is None or snapshot.step != step:
            self.checkpointing.wait(step)
            snapshot = self._context.manager.load(step)
        self._context.state.assign(snapshot)

    def finish(self, outcome: Outcome) -> Result:
        """The last checkpoint, its evaluation, and the exports, as far as no earlier run has made them."""
        job_dir, step = JobDir(self._context.job_dir), outcome.step
        self.events.end(step)
        reasons = [outcome.reason, self._world.first(self._hooks.stop_requested)]
        decision = self._decided(outcome, reasons) if self._chief is not None else None
        self._save_last(step)
        # With use_ema, the averages take the weights' place now that a checkpoint holds the weights.
        updates = self._context.state.updates
        updates.finish(self._world)
        only_last = updates.keeps_averages
        taken = self._taken()

        def known(kind: str, what: str | None) -> dict[str, float] | None:
            if what is None:  # of which data cannot be known, so it is made again
                return None
            return job_dir.evaluation_of(taken, kind, what, only_last)

        numbers, results = range(len(self._context.job.eval_specs)), []
        for result in self.runner.evaluate(step, taken, numbers, self._moving(step), True, known):
            self.evaluated(result, step, last=True)
            results.append(result)
        self.checkpointing.wait(step)
        exports = [str(export.path) for r in results for export in r.exports if export.path is not None]
        if self.log is not None:
            self._context.manager.thin_out()  # of those that waited for their evaluation
            self._log_end(self.log, outcome, decision, exports)
        return {**results[0].metrics, "global_step": step}, exports

    def _log_end(self, run_log: RunLog, outcome: Outcome, decision: Decision | None, exports: list[str]) -> None:
        step = outcome.step
        run_log.status(
            state="succeeded",
            step=step,
            exports=exports,
            stopped_early={"step": step, "reason": decision.reason} if decision else None,
        )
        waited = f", {outcome.input_wait:.1%} of the time waiting for input" if outcome.input_wait is not None else ""
        more = f"; {outcome.more}" if outcome.more else ""
        end = f"stopped early: {decision.reason}" if decision else outcome.end
        log.info(f"done: step {step} ({end}), {outcome.examples_per_sec:,.0f} examples/s{waited}{more}")
        run_log.run_ended(step, "succeeded", end)
        run_log.report(step)

    def decide(self, step: int, reasons: Sequence[str | None]) -> None:
        """Keeps for runs to come that training ends early after `step`. For the chief, before that is saved; local.

        Args:
            reasons: What hooks gave, if it was hooks that asked for it.
        """
        asked = [reason for reason in reasons if reason is not None]
        decision = self.decision or Decision(step, asked[0] if asked else "a hook asked for it", None, None)
        self._kept = replace(decision, step=step, max_steps=self._context.job.train_spec.max_steps)
        with suppress(OSError):  # the last checkpoint, which comes next, fails with the disk, too
            write_decision(self._context.job_dir, self._kept)

    def _decided(self, outcome: Outcome, reasons: Sequence[str | None]) -> Decision | None:
        """Why training has ended early; None where it has not. For the chief."""
        run = self._context.plan
        if run.decision is not None and outcome.step == run.first_step:
            return run.decision
        if outcome.end == "stopped early" and (self._kept is None or any(reasons)):
            self.decide(outcome.step, reasons)
        return self._kept

    def evaluated(self, result: EvaluationResult, training_step: int, last: bool = False) -> None:
        """A checkpoint has been evaluated; `training_step` is where training is meanwhile. On all ranks alike.

        Raises:
            JobEndedError: An export failed, and `on_export_error` is "halt".
        """
        if self._chief is not None and result.number == 0:
            self.checkpointing.note_evaluation(result.step, result.metrics)
        self.events.evaluation(result, training_step, last)
        failed = next((export for export in result.exports if export.error is not None), None)
        if failed is not None and self._context.config.on_export_error == "halt":
            self.before_halt(training_step)
            raise JobEndedError(
                f"the exporter {failed.exporter!r} failed at step {result.step}, and on_export_error is halt: "
                f"{failed.error}; the checkpoint stays",
                EXIT_FAILED,
            )


class _Rules(RunListener):
    """The rules that end training early. For the chief."""

    def __init__(self, stopper: EarlyStopper) -> None:
        self.stopper = stopper

    def before_step(self, step: int) -> None:
        if self.stopper.decision is None and (decision := self.stopper.check(step, time.monotonic())) is not None:
            log.info(f"stopping early: {decision.reason}")

    def evaluation(self, result: EvaluationResult, training_step: int, last: bool) -> None:
        self.stopper.saw(result.kind, result.step, result.metrics)

    def rollback(self, step: int) -> None:
        self.stopper.went_back(step)


def missed_evaluations(context: RunContext, steps: Sequence[int]) -> list[tuple[int, int]]:
    """What evaluations of every checkpoint have not come to: the number of the set, and which of `steps`. Local.

    Not what a signal has saved between two of them: a run that is not stopped evaluates no such checkpoint.
    """
    interval = context.config.save_checkpoints_steps
    steps = [step for step in steps if interval is None or step % interval == 0]
    known = JobDir(context.job_dir).evaluations(context.plan.first_step)
    every = [(number, spec.kind) for number, spec in enumerate(context.job.eval_specs) if spec.eval_every_checkpoint]
    return [(number, step) for number, kind in every for step in steps if step not in known.get(kind, {})]
