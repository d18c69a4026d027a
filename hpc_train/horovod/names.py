"""Which of Horovod's names are offered, where each is defined, and what takes the place of the others. Pure."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from hpc_train.errors import did_you_mean

_HERE = "hpc_train.horovod"
_COMMON = {
    "ranks": (
        "init", "shutdown", "is_initialized", "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size",
        "is_homogeneous", "mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built",
        "nccl_built", "cuda_built", "rocm_built", "ddl_built", "ccl_built",
    ),
    "settings": ("Average", "Sum", "Adasum", "Min", "Max", "Product"),
    "compression": ("Compression",),
    "variables": ("broadcast_global_variables",),
    "optimizer": ("DistributedOptimizer",),
}  # fmt: skip
_TENSORFLOW = {
    "operations": (
        "allreduce", "grouped_allreduce", "allgather", "grouped_allgather", "broadcast", "alltoall", "reducescatter",
        "grouped_reducescatter", "join",
    ),
    "variables": ("broadcast_variables", "broadcast_object", "allgather_object"),
    "tape": ("DistributedGradientTape", "PartialDistributedGradientTape"),
}  # fmt: skip
_KERAS = {
    "values": ("allreduce", "allgather", "broadcast", "reducescatter"),
    "loading": ("load_model",),
    "variables": ("broadcast_variables", "broadcast_object", "allgather_object"),
}


def _homes(*tables: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    return {name: f"{_HERE}.{module}" for table in tables for module, names in table.items() for name in names}


TENSORFLOW = _homes(_COMMON, _TENSORFLOW)
"""The module of each name that stands for one of `horovod.tensorflow`."""
KERAS = {**_homes(_COMMON, _KERAS), "callbacks": f"{_HERE}.callbacks"}
"""The same of `horovod.keras`, where `callbacks` is a module."""

_SETS = "all ranks take part in each operation; leave process sets out"
_ELASTIC = (
    "the number of ranks is fixed while a job runs: save on rank 0, and start again on any number of ranks, as "
    "`hpc-train launch --max-restarts` and a queue's requeue do (docs/programs.md, Resuming)"
)
_SESSIONS = "TensorFlow has no sessions any more; call hvd.broadcast_variables after the first step"
_TIMELINE = "set HOROVOD_TIMELINE=FILE in the environment instead"
_NUMBER = "a rank's number and their count do not change while a job runs: hvd.rank(), hvd.size()"
NOT_OFFERED = {
    "elastic": _ELASTIC,
    "run": "ranks are started by `mpirun -np N`, `horovodrun -np N` or `hpc-train launch`",
    "ProcessSet": _SETS,
    "global_process_set": _SETS,
    "add_process_set": _SETS,
    "remove_process_set": _SETS,
    "process_set_included_op": _SETS,
    "BroadcastGlobalVariablesHook": _SESSIONS,
    "broadcast_object_fn": "TensorFlow has no sessions any more; call hvd.broadcast_object",
    "broadcast_": "call hvd.broadcast_variables(variables, root_rank)",
    "DistributedAdasumOptimizer": "reduce with hvd.DistributedGradientTape(tape, op=hvd.Adasum)",
    "LocalGradientAggregationHelper": "give DistributedOptimizer backward_passes_per_step",
    "SyncBatchNormalization": "each rank normalises by its own rows, as keras.layers.BatchNormalization does; "
    "keras.layers.GroupNormalization does not depend on the batch",
    "BestModelCheckpoint": "give rank 0 keras.callbacks.ModelCheckpoint(path, save_best_only=True)",
    "start_timeline": _TIMELINE,
    "stop_timeline": _TIMELINE,
    "rank_op": _NUMBER,
    "size_op": _NUMBER,
    "local_rank_op": _NUMBER,
    "local_size_op": _NUMBER,
    "DistributedGradientTape": "it is in hpc_train.horovod.tensorflow, and in hpc_train.horovod",
    "load_model": "it is in hpc_train.horovod.keras, and in hpc_train.horovod",
    "callbacks": "it is in hpc_train.horovod.keras, and in hpc_train.horovod",
}
"""Names of Horovod's that a module here may lack, and the way on."""


def looked_up(module: str, name: str, homes: Mapping[str, str]) -> Any:
    """What `module` has under `name`.

    Raises:
        AttributeError: It has none; the message names what takes its place, or what there is.
    """
    if name in homes:
        found = importlib.import_module(homes[name])
        return found if name == "callbacks" else getattr(found, name)
    if name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    way = NOT_OFFERED.get(name) or f"{did_you_mean(name, homes)}offered: {', '.join(sorted(homes))}"
    raise AttributeError(f"{module}.{name} is not offered; {way}")


def listed(homes: Mapping[str, str]) -> list[str]:
    """What `dir` of such a module is."""
    return sorted(homes)
