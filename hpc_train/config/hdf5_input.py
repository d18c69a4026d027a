"""HDF5Input: which rows of sharded HDF5 files are read, and how. Frozen, validated when made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from hpc_train.config.estimator_arguments import HDF5_INPUT
from hpc_train.config.functions import MAP_FN
from hpc_train.config.types import (
    STRICT,
    Count,
    Datasets,
    Names,
    are_datasets,
    are_features,
    are_paddings,
    as_tuple,
    datasets_of,
    function_of,
)
from hpc_train.config.validation import specification


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
        stage: `"node"`: in training, the first rank of each node copies the shards to the node while the first pass
            reads them where they are; all ranks of the node read from the copies once these are there. `"none"`: not.
        stage_dir: The node's own folder that they are copied to, an absolute path. `None`: the site's scratch, else
            $SLURM_TMPDIR where that is set, else /dev/shm, where copies take the memory of the job, at most half of
            what is free. Nothing has a name there: nothing stays.

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
    stage: Literal["node", "none"] = "none"
    stage_dir: Annotated[str, Field(min_length=1, max_length=4096)] | None = None

    @field_validator("stage_dir")
    @classmethod
    def _is_a_folder_to_stage_in(cls, folder: str | None, info: ValidationInfo) -> str | None:
        if folder is None:
            return None
        if info.data.get("stage", "node") != "node":
            raise ValueError("`stage_dir` is where `stage: node` copies shards to, but `stage` is 'none'")
        if not folder.startswith("/") or "\0" in folder:
            raise ValueError(f"is {folder!r}; an absolute path is needed, the same on each node")
        return folder

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
