"""What a run tells of beside its steps: checkpoints, evaluations, exports, its end. Local."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hpc_train.engine.checkpointing import Saving
from hpc_train.evaluation.runner import Assessment, Export
from hpc_train.report import write_report

if TYPE_CHECKING:
    from hpc_train.engine.run_context import Session

EXPORT_ERRORS_KEPT = 20
"""In status.json; metrics.jsonl has all of them."""


class Telling:
    """Prints, and writes metrics, status and report; does nothing on ranks that are not the chief."""

    def __init__(self, session: Session) -> None:
        self._s, self._reporting = session, session.reporting
        self._shown_weights = session.first_step

    def say(self, text: str) -> None:
        """Prints a line."""
        if self._reporting:
            self._reporting.say(text)

    def status(self, **fields: Any) -> None:
        """Changes fields of status.json."""
        if self._reporting:
            self._reporting.status.update(**fields)

    def saves(self, saving: Saving) -> None:
        """Records the checkpoints that have been committed since the last call."""
        if self._reporting:
            for found in saving.news():
                self._reporting.metrics.note(
                    "checkpoint",
                    found.step,
                    secs=found.secs,
                    bytes=found.bytes,
                    stall_secs=found.stall_secs,
                    committed=found.time,
                )

    def weights(self, step: int, saving: Saving) -> None:
        """Histograms of the weights just saved, where they are due. For a chief that takes no steps."""
        every, snapshot = self._s.config.save_histograms_steps, saving.snapshot
        if every and self._reporting and snapshot is not None and step // every > self._shown_weights // every:
            self._shown_weights = step
            trained = {variable.path for variable in self._s.model.trainable_variables}
            self._reporting.metrics.weights(step, {k: v for k, v in snapshot.model.items() if k in trained})

    def evaluation(self, a: Assessment, training_step: int, last: bool) -> None:
        """Records an evaluation, unless an earlier run has; `training_step` is where training is meanwhile."""
        lag = {"lag_steps": training_step - a.step, "lag_secs": time.time() - a.taken}
        if self._reporting and not a.known:
            values = {**a.metrics, "secs": a.secs, **lag}
            about = {"checkpoint_time": a.taken, "what": a.what, "last": last}
            self._reporting.metrics.record(a.kind, a.step, values, only_here=about)
        found = {"step": a.step, **a.metrics}
        evaluations = self._s.told.evaluations
        evaluations[a.kind] = found
        first = {"evaluation": found, "evaluation_lag": {"steps": lag["lag_steps"], "secs": lag["lag_secs"]}}
        self.status(state="running", evaluations=evaluations, **(first if a.number == 0 else {}))
        shown = "  ".join(f"{name} {value:.4f}" for name, value in a.metrics.items())
        behind = f"  ({lag['lag_steps']} steps behind)" if lag["lag_steps"] else ""
        before = "  (evaluated before)" if a.known else ""
        self.say(f"{a.kind} at step {a.step}: {shown}{behind}{before}")

    def exports(self, a: Assessment) -> Export | None:
        """Records what the exporters of an evaluation have done; returns the first that failed."""
        for export in a.exports:
            if export.error is None:
                self.say(f"export {export.path}")
                if self._reporting and export.new:
                    self._reporting.metrics.note("export", a.step, exporter=export.exporter, path=export.path)
            else:
                self._failed(export, a.step)
        return next((export for export in a.exports if export.error is not None), None)

    def _failed(self, export: Export, step: int) -> None:
        self.say(f"warning: the exporter {export.exporter!r} failed at step {step}: {export.error}")
        if self._reporting:
            self._reporting.metrics.note("export_failed", step, exporter=export.exporter, error=export.error)
        errors = self._s.told.export_errors
        errors.append({"exporter": export.exporter, "step": step, "error": export.error})
        del errors[:-EXPORT_ERRORS_KEPT]
        self.status(state="running", export_errors=errors)

    def end(self, step: int, state: str, reason: str) -> None:
        """Notes the end of this run."""
        if self._reporting:
            self._reporting.metrics.end(step, state, reason)

    def report(self, step: int) -> None:
        """Writes the report of a job that is done."""
        if self._reporting is None:
            return
        self._s.watchdog.at("report", step)
        try:
            path = write_report(self._s.job_dir)
        except Exception as error:  # whatever goes wrong with it, the job is done
            self.say(f"warning: report.html could not be written: {type(error).__name__}: {error}")
            return
        self.status(state="succeeded", report=str(path))
        self.say(f"report {path}")
