"""Counterparts of Horovod's names: in hpc_train.horovod, and in a job whose model is model.py."""

from __future__ import annotations

from hpc_train.horovod.names import KERAS, NOT_OFFERED, TENSORFLOW
from hpc_train.migration.counterparts.row import Counterpart, keep, missing, table

IMPORT_NOTE = (
    "the program then runs with Keras 3, as a job of its own (`module:` in job.yaml; docs/programs.md#horovod-"
    "programs); as a job with model.py, ranks, gradients, checkpoints and restarts are the package's"
)
TORCH = "hpc_train trains Keras models; a program with PyTorch runs as a job of its own (`module:` in job.yaml)"
MXNET = "hpc_train trains Keras models; MXNet is retired"
SPARK = "ranks are started by `mpirun -np N`, `hpc-train launch -n N` or `hpc-train submit`, not by Spark or Ray"
_AVERAGED = "gradients are averaged over all ranks each step"
_SHARED = "all ranks begin with rank 0's variables, or with those of the newest checkpoint"
_TENSORS = "evaluation adds up metrics over all ranks by itself; in a model of one's own ht.all_gather"
_COMPRESSION = "`run.compression` of job.yaml: fp16 or bf16"
_RATES = (
    "`ht.WarmUp(rate, warmup_steps)`, in the optimizer of model_fn, counts steps; docs/big_batches.md#learning-rate-"
    "scaling-and-warm-up"
)

_GONE = {
    "device_dense": "the device is the rank's own; leave it out",
    "device_sparse": "the device is the rank's own; leave it out",
    "process_set": NOT_OFFERED["ProcessSet"],
}

_IN_A_JOB: dict[str, tuple[str, str, str]] = {
    # name: (code in model.py, signature, what it is in a job)
    "init": ("", "*", "ranks are joined before model_fn is called"),
    "shutdown": ("", "*", "ranks leave together at the end"),
    "rank": ("", "*", "ht.is_chief() says whether this is rank 0; input_fn(context) has input_pipeline_id"),
    "size": ("ht.launched_ranks()", "*", "how many ranks the launcher has started"),
    "local_rank": ("", "*", "each rank has a GPU of its own"),
    "local_size": ("", "*", "each rank has a GPU, or its share of the cores, of its own"),
    "DistributedOptimizer": (
        "optimizer",
        "optimizer *",
        f"the optimizer alone: {_AVERAGED}; compression is `run.compression`, backward_passes_per_step is "
        "`run.accumulate_steps`",
    ),
    "DistributedGradientTape": (
        "",
        "*",
        f"model.compile(optimizer, loss) takes the loop's place: {_AVERAGED}",
    ),
    "broadcast_variables": ("", "*", _SHARED),
    "broadcast_global_variables": ("", "*", _SHARED),
    "broadcast_object": ("", "*", "params of job.yaml are the same on all ranks"),
    "allgather_object": ("", "*", _TENSORS),
    "allreduce": ("", "*", _TENSORS),
    "grouped_allreduce": ("", "*", _AVERAGED),
    "allgather": ("ht.all_gather(tensor)", "tensor *", "in a model, with its gradient"),
    "broadcast": ("", "*", _SHARED),
    "alltoall": ("", "*", "there is none in a model of a job"),
    "reducescatter": ("", "*", "there is none in a model of a job"),
    "join": ("", "*", "all ranks take the same number of steps; rows are dealt so that none waits"),
    "load_model": ("keras.models.load_model(filepath)", "filepath *", "the job restores its own checkpoints"),
    "Compression": ("", "*", _COMPRESSION),
    "callbacks.BroadcastGlobalVariablesCallback": ("", "*", _SHARED),
    "callbacks.MetricAverageCallback": ("", "*", "metrics are those of all ranks' rows"),
    "callbacks.LearningRateWarmupCallback": ("", "*", _RATES),
    "callbacks.LearningRateScheduleCallback": (
        "",
        "*",
        "a keras.callbacks.LearningRateScheduler among `train.hooks`, or a schedule in the optimizer",
    ),
}
_MORE = {
    "callbacks.BestModelCheckpoint": NOT_OFFERED["BestModelCheckpoint"],
    "callbacks.CommitStateCallback": NOT_OFFERED["elastic"],
    "callbacks.UpdateBatchStateCallback": NOT_OFFERED["elastic"],
    "callbacks.UpdateEpochStateCallback": NOT_OFFERED["elastic"],
    "elastic.*": NOT_OFFERED["elastic"],
}


def _offered(name: str) -> Counterpart:
    code, signature, why = _IN_A_JOB.get(name, ("", "*", "the job does without"))
    return keep(f"hvd.{name}", why, code, signature, _GONE)


HOROVOD_TABLE: dict[str, Counterpart] = table(
    (
        *(_offered(name) for name in sorted({*KERAS, *TENSORFLOW, *_IN_A_JOB} - {"callbacks"})),
        *(
            missing(f"hvd.{name}", why)
            for name, why in (NOT_OFFERED | _MORE).items()
            if name not in KERAS and name not in TENSORFLOW
        ),
        missing("hvd.*", "hpc_train.horovod has no such name"),
        missing("horovod.torch*", TORCH),
        missing("horovod.mxnet*", MXNET),
        missing("horovod.spark*", SPARK),
        missing("horovod.ray*", SPARK),
        missing("horovod.run", NOT_OFFERED["run"]),
        missing("horovod.*", "hpc_train.horovod has no such name"),
    )
)
"""By full name (hpc_train.migration.names)."""
