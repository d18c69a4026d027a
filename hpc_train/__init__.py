"""Train TensorFlow/Keras models on HPC clusters: one job file, MPI ranks, HDF5 shards, exact restarts.

The public names are imported when they are first used, so that `import hpc_train` takes milliseconds and
starts neither TensorFlow nor MPI.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpc_train import parallel
    from hpc_train.callbacks.hook import Hook, HookContext, SavingListener
    from hpc_train.canned import feature_column
    from hpc_train.canned.estimators import (
        DNNClassifier,
        DNNLinearCombinedClassifier,
        DNNLinearCombinedRegressor,
        DNNRegressor,
        LinearClassifier,
        LinearRegressor,
    )
    from hpc_train.config.early_stopping import stop_if_higher, stop_if_lower, stop_if_no_decrease, stop_if_no_increase
    from hpc_train.config.estimator import Estimator
    from hpc_train.config.exporters import BestExporter, FinalExporter, LatestExporter
    from hpc_train.config.hdf5_input import HDF5Input
    from hpc_train.config.job import JobConfig, load_job
    from hpc_train.config.run_config import RunConfig
    from hpc_train.config.specs import EvalSpec, TrainSpec
    from hpc_train.config.table import Table
    from hpc_train.config.warm_start import WarmStartSettings
    from hpc_train.data.loading.tf_dataset import InputContext
    from hpc_train.distributed.exchange import all_gather
    from hpc_train.distributed.launcher import is_chief, launched_ranks
    from hpc_train.distributed.scaling import scaled_learning_rate
    from hpc_train.ensembles.ensemble import ensemble
    from hpc_train.errors import JobEndedError, RankError, SchedulerError, UserError
    from hpc_train.inference.exported_model import load_exported_model
    from hpc_train.jobs.job import Job, submit
    from hpc_train.mapreduce import reducers
    from hpc_train.mapreduce.adapt import adapt
    from hpc_train.mapreduce.map_reduce import map_reduce
    from hpc_train.models.function import builtin_model
    from hpc_train.optimizers.lars import LARS
    from hpc_train.optimizers.warm_up import WarmUp
    from hpc_train.training.trainer import train_and_evaluate
    from hpc_train.tuning.tune import tune

__version__ = "0.1.0"

_NAMES = {
    "hpc_train.callbacks.hook": ("Hook", "HookContext", "SavingListener"),
    "hpc_train.canned.estimators": (
        "DNNClassifier",
        "DNNLinearCombinedClassifier",
        "DNNLinearCombinedRegressor",
        "DNNRegressor",
        "LinearClassifier",
        "LinearRegressor",
    ),
    "hpc_train.config.early_stopping": (
        "stop_if_higher",
        "stop_if_lower",
        "stop_if_no_decrease",
        "stop_if_no_increase",
    ),
    "hpc_train.config.estimator": ("Estimator",),
    "hpc_train.config.exporters": ("BestExporter", "FinalExporter", "LatestExporter"),
    "hpc_train.config.hdf5_input": ("HDF5Input",),
    "hpc_train.config.job": ("JobConfig", "load_job"),
    "hpc_train.config.run_config": ("RunConfig",),
    "hpc_train.config.specs": ("EvalSpec", "TrainSpec"),
    "hpc_train.config.table": ("Table",),
    "hpc_train.config.warm_start": ("WarmStartSettings",),
    "hpc_train.data.loading.tf_dataset": ("InputContext",),
    "hpc_train.distributed.exchange": ("all_gather",),
    "hpc_train.distributed.launcher": ("is_chief", "launched_ranks"),
    "hpc_train.distributed.scaling": ("scaled_learning_rate",),
    "hpc_train.ensembles.ensemble": ("ensemble",),
    "hpc_train.errors": ("JobEndedError", "RankError", "SchedulerError", "UserError"),
    "hpc_train.inference.exported_model": ("load_exported_model",),
    "hpc_train.jobs.job": ("Job", "submit"),
    "hpc_train.mapreduce.adapt": ("adapt",),
    "hpc_train.mapreduce.map_reduce": ("map_reduce",),
    "hpc_train.models.function": ("builtin_model",),
    "hpc_train.optimizers.lars": ("LARS",),
    "hpc_train.optimizers.warm_up": ("WarmUp",),
    "hpc_train.training.trainer": ("train_and_evaluate",),
    "hpc_train.tuning.tune": ("tune",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = {
    "feature_column": "hpc_train.canned.feature_column",
    "parallel": "hpc_train.parallel",
    "reducers": "hpc_train.mapreduce.reducers",
}

__all__ = [
    "BestExporter",
    "DNNClassifier",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
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
    "LinearClassifier",
    "LinearRegressor",
    "RankError",
    "RunConfig",
    "SavingListener",
    "SchedulerError",
    "Table",
    "TrainSpec",
    "UserError",
    "WarmStartSettings",
    "WarmUp",
    "adapt",
    "all_gather",
    "builtin_model",
    "ensemble",
    "feature_column",
    "is_chief",
    "launched_ranks",
    "load_exported_model",
    "load_job",
    "map_reduce",
    "parallel",
    "reducers",
    "scaled_learning_rate",
    "stop_if_higher",
    "stop_if_lower",
    "stop_if_no_decrease",
    "stop_if_no_increase",
    "submit",
    "train_and_evaluate",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _HOME:
        from hpc_train.config.estimator_arguments import NAMES
        from hpc_train.errors import did_you_mean

        hint = f"instead of that of tf.estimator: {NAMES[name]}" if name in NAMES else did_you_mean(name, __all__)
        raise AttributeError(f"module 'hpc_train' has no attribute {name!r}" + (f"; {hint.rstrip()}" if hint else ""))
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME, *_MODULES])
