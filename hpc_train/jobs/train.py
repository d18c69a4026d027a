"""What trains the job of a job file, whatever its model is."""

from __future__ import annotations

from pathlib import Path

from hpc_train.config.builtin_model import GBDTModel
from hpc_train.config.job import JobConfig
from hpc_train.distributed.world import World
from hpc_train.resilience.signals import StopSignals
from hpc_train.training.trainer import train_job


def train(
    world: World, job: JobConfig, job_dir: Path, code_folder: Path, signals: StopSignals, delay_secs: float = 0.0
) -> None:
    """Trains, evaluates and exports; see train_and_evaluate. Collective.

    This rank sleeps `delay_secs` after each step.
    """
    if isinstance(job.model, GBDTModel):
        from hpc_train.boosting.trainer import train_trees

        train_trees(world, job, job_dir, code_folder, signals, delay_secs)
    else:
        train_job(world, job, job_dir, code_folder, signals, delay_secs)
