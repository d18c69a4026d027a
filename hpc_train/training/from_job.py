"""A job file's model function, found and called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpc_train.config.estimator import Estimator
from hpc_train.config.job import JobConfig
from hpc_train.distributed.world import World
from hpc_train.engine.run_context import Result
from hpc_train.engine.run_plan import TrainingJob
from hpc_train.model.functions import load_function
from hpc_train.resilience.signals import StopSignals
from hpc_train.training.trainer import run_job


def train_job(
    world: World, job: JobConfig, job_dir: Path, code_folder: Path, signals: StopSignals, delay_secs: float = 0.0
) -> Result:
    """Runs the job that `job` describes in `job_dir`; see train_and_evaluate. Collective.

    This rank sleeps `delay_secs` after each step.
    """

    def model_fn(params: dict[str, Any]) -> Any:
        # Imported as late as this, and so is map_fn's, so that TensorFlow starts after its settings are made.
        return load_function(job.model, code_folder)(params)

    model_fn.__qualname__ = job.model
    estimator = Estimator(model_fn, job.run_config(job_dir), job.params, job.warm_start_from)
    description = job.model_dump(mode="json")

    def load(name: str) -> Callable[..., Any]:
        return load_function(name, code_folder)

    specs = job.train_spec(), tuple(job.eval_specs())
    return run_job(world, TrainingJob(estimator, *specs, description, code_folder, load, delay_secs), signals)
