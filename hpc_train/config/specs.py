"""RunConfig, TrainSpec, EvalSpec and HDF5Input: frozen, validated when made, shared by the API and the job file.

Names and defaults follow tf.estimator's RunConfig, TrainSpec and EvalSpec (TensorFlow 2.15 API documentation)
wherever it had the thing. A class named `…Options` is the part that a job file can express; the spec beside it
adds what only Python can hold (a callable) or what the command line gives (the directory).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PositiveFloat,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.dataclasses import dataclass

from hpc_train.arguments import is_path, shown
from hpc_train.config.early_stopping import EarlyStoppingRules
from hpc_train.config.estimator_arguments import EVAL_SPEC, HDF5_INPUT, RUN_CONFIG, TRAIN_SPEC
from hpc_train.config.exporters import Exporters, refuse_same_names
from hpc_train.config.functions import MAP_FN, check_input
from hpc_train.config.mesh import MeshOptions
from hpc_train.config.types import (
    STRICT,
    ClassWeight,
    ClassWeightOption,
    Count,
    Datasets,
    Functions,
    Name,
    Names,
    Seconds,
    StrategyName,
    are_datasets,
    are_features,
    are_paddings,
    as_tuple,
    datasets_of,
    function_of,
)
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


@specification
@dataclass(frozen=True, config=STRICT)
class HDF5Input:
    """Rows of sharded HDF5 files, read batch by batch, each rank its own part.

    Args:
        shards: Path or glob, or several; relative to the working directory, or to the job file that names it.
        batch_size: Rows a rank reads for one step. The global batch is `batch_size` x ranks, or with `run.mesh` x
            copies of the model.
        features: Dataset names. One reaches the model as a tensor `[B, ...]`, several as a dict by name; a mapping
            `{input: dataset}` as a dict by the names of the model's inputs. `None`: every dataset but the label.
        label: Dataset name, or several (a dict by name, for models of several outputs), or a mapping
            `{output: dataset}`. `None`: the dataset called `label`, `labels` or `y`; an empty tuple: none, for models
            that need no label.
        shuffle: `"global"`: one permutation of all rows an epoch, dealt to the ranks step by step.
            `"block"`: blocks of contiguous rows are permuted and dealt to the ranks, each of which shuffles a buffer
            of a tenth of its share with its own seed, so that files are read in long pieces. `"none"`: file order.
        seed: Base of every seed; a rank's own are derived from it.
        epochs: Passes over the data when training; `None` repeats for ever. Evaluation reads its rows once, in file
            order.
        map_fn: Applied to each batch: a TensorFlow function of `(features, label)`, or of `(features)` where there
            is no label, that returns the same or `(features, label, sample_weight)`. If it has a parameter `seed`,
            it gets an int32 `[2]` tensor for tf.random.stateless_* functions, derived from (seed, epoch, step,
            rank). In a job file: `file.py:function` or `package.module:function`.
        external: Files outside the shards that may be read where a shard leads to them, by external links, virtual
            datasets or external storage: path or glob, or several, as `shards`. None: such a shard is refused.
        pad: For each dataset of numbers whose rows have different lengths, what a batch's shorter rows are filled up
            with: `{"tokens": 0}` to the longest row of each batch, `{"tokens": {"value": 0, "length": 128}}` to that
            length, by which longer rows are cut. `"tokens/length"` is a dataset, too: the lengths of the rows as they
            are stored, int64 `[B]`.
        bucket_by: A feature or label whose rows have different lengths, or are texts: in training, with `shuffle:
            "block"`, batches are made of rows of about the same length of it, so that less is padded.
        bootstrap: In training, with `shuffle: "global"`, a seed: an epoch is as many rows as there are, drawn from all
            of them with replacement, the same in each epoch, as members of an ensemble take them (bagging). `None`:
            each row once.

    Data keeps its stored dtype until `map_fn`: uint8 images stay uint8, texts are tf.string
    `[B, ...]` in UTF-8. Each input names its own datasets: those of an evaluation may be called otherwise than those of
    the training.

    Raises:
        UserError: With every value that is not allowed. That the files can be read is looked at when training begins.
    """

    retired: ClassVar[Mapping[str, str]] = HDF5_INPUT
    shards: Names
    batch_size: Count = 32
    features: Annotated[tuple[str, ...] | dict[str, str] | None, BeforeValidator(are_features)] = None
    label: Annotated[tuple[str, ...] | dict[str, str] | None, BeforeValidator(are_datasets)] = None
    shuffle: Literal["global", "block", "none"] = "global"
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 0
    epochs: Count | None = None
    map_fn: Annotated[Any, function_of(*MAP_FN)] = None
    external: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()
    pad: Annotated[dict[str, Any], AfterValidator(are_paddings)] = field(default_factory=dict)
    bucket_by: str | None = None
    bootstrap: Annotated[int, Field(ge=0, lt=2**63, strict=True)] | None = None

    @field_validator("bootstrap")
    @classmethod
    def _is_for_all_rows(cls, seed: int | None, info: ValidationInfo) -> int | None:
        if seed is not None and info.data.get("shuffle", "global") != "global":
            raise ValueError(
                "`bootstrap` draws from all rows, as `shuffle: global` reads them, but `shuffle` is "
                f"{info.data['shuffle']!r}"
            )
        return seed

    @field_validator("bucket_by")
    @classmethod
    def _is_for_blocks(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is not None and info.data.get("shuffle", "block") != "block":
            raise ValueError(
                "`bucket_by` puts rows of like length together within the windows of `shuffle: block`, but `shuffle` "
                f"is {info.data['shuffle']!r}"
            )
        return name

    @field_validator("features", "label")
    @classmethod
    def _names_are_distinct(cls, names: Datasets, info: ValidationInfo) -> Datasets:
        others = info.data.get("features") if info.field_name == "label" else ()
        taken = [*datasets_of(names), *datasets_of(others)]
        twice = sorted({name for name in taken if taken.count(name) > 1})
        if twice:
            raise ValueError(f"names {', '.join(twice)} more than once among `features` and `label`")
        return names


def _is_input(source: Any) -> Any:
    if not isinstance(source, HDF5Input):
        check_input(source)
    return source


InputFunction = Annotated[Any, AfterValidator(_is_input)]
"""An HDF5Input, or a function that returns batches."""


def read_once(source: Any) -> Any:
    """`source`, an evaluation's input; ValueError where it asks for several passes, or for other rows."""
    if isinstance(source, HDF5Input):
        for key in ("epochs", "bootstrap"):
            if getattr(source, key) is not None:
                raise ValueError(f"`{key}` is for training; an evaluation reads its rows once")
    return source


EvalInput = Annotated[HDF5Input, AfterValidator(read_once)]


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
    steps_in_flight: Annotated[int, Field(ge=0, le=MOST_IN_FLIGHT, strict=True)] | None = None
    save_summary_steps: Count = 100
    log_step_count_steps: Count = 100
    tf_random_seed: Annotated[int, Field(ge=0, lt=2**32, strict=True)] | None = None
    mixed_precision: Literal["bfloat16", "float16"] | None = None
    learning_rate_cycle: Count | None = None
    accumulate_steps: Count = 1
    compression: Literal["fp16", "bf16"] | None = None
    allreduce: Literal["horovod", "mpi"] | None = None
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
            ranks, to rounding on more. `None`: Horovod where it is installed (sync).
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


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrainOptions:
    """The job file's `train:`."""

    retired: ClassVar[Mapping[str, str]] = TRAIN_SPEC
    max_steps: Count | None = None
    class_weight: ClassWeightOption | None = None
    early_stopping: EarlyStoppingRules = ()
    hooks: Functions = ()
    saving_listeners: Functions = ()


@specification
@dataclass(frozen=True, config=STRICT)
class TrainSpec(TrainOptions):
    """What to train on, and for how long.

    Args:
        input_fn: An HDF5Input, or a callable `(InputContext) -> tf.data.Dataset` of batches `x`, `(x, y)` or
            `(x, y, sample_weight)`. Of a callable without arguments each of n ranks takes every n-th batch.
        max_steps: Global step at which training ends, counted over all restarts. `None`: until the input ends.
        class_weight: The weight of each class in the loss, `{0: 1.0, 1: 5.0}`; classes that are not named weigh 1. For
            models with one label; it has the effect of Keras's `fit(class_weight=…)`.
        early_stopping: Rules that end training before, such as `stop_if_no_decrease("loss", 1000)`.
        hooks: Called beside the steps: a Hook, or a keras.callbacks.Callback. In a job file `file.py:function`, a
            function without arguments that returns one, or a list of them.
        saving_listeners: Called before and after each checkpoint, on the rank that writes it; see SavingListener.

    Raises:
        UserError: As RunConfig; training would never end, or `input_fn` has other arguments.
    """

    input_fn: InputFunction
    class_weight: ClassWeight | None = field(default=None, kw_only=True)

    @model_validator(mode="after")
    def _ends(self) -> TrainSpec:
        if self.max_steps is None and isinstance(self.input_fn, HDF5Input) and self.input_fn.epochs is None:
            raise ValueError("training would never end: give `max_steps`, or `epochs` in the HDF5Input")
        return self


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EvalTimes:
    """How much is evaluated, and when. See EvalSpec."""

    retired: ClassVar[Mapping[str, str]] = EVAL_SPEC
    steps: Count | None = 100
    start_delay_secs: Seconds = 120.0
    throttle_secs: Seconds = 600.0
    eval_every_checkpoint: bool = False
    hooks: Functions = ()


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EvalOptions(EvalTimes):
    """The job file's `eval:`, except for its exporters."""

    name: Name | None = None


@specification
@dataclass(frozen=True, config=STRICT)
class EvalSpec(EvalOptions):
    """How to evaluate and what to export.

    Args:
        input_fn: As in TrainSpec; an HDF5Input is read once, in file order.
        steps: Batches to evaluate, over all ranks together; `None` evaluates all rows.
        name: Distinguishes several evaluations: results go to eval_<name>/ instead of eval/.
        start_delay_secs: No evaluation before so many seconds of training.
        throttle_secs: At least so many seconds between the starts of two evaluations. Neither holds back the
            last one, which always takes place.
        eval_every_checkpoint: Evaluate all checkpoints, whatever those two are.
        exporters: What to export, and when: exporters with different names, or one.
        hooks: Called around the evaluations of this set and their batches, on each rank that evaluates. In a job file
            as in `train`.

    Raises:
        UserError: As TrainSpec; two exporters have the same name.
    """

    input_fn: Annotated[InputFunction, AfterValidator(read_once)]
    exporters: Exporters = field(default=(), kw_only=True)

    @property
    def kind(self) -> str:
        """What its records and its folder of event files are called."""
        return f"eval_{self.name}" if self.name else "eval"

    @model_validator(mode="after")
    def _exporter_names_are_distinct(self) -> EvalSpec:
        refuse_same_names(self.exporters)
        return self


def refuse_same_kinds(specs: Sequence[EvalSpec]) -> None:
    """ValueError where two evaluations, or the exporters of two, have the same name."""
    kinds = [spec.kind for spec in specs]
    twice = sorted({kind for kind in kinds if kinds.count(kind) > 1})
    if twice:
        raise ValueError(f"several evaluations need different names; {', '.join(twice)} is there more than once")
    refuse_same_names([exporter for spec in specs for exporter in spec.exporters])
