"""Train TensorFlow/Keras models on HPC clusters: one job file, MPI ranks, HDF5 shards, exact restarts.

The public names are imported when they are first used, so that `import hpc_train` takes milliseconds and
starts neither TensorFlow nor MPI.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpc_train.callbacks.hook import Hook, HookContext, SavingListener
    from hpc_train.config.early_stopping import stop_if_higher, stop_if_lower, stop_if_no_decrease, stop_if_no_increase
    from hpc_train.config.estimator import Estimator
    from hpc_train.config.exporters import BestExporter, FinalExporter, LatestExporter
    from hpc_train.config.job import JobConfig, load_job
    from hpc_train.config.specs import EvalSpec, HDF5Input, RunConfig, TrainSpec
    from hpc_train.config.warm_start import WarmStartSettings
    from hpc_train.data.loading.tf_dataset import InputContext
    from hpc_train.distributed.scaling import launched_ranks, scaled_learning_rate
    from hpc_train.errors import JobEndedError, RankError, SchedulerError, UserError
    from hpc_train.jobs.job import Job, submit
    from hpc_train.optimizers.lars import LARS
    from hpc_train.optimizers.warm_up import WarmUp
    from hpc_train.training.trainer import train_and_evaluate

__version__ = "0.1.0"

_HOME = {
    "BestExporter": "hpc_train.config.exporters",
    "Estimator": "hpc_train.config.estimator",
    "EvalSpec": "hpc_train.config.specs",
    "FinalExporter": "hpc_train.config.exporters",
    "HDF5Input": "hpc_train.config.specs",
    "Hook": "hpc_train.callbacks.hook",
    "HookContext": "hpc_train.callbacks.hook",
    "InputContext": "hpc_train.data.loading.tf_dataset",
    "Job": "hpc_train.jobs.job",
    "JobConfig": "hpc_train.config.job",
    "JobEndedError": "hpc_train.errors",
    "LARS": "hpc_train.optimizers.lars",
    "LatestExporter": "hpc_train.config.exporters",
    "RankError": "hpc_train.errors",
    "RunConfig": "hpc_train.config.specs",
    "SavingListener": "hpc_train.callbacks.hook",
    "SchedulerError": "hpc_train.errors",
    "TrainSpec": "hpc_train.config.specs",
    "UserError": "hpc_train.errors",
    "WarmStartSettings": "hpc_train.config.warm_start",
    "WarmUp": "hpc_train.optimizers.warm_up",
    "launched_ranks": "hpc_train.distributed.scaling",
    "load_job": "hpc_train.config.job",
    "scaled_learning_rate": "hpc_train.distributed.scaling",
    "stop_if_higher": "hpc_train.config.early_stopping",
    "stop_if_lower": "hpc_train.config.early_stopping",
    "stop_if_no_decrease": "hpc_train.config.early_stopping",
    "stop_if_no_increase": "hpc_train.config.early_stopping",
    "submit": "hpc_train.jobs.job",
    "train_and_evaluate": "hpc_train.training.trainer",
}

__all__ = [
    "BestExporter",
    "Estimator",
    "EvalSpec",
    "FinalExporter",
    "HDF5Input",
    "Hook",
    "HookContext",
    "InputContext",
    "Job",
    "JobConfig",
    "JobEndedError",
    "LARS",
    "LatestExporter",
    "RankError",
    "RunConfig",
    "SavingListener",
    "SchedulerError",
    "TrainSpec",
    "UserError",
    "WarmStartSettings",
    "WarmUp",
    "launched_ranks",
    "load_job",
    "scaled_learning_rate",
    "stop_if_higher",
    "stop_if_lower",
    "stop_if_no_decrease",
    "stop_if_no_increase",
    "submit",
    "train_and_evaluate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'hpc_train' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
