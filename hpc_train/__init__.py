"""Train TensorFlow/Keras models on HPC clusters: one job file, MPI ranks, HDF5 shards, exact restarts.

The public names are imported when they are first used, so that `import hpc_train` takes milliseconds and
starts neither TensorFlow nor MPI.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpc_train.config.job import JobConfig, load_job
    from hpc_train.config.specs import EvalSpec, FinalExporter, HDF5Input, RunConfig, TrainSpec
    from hpc_train.data.pipeline import InputContext
    from hpc_train.errors import RankError, UserError
    from hpc_train.estimator.estimator import Estimator
    from hpc_train.estimator.train_and_evaluate import train_and_evaluate

__version__ = "0.1.0"

_HOME = {
    "Estimator": "hpc_train.estimator.estimator",
    "EvalSpec": "hpc_train.config.specs",
    "FinalExporter": "hpc_train.config.specs",
    "HDF5Input": "hpc_train.config.specs",
    "InputContext": "hpc_train.data.pipeline",
    "JobConfig": "hpc_train.config.job",
    "RankError": "hpc_train.errors",
    "RunConfig": "hpc_train.config.specs",
    "TrainSpec": "hpc_train.config.specs",
    "UserError": "hpc_train.errors",
    "load_job": "hpc_train.config.job",
    "train_and_evaluate": "hpc_train.estimator.train_and_evaluate",
}

__all__ = [
    "Estimator",
    "EvalSpec",
    "FinalExporter",
    "HDF5Input",
    "InputContext",
    "JobConfig",
    "RankError",
    "RunConfig",
    "TrainSpec",
    "UserError",
    "load_job",
    "train_and_evaluate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'hpc_train' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
