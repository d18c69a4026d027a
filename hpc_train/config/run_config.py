"""RunConfig: where and how a job runs. Frozen, validated when made, shared by the API and the job file.

Names and defaults follow tf.estimator's RunConfig (TensorFlow 2.15 API documentation) wherever it had the thing.
RunOptions is the part that a job file can express.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from hpc_train.arguments import is_path, shown
from hpc_train.config.estimator_arguments import RUN_CONFIG
from hpc_train.config.mesh import MeshOptions
from hpc_train.config.types import STRICT, Count, Seconds, StrategyName
from hpc_train.config.validation import specification

DEFAULT_SAVE_CHECKPOINTS_SECS = 600.0
"""Time between checkpoints when neither `save_checkpoints_steps` nor `save_checkpoints_secs` is given."""


_FOR_SYNC = {
    "allreduce": "`allreduce` is for `strategy: sync`; asynchronous workers reach their servers by MPI's windows",
    "compression": "`compression` is for `strategy: sync`, whose gradients are averaged over the network",
    "float16": "`float16` is for `strategy: sync`: its loss scale would have to change on all workers and servers "
    "together; take `bfloat16`",
    "rollback": "`rollback` is for `strategy: sync`: an asynchronous job would not meet the same batch again; take "
    "`skip`",
    "keras": "`sparse_gradients: keras` is for `strategy: sync` on one rank; servers get each row once",
    "shard_optimizer": "`shard_optimizer` is for `strategy: sync`; an asynchronous job divides the optimizer among its "
    "servers: set `parameter_servers`",
    "mesh": "`mesh` is for `strategy: sync`: workers of an asynchronous job compute each in its own time, and cannot "
    "divide a model; its parameters are divided among `parameter_servers`",
    "check_replicas_steps": "`check_replicas_steps` is for `strategy: sync`: servers have no replicas to compare",
}
"""Keys, and values of keys, that `strategy: async` refuses, and why."""


MOST_IN_FLIGHT = 4
"""Steps beyond the one that runs."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RunOptions:
    """How a job runs: strategy, checkpoints, summaries. See RunConfig."""

    retired: ClassVar[Mapping[str, str]] = RUN_CONFIG
    strategy: StrategyName = "sync"
    chief: Literal["train", "dedicated"] = "train"
    mesh: MeshOptions | None = None
    shard_optimizer: bool = False
    parameter_servers: Count = 1
    max_staleness: Annotated[int, Field(ge=0, strict=True)] | None = None
    on_lost_worker: Literal["end", "continue"] = "end"
    prefetch_parameters: bool = False
    scale_lr_by_staleness: bool = False
    save_checkpoints_steps: Count | None = None
    save_checkpoints_secs: PositiveFloat | None = None
    keep_checkpoint_max: Annotated[int, Field(ge=0, strict=True)] = 5
    keep_checkpoint_every_n_hours: PositiveFloat | None = None
    best_metric: str | None = "loss"
    best_mode: Literal["min", "max"] = "min"
    on_save_error: Literal["halt", "continue"] = "halt"
    on_nan: Literal["halt", "skip", "rollback"] = "halt"
    check_replicas_steps: Annotated[int, Field(ge=0, strict=True)] = 0
    stall_timeout_secs: Seconds = 600.0
    slow_rank_factor: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = 1.2
    on_slow_node: Literal["warn", "exclude"] = "warn"
    steps_in_flight: Annotated[int, Field(ge=0, le=MOST_IN_FLIGHT, strict=True)] | None = None
    save_summary_steps: Count = 100
    log_step_count_steps: Count = 100
    tf_random_seed: Annotated[int, Field(ge=0, lt=2**32, strict=True)] | None = None
    mixed_precision: Literal["bfloat16", "float16"] | None = None
    learning_rate_cycle: Count | None = None
    accumulate_steps: Count = 1
    compression: Literal["fp16", "bf16"] | None = None
    allreduce: Literal["horovod", "mpi", "mpi-gpu"] | None = None
    sparse_gradients: Literal["dense", "keras"] = "dense"
    on_export_error: Literal["continue", "halt"] = "continue"
    save_histograms_steps: Annotated[int, Field(ge=0, strict=True)] = 0
    profile_steps: tuple[Count, Count] | None = None
    report: bool = True

    @field_validator(
        "allreduce",
        "compression",
        "mesh",
        "mixed_precision",
        "on_nan",
        "check_replicas_steps",
        "sparse_gradients",
        "shard_optimizer",
    )
    @classmethod
    def _is_for_sync(cls, value: Any, info: ValidationInfo) -> Any:
        why = _FOR_SYNC.get(value) or (value and _FOR_SYNC.get(str(info.field_name)))
        if why and info.data.get("strategy") == "async":
            raise ValueError(why)
        return value

    @field_validator("allreduce")
    @classmethod
    def _stays_in_gpus(cls, value: str | None, info: ValidationInfo) -> str | None:
        others = [key for key in ("compression", "shard_optimizer") if info.data.get(key)]
        if value == "mpi-gpu" and others:
            raise ValueError(
                f"`allreduce: mpi-gpu` and `{others[0]}` exclude each other: what that sends goes through the host; "
                "take `allreduce: mpi`"
            )
        return value

    @field_validator("mesh")
    @classmethod
    def _is_of_all_ranks(cls, mesh: MeshOptions | None, info: ValidationInfo) -> MeshOptions | None:
        if mesh is not None and info.data.get("chief") == "dedicated":
            raise ValueError("`mesh` and `chief: dedicated` exclude each other; the chief trains here: `chief: train`")
        return mesh

    @field_validator("shard_optimizer")
    @classmethod
    def _has_no_idle_rank(cls, sharded: bool, info: ValidationInfo) -> bool:
        if sharded and info.data.get("chief") == "dedicated":
            raise ValueError(
                "`shard_optimizer` and `chief: dedicated` exclude each other: a dedicated chief is sent the state of "
                "one worker, and each has a part; take `chief: train`, which writes checkpoints in a thread, too"
            )
        return sharded

    @field_validator("profile_steps")
    @classmethod
    def _is_a_range(cls, steps: tuple[int, int] | None) -> tuple[int, int] | None:
        if steps is not None and steps[0] > steps[1]:
            raise ValueError(f"`profile_steps` {list(steps)} end before they begin; give the first and the last step")
        return steps

    @field_validator("parameter_servers", "max_staleness", "prefetch_parameters", "scale_lr_by_staleness")
    @classmethod
    def _is_for_async(cls, value: Any, info: ValidationInfo) -> Any:
        changed = value is not None and value is not False and (info.field_name, value) != ("parameter_servers", 1)
        if changed and info.data.get("strategy") == "sync":
            raise ValueError(f"`{info.field_name}` is for `strategy: async`")
        return value

    @field_validator("on_lost_worker")
    @classmethod
    def _can_do_without_one(cls, value: str, info: ValidationInfo) -> str:
        if value == "continue" and info.data.get("strategy") == "sync":
            raise ValueError(
                "`on_lost_worker: continue` is for `strategy: async`; a synchronous step needs all ranks: have the job "
                "started again (`hpc-train launch --max-restarts`)"
            )
        if value == "continue" and info.data.get("max_staleness") == 0:
            raise ValueError(
                "`on_lost_worker: continue` and `max_staleness: 0`, whose steps need all workers, exclude each other; "
                "set `max_staleness` to 1 or more"
            )
        return value

    @field_validator("on_slow_node")
    @classmethod
    def _has_slow_ranks_named(cls, value: str, info: ValidationInfo) -> str:
        if value == "exclude" and info.data.get("slow_rank_factor", 0) is None:
            raise ValueError(
                "`on_slow_node: exclude` and `slow_rank_factor: null`, which names no rank, exclude each other; "
                "leave one of them out"
            )
        return value

    @field_validator("prefetch_parameters", "scale_lr_by_staleness", "steps_in_flight")
    @classmethod
    def _has_stale_gradients(cls, value: Any, info: ValidationInfo) -> Any:
        if value and info.data.get("max_staleness") == 0:
            raise ValueError(
                f"`{info.field_name}` and `max_staleness: 0`, which allows no staleness, exclude each other"
            )
        return value

    @field_validator("steps_in_flight")
    @classmethod
    def _is_the_one_way_ahead(cls, depth: int | None, info: ValidationInfo) -> int | None:
        if depth and info.data.get("prefetch_parameters"):
            raise ValueError(
                f"`steps_in_flight: {depth}` and `prefetch_parameters` exclude each other: while a step is in flight "
                "parameters are fetched beside it in any case; leave `prefetch_parameters` out"
            )
        return depth

    @field_validator("save_checkpoints_secs")
    @classmethod
    def _one_checkpoint_interval(cls, secs: float | None, info: ValidationInfo) -> float | None:
        if secs is not None and info.data.get("save_checkpoints_steps") is not None:
            raise ValueError("give `save_checkpoints_steps` or `save_checkpoints_secs`, not both")
        return secs

    @property
    def checkpoint_interval_secs(self) -> float | None:
        """Seconds between checkpoints, or None where steps decide."""
        if self.save_checkpoints_steps is not None:
            return None
        return self.save_checkpoints_secs or DEFAULT_SAVE_CHECKPOINTS_SECS


def _is_folder(path: Any) -> Any:
    if isinstance(path, str | Path) and not is_path(path):
        raise ValueError(f"{shown(path)} is not allowed; allowed: a folder, or None for a temporary one")
    return path


@specification
@dataclass(frozen=True, config=STRICT)
class RunConfig(RunOptions):
    """Where and how a job runs.

    Args:
        model_dir: The job-dir: checkpoints, metrics, exports and the status go there. Shared by all ranks. `None`: a
            new temporary folder, which train_and_evaluate makes for all ranks, logs, and puts here.
        strategy: `"sync"`: gradients are averaged over all ranks each step (ring-allreduce). `"async"`: the
            first ranks are parameter servers, which apply each worker's gradient as it arrives; one of them is a step.
        chief: `"train"`: rank 0 trains like the others, and all ranks evaluate together. `"dedicated"`: it takes no
            steps, but saves, evaluates and exports while the others train on (sync; in async it is always so).
        mesh: `{data: D, model: M}`: D times M ranks train D copies of the model, each on rows of its own; the layers of
            `ht.parallel` in a copy are divided among M ranks with numbers one after the other (sync; Shoeybi et al.,
            arXiv:1909.08053). Without `data`: as many copies as the ranks give. `None`: each rank has a copy.
        shard_optimizer: Each rank updates a part of the variables, and holds the optimizer's state of that alone: of N
            ranks, one N-th (ZeRO, stage 1; Rajbhandari et al., arXiv:1910.02054). For optimizers that work element by
            element, such as SGD, Adam and AdamW. Checkpoints are those of any job (sync).
        parameter_servers: How many (async). Rank 0 is the first, and the chief; each holds a part of the parameters.
        max_staleness: How many gradients a worker may be ahead of the slowest one (async; stale synchronous parallel);
            `None`: no bound. 0 averages a gradient of each worker for each step: synchronous training.
        on_lost_worker: When a worker is killed by a signal (async): `"end"` ends the job; `"continue"` goes on with the
            others, which make its steps, too. The job's next start has all ranks again.
        prefetch_parameters: Workers fetch parameters while they compute, at the price of one more step of staleness.
        scale_lr_by_staleness: Divide the learning rate of a gradient by its staleness, where that is above 1 (async).
        save_checkpoints_steps, save_checkpoints_secs: Interval between checkpoints; one of the two, 600 s when
            neither is given. The last step is always saved.
        keep_checkpoint_max: Newest checkpoints to keep; 0 keeps all.
        keep_checkpoint_every_n_hours: Beyond those, keep the first checkpoint of each period of so many hours.
        best_metric, best_mode: The checkpoint whose evaluation has the smallest (`"min"`) or largest (`"max"`) value of
            this metric is kept too; `None` keeps none for its merit.
        on_save_error: When a checkpoint cannot be written: `"halt"` ends the job with code 9, `"continue"` goes on and
            tries again at the next one. The last checkpoint must succeed.
        on_nan: When the loss or a gradient is not finite, no rank applies the update. `"halt"` ends the job with code
            7; `"skip"` goes on with the next batch; `"rollback"` goes back to the last checkpoint and leaves the batch
            out.
        check_replicas_steps: Steps between comparisons of all ranks' variables, to the bit; 0: never.
        stall_timeout_secs: A rank that does not move for so long is named and the job ended with code 6; 0: never.
        slow_rank_factor: A rank is named whose own time of a step (without what it waits for) is so many times the
            median of the others', in 14 of the last 20 records; `None`: none is. Not on GPUs in sync, whose own time is
            not known, nor with layers that are divided among ranks.
        on_slow_node: `"exclude"`: the next start of the job is without the node of such a rank, where others can take
            its place: `hpc-train submit` and `resume` ask Slurm for other nodes, and a job that has
            `resources.min_nodes` leaves it out. Nothing else does: `hpc-train launch`, `mpirun` and `horovodrun` start
            where they are told. `"warn"`: it is only named.
        steps_in_flight: How many steps, from 0 to 4, are dispatched before the one that runs is over, so that a device
            need not wait for the host between steps; `None`: 1 on a GPU, 0 on cores. A signal or a hook ends training
            so many steps later, and a GPU holds so many batches more. In sync the results are the same to the bit; in
            async a worker's gradient is of parameters that lack so many of its own gradients before, so that it is 0
            with `max_staleness: 0` and with `prefetch_parameters`.
        save_summary_steps: Steps between records in metrics.jsonl and TensorBoard.
        log_step_count_steps: Steps between log lines when the output is not a terminal.
        tf_random_seed: Seed of the initial weights, of dropout, and of what the model draws from Python's, numpy's and
            TensorFlow's global generators; `None` takes a random one.
        mixed_precision: Compute in `"bfloat16"` or `"float16"`, with variables in float32; float16 with a loss scale
            that all ranks change together (Micikevicius et al., arXiv:1710.03740).
        learning_rate_cycle: Has the model's constant learning rate come down to 0 by half a cosine in so many updates,
            and begin anew (Keras's CosineDecayRestarts; Loshchilov and Hutter, arXiv:1608.03983).
        accumulate_steps: Compute a rank's batch in so many pieces, one after the other, which takes the memory of one.
        compression: Send gradients as 16-bit numbers: `"fp16"` or `"bf16"` (sync).
        allreduce: What averages the gradients: `"horovod"`, or `"mpi"`, which needs no Horovod; equal to the bit on two
            ranks, to rounding on more. `"mpi-gpu"`: MPI, in the memory of GPUs, where it takes that (CUDA-aware).
            `None`: Horovod where it is installed, else `"mpi"` (sync).
        sparse_gradients: How optimizers get the gradients of embeddings: `"dense"`: whole, which gives the same on any
            number of ranks. `"keras"`: as the rows that a batch has, which Keras's Adam, RMSprop and clipping treat
            otherwise; on one rank alone, and for ht.parallel.ShardedEmbedding on any number (sync).
        on_export_error: When an exporter fails: `"continue"` reports it in the log and in status.json; `"halt"` ends
            the job, after a checkpoint, with code 1.
        save_histograms_steps: Steps between histograms of all weights for TensorBoard; 0: never.
        profile_steps: First and last step to be profiled for TensorBoard, on the first rank that trains.
        report: Write report.html once training has ended; `hpc-train report` writes it at any time.

    Raises:
        UserError: With every value that is not allowed, and what cannot be together.
    """

    model_dir: Annotated[Path | None, BeforeValidator(_is_folder)] = None
