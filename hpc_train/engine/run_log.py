"""The log of a run: checkpoints, evaluations, exports and its end, in lines, metrics and status. For the chief."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from hpc_train.config.run_config import RunConfig
from hpc_train.engine.checkpointing import Checkpointing
from hpc_train.engine.events import RunListener
from hpc_train.engine.run_context import ChiefServices, RunContext
from hpc_train.evaluation.runner import EvaluationResult
from hpc_train.export.exporters import ExportResult
from hpc_train.telemetry.reporter import Reporter

log = logging.getLogger(__name__)

EXPORT_ERRORS_KEPT = 20
"""In status.json; metrics.jsonl has all of them."""


class RunReports:
    """Evaluations, exports and the report of a job, whatever it trains."""

    def __init__(self, reporter: Reporter, config: RunConfig) -> None:
        self._reporter, self._lists, self.config = reporter, reporter.lists, config
        self.status = reporter.status.update

    def evaluation(self, result: EvaluationResult, training_step: int, last: bool) -> None:
        """Records an evaluation, unless an earlier run has."""
        lag_steps, lag_secs = training_step - result.step, time.time() - result.taken
        if not result.known:
            result.write(self._reporter.metrics, lag_steps, lag_secs, last)
        found = {"step": result.step, **result.metrics}
        evaluations = self._lists.evaluations
        evaluations[result.kind] = found
        first = {"evaluation": found, "evaluation_lag": {"steps": lag_steps, "secs": lag_secs}}
        self.status(state="running", evaluations=evaluations, **(first if result.number == 0 else {}))
        behind = f"  ({lag_steps} steps behind)" if lag_steps else ""
        before = "  (evaluated before)" if result.known else ""
        log.info(f"{result.text}{behind}{before}")
        for export in result.exports:
            self._export(export, result.step)

    def _export(self, export: ExportResult, step: int) -> None:
        if export.error is None:
            log.info(f"export {export.path}")
            if export.new:
                self._reporter.metrics.note("export", step, exporter=export.exporter, path=str(export.path))
            return
        log.warning(f"the exporter {export.exporter!r} failed at step {step}: {export.error}")
        self._reporter.metrics.note("export_failed", step, exporter=export.exporter, error=export.error)
        errors = self._lists.export_errors
        errors.append({"exporter": export.exporter, "step": step, "error": export.error})
        del errors[:-EXPORT_ERRORS_KEPT]
        self.status(state="running", export_errors=errors)

    def page(self, job_dir: Path, again: bool = False) -> None:
        """Writes the report of a job that is done, if it is wanted; silently where it is written `again`."""
        if not self.config.report:
            return
        self._reporter.tell_energy()
        self._reporter.slow_ranks.sum_up()
        self._reporter.status.write()  # which the report reads
        try:
            from hpc_train.report.page import write_report  # a job needs it once, at its end

            path = write_report(job_dir)
        except Exception as error:  # whatever goes wrong with it, the job is done
            log.warning(f"report.html could not be written: {type(error).__name__}: {error}")
            return
        self.status(state="succeeded", report=str(path))
        if not again:
            log.info(f"report {path}")


class RunLog(RunListener):
    """Logs what happens, and writes it to metrics, status and report.

    Attributes:
        status: Changes fields of status.json. run_ended: notes the end of this run in the metrics.
    """

    def __init__(self, context: RunContext, chief: ChiefServices, checkpointing: Checkpointing) -> None:
        self._context, self._reporter, self._reports = (
            context,
            chief.reporter,
            RunReports(chief.reporter, context.config),
        )
        self._checkpointing = checkpointing
        self.status, self.run_ended = chief.reporter.status.update, chief.reporter.run_ended
        self._last_weights = context.plan.first_step

    def committed(self) -> None:
        """Records the checkpoints that have been committed since the last call."""
        for step, about in self._checkpointing.committed():
            self._reporter.metrics.note("checkpoint", step, **about)

    def after_checkpoint(self, step: int, path: Path) -> None:
        """Histograms of the weights, where they are due and the chief takes no steps; else a hook writes them."""
        every, snapshot = self._context.config.save_histograms_steps, self._checkpointing.snapshot
        if not every or not self._context.plan.roles.idle or snapshot is None:
            return
        if step // every > self._last_weights // every:
            self._last_weights = step
            trained = {variable.path for variable in self._context.model.trainable_variables}
            self._reporter.metrics.weights(step, {k: v for k, v in snapshot.model.items() if k in trained})

    def evaluation(self, result: EvaluationResult, training_step: int, last: bool) -> None:
        """Records an evaluation, unless an earlier run has."""
        self._reports.evaluation(result, training_step, last)

    def report(self, step: int) -> None:
        """Writes the report of a job that is done, if it is wanted."""
        self._context.watchdog.at("report", step)
        self._reports.page(self._context.job_dir)
