"""TrainSpec and EvalSpec: frozen, validated when made, shared by the API and the job file.

Names and defaults follow tf.estimator's TrainSpec and EvalSpec (TensorFlow 2.15 API documentation) wherever it had the
thing. A class named `…Options` is the part that a job file can express; the spec beside it adds what only Python can
hold (a callable).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, model_validator
from pydantic.dataclasses import dataclass

from hpc_train.config.early_stopping import EarlyStoppingRules
from hpc_train.config.estimator_arguments import EVAL_SPEC, TRAIN_SPEC
from hpc_train.config.exporters import Exporters, refuse_same_names
from hpc_train.config.functions import check_input
from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.types import STRICT, ClassWeight, ClassWeightOption, Count, Functions, Name, Seconds
from hpc_train.config.validation import specification


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
        if source.stage != "none":
            raise ValueError("`stage` is for training; an evaluation reads its shards where they are")
    return source


EvalInput = Annotated[HDF5Input, AfterValidator(read_once)]


KEPT_IN_SYNC = (
    "keep_global_batch is for `strategy: sync`: a step of an asynchronous job is one batch of one worker, however many "
    "there are; leave it out"
)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrainOptions:
    """The job file's `train:`."""

    retired: ClassVar[Mapping[str, str]] = TRAIN_SPEC
    max_steps: Count | None = None
    keep_global_batch: bool = False
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
        keep_global_batch: Where the job goes on with another number of ranks, a step has as many rows as before, or as
            near as whole rows come where these cannot be divided evenly: each rank gives more or fewer of them, and
            computes them in pieces of `batch_size` (by `accumulate_steps`) at most (sync, with an HDF5Input).
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

    @model_validator(mode="after")
    def _has_a_batch_to_keep(self) -> TrainSpec:
        if self.keep_global_batch and not isinstance(self.input_fn, HDF5Input):
            raise ValueError("`keep_global_batch` is for an HDF5Input; the batches of an input_fn are its own")
        if self.keep_global_batch and self.input_fn.bucket_by is not None:
            raise ValueError(
                "`keep_global_batch` and the input's `bucket_by`, by which the order of rows depends on `batch_size`, "
                "exclude each other"
            )
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
