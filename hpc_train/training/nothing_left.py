"""A job of which nothing is left: its results, from what earlier runs have left, before TensorFlow starts."""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from pathlib import Path

from hpc_train.config.settings import flattened
from hpc_train.engine.run_context import Result
from hpc_train.engine.run_plan import RunPlan, TrainingJob
from hpc_train.errors import UserError
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobdir.paths import export_path
from hpc_train.telemetry.status import job_fields, sound

log = logging.getLogger(__name__)


def finished_result(job: TrainingJob, plan: RunPlan) -> Result | None:
    """The results of a job that has been trained, evaluated and exported to its end, and is asked for as it was then.

    None where a run may have something to do: steps, an evaluation, an export, another setting, or its end to be
    reported to a queue. Logs that nothing is left, and the ways on. For the chief; writes nothing.
    """
    job_dir = JobDir(job.job_dir)
    found = job_dir.status()
    status = sound(found)
    if found.get("export_errors"):  # which may work this time
        return None
    succeeded = (status.get("state"), status.get("step")) == ("succeeded", plan.first_step)
    if not plan.is_over or not succeeded or job_fields(os.environ)["job_id"] or not _is_as_before(job, job_dir):
        return None
    exports = [export_path(job.job_dir, path) for path in status.get("exports", [])]
    metrics = [job_dir.evaluations().get(spec.kind, {}).get(plan.first_step) for spec in job.eval_specs]
    if None in metrics or metrics[0] is None or not all(Path(path).is_dir() for path in exports):
        return None
    shown = "  ".join(f"{name} {value:.4f}" for name, value in metrics[0].items())
    where, ways = f"is at step {plan.first_step:,} of {plan.max_steps:,} ({shown})", "raise max_steps"
    if plan.decision is not None:
        where = f"stopped early at step {plan.first_step:,} ({plan.decision.reason})"
        ways = "change early_stopping or max_steps"
    log.info(f"nothing is left to train: {job.job_dir} {where}; {ways} to go on, or give another job-dir to begin anew")
    return {**metrics[0], "global_step": plan.first_step}, exports


def _is_as_before(job: TrainingJob, job_dir: JobDir) -> bool:
    with suppress(UserError):
        return flattened(job_dir.job().value) == flattened(json.loads(json.dumps(job.description, default=str)))
    return False
