"""One run of a job: what happens beside the training steps, and at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hpc_train.distributed.world import World
from hpc_train.engine.checkpointing import Read, Saving
from hpc_train.engine.loop import Outcome
from hpc_train.engine.run_log import Telling
from hpc_train.errors import EXIT_FAILED, JobEndedError
from hpc_train.evaluation.early_stopping import Decision, write_decision
from hpc_train.evaluation.runner import Assessment, Assessor
from hpc_train.evaluation.schedule import EvaluationPlan
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.resilience.signals import STOP_CODES, JobStopped

if TYPE_CHECKING:
    from hpc_train.engine.run_context import Session

Result = tuple[dict[str, float], list[Path]]


class Run:
    """Checkpoints, evaluations and the end of one run. Methods are collective over `world` unless they say otherwise.

    Args:
        world: The ranks that save and evaluate together. heard: told of each evaluation, too.

    Attributes:
        data: The training input, which a rollback opens anew.
        decision: That training ends early, on the chief. telling: tells of all this.
    """

    def __init__(
        self,
        session: Session,
        world: World,
        saving: Saving,
        data: Read,
        heard: Callable[[Assessment], None] = lambda assessment: None,
    ) -> None:
        s = self._s = session
        self._world, self._saving, self.data, self._heard = world, saving, data, heard
        self._hooks, self.telling = s.hooks, Telling(s)
        self.assessor = Assessor(world, s.evaluators, s.exporting, s.hooks)
        self.plan = EvaluationPlan(s.eval_specs, time.monotonic())
        self.decision: Decision | None = None
        self._kept: Decision | None = None

    @property
    def finish_asked(self) -> bool:
        """Whether a hook or a rule asks to end training. Local."""
        return self.decision is not None or self._hooks.stop_requested is not None

    has_news = False

    def at_news(self) -> None:
        """Nothing: what the chief evaluates, all ranks do."""

    def before_step(self, step: int) -> None:
        """Hooks first, then the rules: `step` is the last one where they say so. Local."""
        self._hooks.before_step(step)
        self.look_at_rules(step)

    def look_at_rules(self, step: int) -> None:
        """Whether `step`, which is about to be made, is the last one. For the chief; local."""
        stopper = self._s.stopper
        if stopper is None or self.decision is not None:
            return
        self.decision = stopper.check(step, time.monotonic())
        if self.decision is not None:
            self.telling.say(f"stopping early: {self.decision.reason}")

    def after_step(self, step: int, loss: float) -> None:
        """Hooks, and what the thread that saves has done. Local."""
        self._hooks.after_step(step, loss)
        self.telling.saves(self._saving)

    def catch_up(self) -> None:
        """Evaluates the checkpoint that the job goes on from, where an evaluation of every checkpoint has missed it."""
        s = self._s
        if s.found is None or s.is_over:
            return

        def missed() -> list[int]:
            known = JobDir(s.job_dir).evaluations(s.first_step)
            every = [number for number, spec in enumerate(s.eval_specs) if spec.eval_every_checkpoint]
            return [number for number in every if s.first_step not in known.get(s.eval_specs[number].kind, {})]

        numbers = self._world.on_chief(missed)
        for assessment in self.assessor.assess(s.first_step, self._taken(), numbers, self._moving(s.first_step)):
            self.tell(assessment, s.first_step)

    def at_checkpoint(self, step: int) -> float:
        """Saves, then evaluates if it is time to; returns the seconds that saving took."""
        s = self._s
        s.watchdog.at("checkpoint", step)
        begun = time.monotonic()
        saved = self._saving.save(step, self.data)
        secs = time.monotonic() - begun
        if saved:
            self._hooks.after_checkpoint(step, s.manager.path(step))
        self.plan.saved(step)
        due = self._world.broadcast(self.plan.due(time.monotonic()))
        if due is not None:
            for assessment in self.assessor.assess(step, self._taken(), due[1], self._moving(step)):
                self.tell(assessment, step)
        return secs

    def _taken(self) -> float:
        return self._world.broadcast(self._saving.taken)

    def _moving(self, step: int) -> Any:
        told = False

        def moved() -> None:
            nonlocal told
            self._s.watchdog.at("evaluation", step)
            if self._s.signals.received is not None and not told:
                told = True
                self.telling.say(f"{self._s.signals.received}: the job leaves when this evaluation has ended")

        return moved

    def at_comparison(self, step: int) -> None:
        """Compares the ranks' variables; JobEndedError names a rank whose differ."""
        compare_replicas(self._s, step, self.before_halt)

    def before_halt(self, step: int) -> None:
        """All ranks are about to end the job: the checkpoint that is being written is finished first."""
        self._s.watchdog.at("checkpoint", step)
        self.telling.status(
            state="running", step=step
        )  # before the ranks part: one of them is about to set it to failed
        self._saving.wait(step, halt=False)

    def went_back(self, step: int, data: Read) -> None:
        """A rollback has taken training back to the checkpoint of `step`. Local."""
        self.data = data
        self.plan.went_back(step)
        if self._s.stopper is not None:
            self._s.stopper.went_back(step)

    def stop(self, step: int) -> NoReturn:
        """A signal asked for it: saves, and leaves with its code."""
        name = first_signal(self._world.all_gather(self._s.signals.received))
        self.save_for(name, step)
        raise JobStopped(STOP_CODES[name])

    def save_for(self, name: str, step: int) -> None:
        """Saves because of the signal called `name`, and says so."""
        self._save_last(step)
        self._hooks.interrupted(step)
        self.telling.say(f"stopped by {name} after step {step}, which is saved; start the job again to go on")
        self.telling.status(state="stopped", step=step)
        self.telling.end(step, "stopped", name)

    def _save_last(self, step: int) -> None:
        self._s.watchdog.at("checkpoint", step)
        if self._saving.save(step, self.data):
            self._hooks.after_checkpoint(step, self._s.manager.path(step))
        self._saving.wait(step)
        self.telling.saves(self._saving)

    def take_last_state(self, step: int) -> None:
        """Gives the model, which evaluations have used, the state after `step`. For a chief that takes no steps."""
        snapshot = self._saving.snapshot
        if snapshot is None or snapshot.step != step:
            self._saving.wait(step)
            snapshot = self._s.manager.load(step)
        self._s.state.assign(snapshot)

    def finish(self, outcome: Outcome) -> Result:
        """The last checkpoint, its evaluation, and the exports, as far as no earlier run has made them."""
        s, step = self._s, outcome.step
        self._hooks.end(step)
        decision = self._decided(outcome)
        self._save_last(step)
        # With use_ema, the averages take the weights' place now that a checkpoint holds the weights.
        s.model.optimizer.finalize_variable_values(s.model.trainable_variables)
        numbers, taken = range(len(s.eval_specs)), self._taken()
        only_last = bool(getattr(s.model.optimizer, "use_ema", False))

        def known(kind: str, what: str | None) -> dict[str, float] | None:
            if what is None:  # of which data cannot be known, so it is made again
                return None
            return JobDir(s.job_dir).evaluation_of(taken, kind, what, only_last)

        assessments = []
        for assessment in self.assessor.assess(step, taken, numbers, self._moving(step), True, known):
            self.tell(assessment, step, last=True)
            assessments.append(assessment)
        self._saving.wait(step)
        if self._world.is_chief:
            s.manager.thin_out()  # of those that waited for their evaluation
        exports = [Path(export.path) for a in assessments for export in a.exports if export.path is not None]
        self.telling.status(
            state="succeeded",
            step=step,
            exports=[str(path) for path in exports],
            stopped_early={"step": step, "reason": decision.reason} if decision else None,
        )
        waited = f", {outcome.input_wait:.1%} of the time waiting for input" if outcome.input_wait is not None else ""
        more = f"; {outcome.more}" if outcome.more else ""
        end = f"stopped early: {decision.reason}" if decision else outcome.end
        self.telling.say(f"done: step {step} ({end}), {outcome.examples_per_sec:,.0f} examples/s{waited}{more}")
        self.telling.end(step, "succeeded", end)
        self.telling.report(step)
        return {**assessments[0].metrics, "global_step": step}, exports

    def decide(self, step: int, reasons: Sequence[str | None]) -> None:
        """Keeps for runs to come that training ends early after `step`. For the chief, before that is saved; local.

        Args:
            reasons: What hooks gave, if it was hooks that asked for it.
        """
        asked = [reason for reason in reasons if reason is not None]
        decision = self.decision or Decision(step, asked[0] if asked else "a hook asked for it", None, None)
        self._kept = replace(decision, step=step, max_steps=self._s.train_spec.max_steps)
        with suppress(OSError):  # the last checkpoint, which comes next, tells of a disk that fails
            write_decision(self._s.job_dir, self._kept)

    def _decided(self, outcome: Outcome) -> Decision | None:
        """Why training has ended early, on the chief; None elsewhere, or where it has not."""
        s = self._s
        reasons = [outcome.reason, *self._world.all_gather(self._hooks.stop_requested)]
        if not self._world.is_chief:
            return None
        if s.held is not None and outcome.step == s.first_step:
            return s.held
        if outcome.end == "stopped early" and (self._kept is None or any(reasons)):
            self.decide(outcome.step, reasons)
        return self._kept

    def tell(self, assessment: Assessment, training_step: int, last: bool = False) -> None:
        """Records an evaluation; `training_step` is where training is meanwhile. To be called on all ranks alike.

        Raises:
            JobEndedError: An export failed, and `on_export_error` is "halt".
        """
        a = assessment
        self.telling.evaluation(a, training_step, last)
        if self._s.reporting:
            if a.number == 0:
                self._saving.note_evaluation(a.step, a.metrics)
            if self._s.stopper is not None:
                self._s.stopper.saw(a.kind, a.step, a.metrics)
        self._hooks.after_evaluate(a.step, a.name, a.metrics)
        self._heard(a)
        failed = self.telling.exports(a)
        if failed is not None and self._s.config.on_export_error == "halt":
            self.before_halt(training_step)
            raise JobEndedError(
                f"the exporter {failed.exporter!r} failed at step {a.step}, and on_export_error is halt: "
                f"{failed.error}; the checkpoint stays",
                EXIT_FAILED,
            )


def compare_replicas(s: Session, step: int, before_halt: Callable[[int], None]) -> None:
    """Compares the variables of all ranks that train; where they differ the job ends, after `before_halt`. Collective.

    Raises:
        JobEndedError: They differ; it names the ranks.
    """
    s.watchdog.at("comparing replicas", step)
    try:
        s.state.compare(step)
    except JobEndedError:
        before_halt(step)
        raise


def first_signal(received: Sequence[str | None]) -> str:
    """The signal that stopped the job: Slurm's warning before the others, since it means to go on."""
    return next(name for name in STOP_CODES if name in received)
