"""What is checked of the data before anything is written: shards that go together, labels that the model knows."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple
from typing import Any

import numpy as np

from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.specs import EvalSpec, TrainSpec
from hpc_train.config.table_schema import TableSchema
from hpc_train.data.hdf5.columns import Column
from hpc_train.data.hdf5.shards import ShardSet, find_shards
from hpc_train.data.loading.batch_source import training_sampler
from hpc_train.data.loading.label_check import (
    LabelRange,
    UnknownText,
    check_classes,
    check_kept_classes,
    check_texts,
    label_ranges,
    unknown_texts,
)
from hpc_train.data.loading.tf_dataset import OpenInput
from hpc_train.distributed.roles import Roles
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.lazy import keras, tf
from hpc_train.model.backward import check_accumulation
from hpc_train.model.builder import sparse_classes
from hpc_train.telemetry.units import counted
from hpc_train.text import listed

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
    for source, evaluation in zip(sources[1:], evaluations, strict=True):
        if train is not None and evaluation is not None and _map_fn(source) == _map_fn(train_spec.input_fn):
            _check_alike(train, evaluation)
    return [train, *evaluations]


def check_schema(shards: Shards, specs: Sequence[TrainSpec | EvalSpec], schema: TableSchema) -> None:
    """Whether the labels of shards are numbers of the classes that a built-in model's `schema` has. Local.

    Raises:
        UserError: They stand for other classes.
    """
    for found, spec in zip(shards, specs, strict=True):
        if found is not None and _map_fn(spec.input_fn) is None:
            check_kept_classes(found, schema.classes)


def _map_fn(source: Any) -> Any:
    """Which function makes batches of what the shards hold; where two inputs have the same, they have to be alike."""
    return getattr(source, "map_fn", None)


def _check_alike(train: ShardSet, evaluation: ShardSet) -> None:
    """Raises UserError where batches of `evaluation` are other than those that the model is trained on.

    The names of datasets count only where they are those of the model's inputs or outputs: in a batch that is a dict.
    """
    where = evaluation.paths[0]
    for kind in ("feature", "label"):
        all_ours, all_theirs = getattr(train, f"{kind}s"), getattr(evaluation, f"{kind}s")
        if len(all_ours) != len(all_theirs):
            counts = [f"{counted(len(c), kind)} ({listed(x.name for x in c)})" for c in (all_theirs, all_ours)]
            raise UserError(f"{where}: {counts[0]}, but training has {counts[1]}; name those that are meant")
        ours, theirs = (_by_key(columns) for columns in (all_ours, all_theirs))
        if set(ours) != set(theirs):
            needed = ", ".join(f"{key}: …" for key in ours)
            way = "the name of its dataset alone" if None in ours else f"{{{needed}}} with its own datasets"
            raise UserError(
                f"{where}: the {kind}s reach the model as {_keys(theirs)}, but in training as {_keys(ours)}; give "
                f"this input `{_OPTIONS[kind]}:` {way}"
            )
        for key, column in theirs.items():
            trained = ours[key]
            if column.shape != trained.shape or _kind(column) != _kind(trained):
                raise UserError(
                    f"{where}: {kind} {column.name!r} is {column}, but training has {trained.name!r}, {trained}"
                )


def notes_on_types(shards: Shards, specs: Sequence[TrainSpec | EvalSpec]) -> list[str]:
    """What to know where features are whole numbers in training, and are not in an evaluation, or the other way."""
    train, *evaluations = shards
    notes = []
    for evaluation, spec in zip(evaluations, specs[1:], strict=True):
        if train is None or evaluation is None or _map_fn(spec.input_fn) != _map_fn(specs[0].input_fn):
            continue
        ours, theirs = _by_key(train.features), _by_key(evaluation.features)
        for key, column in theirs.items():
            trained = ours[key]
            if {np.dtype(c.dtype).kind.replace("u", "i") for c in (column, trained)} == {"i", "f"}:
                notes.append(
                    f"{evaluation.paths[0]}: feature {column.name!r} is {column.dtype}, but training has "
                    f"{trained.name!r}, {trained.dtype}: the model gets both as they are stored; if only one of them "
                    "is scaled, the results mean nothing (hpc-train shard --dtype makes them alike)"
                )
    return notes


_OPTIONS = {"feature": "features", "label": "label"}


def _by_key(columns: Sequence[Column]) -> dict[str | None, Column]:
    """Columns by what they are called in a batch; None where it is the column itself."""
    if len(columns) == 1 and columns[0].given is None:
        return {None: columns[0]}
    return {column.key: column for column in columns}


def _keys(columns: Mapping[str | None, Column]) -> str:
    return "a tensor" if None in columns else f"a dict of {listed(str(key) for key in columns)}"


def _kind(column: Column) -> tuple[bool, bool, bool]:
    """What has to be alike: complex numbers, texts, and rows of different lengths, as far as they are no texts."""
    return column.dtype.startswith("complex"), column.is_text, column.takes_padding


def check_same_batches(
    world: World, roles: Roles, what: str, source: Any, opened: Callable[[], AbstractContextManager[OpenInput]]
) -> None:
    """Compares the first batch of the ranks that share a copy of the model, where a function makes it. Collective.

    Args:
        what: What the input is called. source: its `input_fn`. opened: opens it for this rank.

    Raises:
        UserError: They are others.
    """
    if roles.model == 1 or isinstance(source, HDF5Input):
        return

    def digest() -> int:
        found = 0
        with opened() as data:
            batch = next(iter(data.dataset.take(1)), ())
            for tensor in tf.nest.flatten(batch, expand_composites=True):
                found = zlib.crc32(tf.io.serialize_tensor(tensor).numpy(), found)
        return found

    digests = world.all_gather(world.each(digest))
    group = roles.mesh_of(world.rank).model_group
    other = next((rank for rank in group if digests[rank] != digests[group[0]]), None)

    def refuse(ranks: list[int]) -> None:
        raise UserError(
            f"{what}: input_fn gives rank {ranks[1]} other rows than rank {ranks[0]}, which has a part of the same "
            "copy of the model (run.mesh); draw what it draws from context.seed, which both have alike, and map "
            "without deterministic=False"
        )

    if (found := world.first(None if other is None else [group[0], other])) is not None:
        world.each(lambda: refuse(found))


def check_labels(world: World, shards: Shards, specs: Sequence[TrainSpec | EvalSpec], model: keras.Model) -> None:
    """Looks at labels that a sparse cross-entropy takes as they are stored, each rank at its part. Collective.

    Raises:
        UserError: A label is not the number of one of the model's classes, or none of its `label_vocabulary`.
    """
    for found, source in zip(shards, [spec.input_fn for spec in specs], strict=True):
        if found is None or not isinstance(source, HDF5Input) or source.map_fn is not None:
            continue
        _check_texts(world, found, model)
        classes_of = sparse_classes(model, [column.key for column in found.labels])
        wanted = {column.name: classes_of[column.key] for column in found.labels if column.key in classes_of}
        ignored = {dataset: ignore for dataset, (_, ignore) in wanted.items()}
        own = world.each(
            lambda found=found, ignored=ignored: label_ranges(found, ignored, world.rank, world.size, world.cores)  # type: ignore[misc]
        )
        gathered = world.gather([astuple(r) for r in own]) or []  # the chief checks
        ranges = [LabelRange(*r) for part in gathered for r in part]

        def check(ranges: list[LabelRange] = ranges, wanted: dict[str, tuple[int, int | None]] = wanted) -> None:
            for dataset, (classes, _) in wanted.items():
                check_classes(ranges, dataset, classes)

        world.on_chief(check)


def _check_texts(world: World, shards: ShardSet, model: keras.Model) -> None:
    """The same of labels that are texts, where the model has a `label_vocabulary`."""
    vocabulary = getattr(model, "label_vocabulary", None)
    if vocabulary is None or len(shards.labels) != 1 or not shards.labels[0].is_text:
        return
    dataset = shards.labels[0].name
    own = world.each(lambda: unknown_texts(shards, dataset, vocabulary, world.rank, world.size, world.cores))
    gathered = world.gather([astuple(found) for found in own]) or []
    unknown = [UnknownText(*found) for part in gathered for found in part]
    world.on_chief(lambda: check_texts(unknown, dataset, vocabulary))
