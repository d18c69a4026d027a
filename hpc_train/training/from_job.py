"""A job file's job, trained."""

from __future__ import annotations

from pathlib import Path

from hpc_train.config.job import JobConfig
from hpc_train.distributed.world import World
from hpc_train.engine.run_plan import TrainingJob
from hpc_train.model.job_model import JobModel
from hpc_train.resilience.signals import StopSignals
from hpc_train.training.trainer import Result, run_job


def train_job(
    world: World, job: JobConfig, job_dir: Path, code_folder: Path, signals: StopSignals, delay_secs: float = 0.0
) -> Result:
    """Runs the job that `job` describes in `job_dir`; see train_and_evaluate. Collective.

    This rank sleeps `delay_secs` after each step.
    """
    model = JobModel.of_job(job, job_dir, code_folder)
    estimator, specs = model.estimator(job.warm_start_from), (job.train_spec(), tuple(job.eval_specs()))
    description = job.model_dump(mode="json")
    return run_job(world, TrainingJob(estimator, *specs, description, code_folder, model.load, delay_secs), signals)
