"""One run of a job: what happens beside the training steps, and at the end."""

from __future__ import annotations

import difflib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hpc_train.cluster.world import World
from hpc_train.config.specs import EvalSpec, RunConfig
from hpc_train.errors import JobEndedError, UserError
from hpc_train.estimator.ending import JobStopped
from hpc_train.estimator.evaluation import Evaluator
from hpc_train.estimator.exporters import export_saved_model, exported_from
from hpc_train.estimator.loop import Outcome, Reporting
from hpc_train.estimator.saving import Read, Saving
from hpc_train.estimator.state import ModelState
from hpc_train.resilience.signals import STOP_CODES, StopSignals
from hpc_train.resilience.watchdog import Watchdog

if TYPE_CHECKING:
    import keras

Result = tuple[dict[str, float], list[Path]]


class Run:
    """Checkpoints, evaluations and the end of one run. All methods are collective.

    Attributes:
        data: The training input, which a rollback opens anew.
    """

    def __init__(
        self,
        world: World,
        config: RunConfig,
        eval_spec: EvalSpec,
        model: keras.Model,
        state: ModelState,
        saving: Saving,
        data: Read,
        evaluator: Evaluator,
        signals: StopSignals,
        watchdog: Watchdog,
        reporting: Reporting | None,
    ) -> None:
        self._world, self._job_dir, self._spec = world, config.model_dir.absolute(), eval_spec
        self._model, self._state, self._saving, self.data = model, state, saving, data
        self._evaluator, self._signals, self._watchdog = evaluator, signals, watchdog
        self._reporting = reporting
        self._not_before = time.monotonic() + eval_spec.start_delay_secs

    def at_checkpoint(self, step: int, last: bool) -> None:
        """Saves, then evaluates if it is time to; after the last step that is left to `finish`."""
        self._watchdog.at("checkpoint", step)
        self._saving.save(step, self.data)
        if not last and self._world.broadcast(self.evaluation_is_due()):
            self._evaluate(step)

    def evaluation_is_due(self) -> bool:
        """Whether the last evaluation began long enough ago; if so, another one begins now. Local."""
        now = time.monotonic()
        if now < self._not_before:
            return False
        self._not_before = now + self._spec.throttle_secs
        return True

    def at_comparison(self, step: int) -> None:
        """Compares the ranks' variables; JobEndedError names a rank whose differ."""
        self._watchdog.at("comparing replicas", step)
        try:
            self._state.compare(step)
        except JobEndedError:
            self.before_halt(step)
            raise

    def before_halt(self, step: int) -> None:
        """All ranks are about to end the job: the checkpoint that is being written is finished first."""
        self._watchdog.at("checkpoint", step)
        self._saving.wait(step, halt=False)
        self._status(state="running", step=step)

    def stop(self, step: int) -> NoReturn:
        """A signal asked for it: saves, and leaves with its code."""
        name = first_signal(self._world.all_gather(self._signals.received))
        self.save_for(name, step)
        raise JobStopped(STOP_CODES[name])

    def save_for(self, name: str, step: int) -> None:
        """Saves because of the signal called `name`, and says so."""
        self._save_last(step)
        self._say(f"stopped by {name} after step {step}, which is saved; start the job again to go on")
        self._status(state="stopped", step=step)

    def _save_last(self, step: int) -> None:
        self._watchdog.at("checkpoint", step)
        self._saving.save(step, self.data)
        self._saving.wait(step)

    def finish(self, outcome: Outcome) -> Result:
        """The last evaluation, and the exports that an earlier run of the job has not made from this checkpoint."""
        step = outcome.step
        self._save_last(step)
        # With use_ema, the averages take the weights' place now that a checkpoint holds the weights.
        self._model.optimizer.finalize_variable_values(self._model.trainable_variables)
        metrics = self._evaluate(step)
        self._saving.wait(step)
        self._watchdog.at("export", step)
        folders = [self._job_dir / "export" / exporter.name for exporter in self._spec.exporters]
        exported = self._world.on_chief(lambda: [str(self._export(f, step, metrics)) for f in folders])
        exports = [Path(p) for p in exported]
        self._status(
            state="succeeded", step=step, evaluation={"step": step, **metrics}, exports=[str(path) for path in exports]
        )
        waited = f", {outcome.input_wait:.1%} of the time waiting for input" if outcome.input_wait is not None else ""
        more = f"; {outcome.more}" if outcome.more else ""
        self._say(f"done: step {step} ({outcome.end}), {outcome.examples_per_sec:,.0f} examples/s{waited}{more}")
        return {**metrics, "global_step": step}, exports

    def _evaluate(self, step: int) -> dict[str, float]:
        told = False

        def moved() -> None:
            nonlocal told
            self._watchdog.at("evaluation", step)
            if self._signals.received is not None and not told:
                told = True
                self._say(f"{self._signals.received}: the job leaves when this evaluation has ended")

        metrics = self._evaluator.evaluate(moved)
        self.tell_evaluation(step, metrics)
        return metrics

    def tell_evaluation(self, step: int, metrics: dict[str, float]) -> None:
        """Records what an evaluation of the checkpoint of `step` gave."""
        if self._reporting:
            self._reporting.metrics.record(self._evaluator.kind, step, metrics)
            self._status(state="running", evaluation={"step": step, **metrics})
            self._saving.note_evaluation(step, metrics)
        shown = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        self._say(f"{self._evaluator.kind} at step {step}: {shown}")

    def _export(self, folder: Path, step: int, metrics: dict[str, float]) -> Path:
        taken = self._saving.taken
        path = exported_from(folder, taken) or export_saved_model(self._model, folder, step, taken, metrics)
        self._say(f"export {path}")
        return path

    def _say(self, text: str) -> None:
        if self._reporting:
            self._reporting.progress.say(text)

    def _status(self, **fields: Any) -> None:
        if self._reporting:
            self._reporting.status.update(**fields)


def first_signal(received: Sequence[str | None]) -> str:
    """The signal that stopped the job: Slurm's warning before the others, since it means to go on."""
    return next(name for name in STOP_CODES if name in received)


def check_best_metric(name: str | None, metrics: list[str]) -> None:
    """UserError where evaluation will have no metric of that name."""
    if name is not None and name not in metrics:
        near = difflib.get_close_matches(name, metrics, n=1)
        hint = f"did you mean `{near[0]}`? " if near else ""
        raise UserError(f"run.best_metric: {name!r} is no metric of this model; {hint}allowed: {', '.join(metrics)}")
