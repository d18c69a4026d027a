"""What is checked of the data before anything is written: shards that go together, labels that the model knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

from hpc_train.config.specs import EvalSpec, HDF5Input, TrainSpec
from hpc_train.data.hdf5.shards import ShardSet, find_shards
from hpc_train.data.loading.batch_source import training_sampler
from hpc_train.data.loading.label_check import LabelRange, check_classes, label_ranges
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.lazy import keras
from hpc_train.model.backward import check_accumulation
from hpc_train.model.builder import sparse_classes

Shards = Sequence["ShardSet | None"]
"""Of training, then of each evaluation set; None means an input that is a function."""


def parts_of(eval_specs: Sequence[EvalSpec]) -> list[str]:
    """What training data and evaluation sets are called in data.json."""
    return ["train", *(spec.kind for spec in eval_specs)]


def checked_shards(
    readers: int, train_spec: TrainSpec, eval_specs: Sequence[EvalSpec], accumulate_steps: int
) -> Shards:
    """The shards of all specs, for `readers` ranks that train. Local.

    Raises:
        UserError: They are missing, cannot be read, do not go together, or have too few rows for the ranks.
    """
    sources = [train_spec.input_fn, *(spec.input_fn for spec in eval_specs)]
    train, *evaluations = [find_shards(source) if isinstance(source, HDF5Input) else None for source in sources]
    if train is not None and isinstance(train_spec.input_fn, HDF5Input):
        check_accumulation(train_spec.input_fn.batch_size, accumulate_steps)
        training_sampler(train_spec.input_fn, train, 0, readers)
    for evaluation in evaluations:
        if train is not None and evaluation is not None:
            _check_alike(train, evaluation)
    return [train, *evaluations]


def _check_alike(train: ShardSet, evaluation: ShardSet) -> None:
    for kind in ("feature", "label"):
        all_ours, all_theirs = getattr(train, f"{kind}s"), getattr(evaluation, f"{kind}s")
        for ours, theirs in zip(all_ours, all_theirs, strict=False):
            if ours.name != theirs.name or ours.shape != theirs.shape:
                raise UserError(
                    f"{evaluation.paths[0]}: {kind} {theirs.name!r} is {theirs}, but training has {ours.name!r}, {ours}"
                )
        if len(all_ours) != len(all_theirs):
            raise UserError(
                f"{evaluation.paths[0]}: {len(all_theirs)} {kind}s, but training has {len(all_ours)}; name them"
            )


def check_labels(world: World, shards: Shards, specs: Sequence[TrainSpec | EvalSpec], model: keras.Model) -> None:
    """Looks at labels that a sparse cross-entropy takes as they are stored, each rank at its part. Collective.

    Raises:
        UserError: A label is not the number of one of the model's classes.
    """
    for found, source in zip(shards, [spec.input_fn for spec in specs], strict=True):
        if found is None or not isinstance(source, HDF5Input) or source.map_fn is not None:
            continue
        wanted = sparse_classes(model, [column.name for column in found.labels])
        ignored = {dataset: ignore for dataset, (_, ignore) in wanted.items()}
        own = world.each(
            lambda found=found, ignored=ignored: label_ranges(found, ignored, world.rank, world.size, world.cores)  # type: ignore[misc]
        )
        ranges = [LabelRange(*r) for part in world.all_gather([astuple(r) for r in own]) for r in part]
        for dataset, (classes, _) in wanted.items():
            check_classes(ranges, dataset, classes)
