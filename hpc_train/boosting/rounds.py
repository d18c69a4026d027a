"""The rounds of a job that trains trees: a tree each, checkpoints, evaluations, early stopping and the end."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from hpc_train.boosting.collective import let_in
from hpc_train.boosting.evaluation import TreeEvaluator
from hpc_train.boosting.exports import TreeExporters
from hpc_train.checkpoint.best import Best
from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.data.sampling.sampler import DataProgress
from hpc_train.distributed.world import World
from hpc_train.engine.checkpointing import not_saved
from hpc_train.engine.run_log import RunReports
from hpc_train.engine.run_plan import RunPlan, TrainingJob
from hpc_train.errors import JobEndedError
from hpc_train.evaluation.early_stopping import Decision, EarlyStopper, write_decision
from hpc_train.evaluation.evaluator import what_of
from hpc_train.evaluation.runner import EvaluationResult
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.outcome import EXIT_FAILED, EXIT_NOT_FINITE, EXIT_NOT_SAVED, STOP_CODES
from hpc_train.resilience.job_lock import JobLock
from hpc_train.resilience.signals import JobStopped, StopSignals, signal_of_any
from hpc_train.resilience.watchdog import Watchdog
from hpc_train.telemetry.reporter import Reporter, StepSummary
from hpc_train.telemetry.units import size
from hpc_train.trees.booster import content_of

log = logging.getLogger(__name__)
TREES = "trees"
"""What the booster is called in checkpoints: the bytes of a `.ubj` file, uint8 `[n]`."""


@dataclass(frozen=True)
class Forest:
    """The trees, and what they are grown on and evaluated with.

    Attributes:
        booster: With the trees of the checkpoint that the run goes on from. matrix: of this rank's rows for training.
        rows: For training, of all ranks. training, evaluation: evaluators of those rows, and of the others.
    """

    booster: Any
    matrix: Any
    rows: int
    training: TreeEvaluator
    evaluation: TreeEvaluator


@dataclass
class Chief:
    """What only the chief has.

    Attributes:
        settings: What the run was asked for. lock: of the job-dir. best: the best evaluation so far.
        taken: When the newest checkpoint was, in seconds since 1970.
    """

    reporter: Reporter
    manager: CheckpointManager
    exporters: TreeExporters
    stopper: EarlyStopper | None
    settings: Mapping[str, str]
    lock: JobLock
    best: Best | None = None
    taken: float = 0.0


class Rounds:
    """Grows trees until the job ends. Methods are collective unless they say otherwise.

    Args:
        chief: None on all other ranks.
    """

    def __init__(
        self,
        world: World,
        job: TrainingJob,
        run: RunPlan,
        forest: Forest,
        signals: StopSignals,
        watchdog: Watchdog,
        chief: Chief | None,
    ) -> None:
        self._world, self._job, self._run, self._chief = world, job, run, chief
        self._forest, self._signals, self._watchdog = forest, signals, watchdog
        self._saved = run.restored_step
        self._saved_at = self._begun = time.monotonic()
        self._decision: Decision | None = run.decision
        self._job_dir = JobDir(job.job_dir)

    def train(self) -> tuple[dict[str, float], list[str]]:
        """All rounds, and the end; gives the last evaluation's metrics with `global_step`, and the exports of it."""
        step, last = self._run.first_step, self._run.max_steps
        assert last is not None, "checked with the job"
        config, ended = self._job.config, False
        with self._chief.reporter.showing() if self._chief is not None else nullcontext():
            self._catch_up(step, last)
            while step < last and not ended:
                self._watchdog.at("training step", step + 1)
                let_in()
                self._forest.booster.update(self._forest.matrix, step)
                step += 1
                time.sleep(self._job.step_delay_secs)
                self._report(step, last)
                stop, save, ended = self._agreed(step)
                every = config.save_checkpoints_steps
                if save or (every is not None and step % every == 0) or stop or step == last or ended:
                    if ended:
                        self._decide(step)
                    self._save(step)
                    if not stop and not ended and step < last:
                        self._evaluate(step)
                if stop:
                    self._leave(step)
        return self._finish(step)

    def _catch_up(self, step: int, last: int) -> None:
        """Evaluates the checkpoint that the run goes on from, where an earlier run was ended before it came to that.

        Not what a signal had saved between two of them: a run that is not stopped evaluates no such trees.
        """
        every = self._job.config.save_checkpoints_steps
        if self._run.restored_step is None or step >= last or (every is not None and step % every):
            return
        kind = self._job.eval_specs[0].kind
        if self._world.on_chief(lambda: step not in self._job_dir.evaluations(step).get(kind, {})):
            self._evaluate(step)

    def _agreed(self, step: int) -> tuple[bool, bool, bool]:
        """Whether a rank was asked to stop, the chief's clock asks for a checkpoint, and a rule ends training."""
        secs, ends = self._job.config.checkpoint_interval_secs, False
        due = secs is not None and time.monotonic() - self._saved_at >= secs
        if self._chief is not None and self._chief.stopper is not None:
            ends = self._chief.stopper.check(step + 1, time.monotonic()) is not None
        own = [self._signals.received is not None, self._chief is not None and due, ends]
        stop, save, ended = (self._world.sum(np.array(own, np.int64)) > 0).tolist()
        return stop, save, ended

    def _report(self, step: int, last: int) -> None:
        config = self._job.config
        saved = config.save_checkpoints_steps is not None and step % config.save_checkpoints_steps == 0
        record = saved or step % config.save_summary_steps == 0 or step == last or step == self._run.first_step + 1
        if not record and step % config.log_step_count_steps:
            return
        loss = self._forest.training.loss(self._forest.booster)
        if not math.isfinite(loss):
            raise JobEndedError(f"the loss is {loss} after round {step}; look at the label's values", EXIT_NOT_FINITE)
        if self._chief is not None:
            secs, rounds = time.monotonic() - self._begun, step - self._run.first_step
            rate = self._forest.rows * rounds / max(secs, 1e-9)
            left = secs / rounds * (last - step)
            summary = StepSummary(
                step, loss, rate, rate, left, step == last, record, examples=self._forest.rows * rounds
            )
            self._chief.reporter.report(summary)

    def _decide(self, step: int) -> None:
        """Keeps for runs to come that training ends early after `step`, before that is saved. Local."""
        if self._chief is None or self._chief.stopper is None:
            return
        decision = self._chief.stopper.decision
        assert decision is not None, "all ranks have heard of it"
        self._decision = replace(decision, step=step, max_steps=self._job.train_spec.max_steps)
        log.info(f"stopping early: {decision.reason}")
        with suppress(OSError):  # the checkpoint, which comes next, fails with the disk, too
            write_decision(self._job.job_dir, self._decision)

    def _save(self, step: int) -> None:
        """Writes a checkpoint, unless the newest is that. Local."""
        self._saved_at = time.monotonic()
        chief = self._chief
        if chief is None or self._saved == step:
            return
        self._watchdog.at("checkpoint", step)
        if chief.lock.taken_by is not None:
            raise JobEndedError(
                f"another job has taken over this job-dir while this process stood still: {chief.lock.taken_by}; "
                "this one writes no more",
                EXIT_FAILED,
            )
        chief.exporters.content, chief.taken = content_of(self._forest.booster), time.time()
        best = asdict(chief.best) if chief.best is not None else None
        about = Snapshot(
            {TREES: np.frombuffer(chief.exporters.content, np.uint8)},
            {},
            DataProgress(step),
            None,
            self._world.size,
            chief.taken,
            best=best,
            settings=chief.settings,
        )
        begun = time.monotonic()
        try:
            path = chief.manager.save(about)
        except OSError as error:
            raise JobEndedError(not_saved(chief.manager, error, about.nbytes), EXIT_NOT_SAVED) from None
        secs, self._saved = time.monotonic() - begun, step
        log.info(f"checkpoint {path} ({size(about.nbytes)}, {secs:.2f} s)")
        chief.reporter.metrics.note(
            "checkpoint", step, secs=secs, bytes=about.nbytes, stall_secs=secs, committed=time.time()
        )

    def _evaluate(self, step: int, last: bool = False) -> EvaluationResult:
        """Evaluates the trees as they are, those of the newest checkpoint, and exports them."""
        self._watchdog.at("evaluation", step)
        spec, chief = self._job.eval_specs[0], self._chief
        what, begun = what_of(spec, self._run.shards[1]), time.monotonic()
        taken = self._world.broadcast(chief.taken if chief is not None else 0.0)
        known = self._world.on_chief(lambda: self._job_dir.evaluation_of(taken, spec.kind, what) if last else None)
        metrics = known if known is not None else self._forest.evaluation.evaluate(self._forest.booster)
        result = EvaluationResult(
            0, spec.kind, spec.name, what, step, taken, metrics, time.monotonic() - begun, (), known is not None
        )
        failed: str | None = None
        if chief is not None:
            result = replace(result, exports=tuple(chief.exporters.after_evaluation(step, taken, metrics, last)))
            RunReports(chief.reporter, self._job.config).evaluation(result, step, last)
            self._note_best(chief, step, metrics)
            if chief.stopper is not None:
                chief.stopper.saw(result.kind, step, metrics)
            failed = next((export.error for export in result.exports if export.error is not None), None)
        if failed is not None and self._job.config.on_export_error == "halt":
            raise JobEndedError(
                f"an exporter failed at step {step}, and on_export_error is halt: {failed}; the checkpoint stays",
                EXIT_FAILED,
            )
        return result

    def _note_best(self, chief: Chief, step: int, metrics: Mapping[str, float]) -> None:
        config = self._job.config
        if config.best_metric is None or config.best_metric not in metrics:
            return
        value = metrics[config.best_metric]
        if not math.isnan(value) and (chief.best is None or chief.best.beaten_by(value)):
            chief.best = Best(config.best_metric, config.best_mode, value, step)
            chief.manager.note_best(chief.best)

    def _leave(self, step: int) -> None:
        """A signal asked for it, and all is saved."""
        name = signal_of_any(self._world, self._signals.received)
        assert name is not None, "a rank has received one"
        if self._chief is not None:
            log.info(f"stopped by {name} after step {step}, which is saved; start the job again to go on")
            self._chief.reporter.status.update(state="stopped", step=step)
            self._chief.reporter.run_ended(step, "stopped", name)
        raise JobStopped(STOP_CODES[name])

    def _finish(self, step: int) -> tuple[dict[str, float], list[str]]:
        result = self._evaluate(step, last=True)
        exports = self._world.broadcast([str(one.path) for one in result.exports if one.path is not None])
        if self._chief is not None:
            decision, reporter = self._decision, self._chief.reporter
            early = {"step": step, "reason": decision.reason} if decision is not None else None
            reporter.status.update(state="succeeded", step=step, exports=exports, stopped_early=early)
            end = f"stopped early: {decision.reason}" if decision is not None else "max_steps"
            log.info(f"done: step {step} ({end})")
            reporter.run_ended(step, "succeeded", end)
            self._watchdog.at("report", step)
            RunReports(reporter, self._job.config).page(self._job.job_dir)
        return {**result.metrics, "global_step": step}, exports
