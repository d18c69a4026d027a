"""Exports a job's model from one of its checkpoints, in a process of its own."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hpc_train.checkpoint.format import Snapshot, StoredArray
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.manifest import DamagedError, FormatError
from hpc_train.checkpoint.names import Retention
from hpc_train.config.exporters import FinalExporter, TablePlace
from hpc_train.config.types import NAME_PATTERN
from hpc_train.data.hdf5.shards import ShardSet, find_shards
from hpc_train.data.loading.tf_dataset import InputContext
from hpc_train.data.memory import available_bytes
from hpc_train.distributed.layout import BLOCK_BYTES
from hpc_train.distributed.placement import tables_outside
from hpc_train.distributed.share import Share
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.export.contents import about_job
from hpc_train.export.export_dir import ExportFolder
from hpc_train.export.exporters import ExporterRunner
from hpc_train.export.signature import Signature, signature_of, signature_of_inputs
from hpc_train.export.table_shards import Put, TableSource
from hpc_train.export.whole_model import tables_of
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobdir.paths import EXPORTS
from hpc_train.lazy import keras
from hpc_train.model.job_data import elsewhere, input_names, with_data
from hpc_train.model.job_model import JobModel, job_in_job_dir
from hpc_train.model.model_state import ModelState
from hpc_train.model.own_steps import NO_UPDATES, Updates, has_own_train_step, updates_of

AVERAGE = re.compile(r"_average(#\d+)?$")
"""Names of variables in which Keras's optimizers keep averages of weights."""


@dataclass(frozen=True)
class CheckpointExport:
    """An export of the checkpoint of `step`; `in_shards`: its tables are beside the model."""

    step: int
    path: Path
    in_shards: bool = False


@dataclass(frozen=True)
class TablesInCheckpoint:
    """Tables that a model lies without, to be streamed from its checkpoint. See exporters.Weights."""

    tables: tuple[TableSource, ...]

    def refresh(self) -> None:
        """Nothing: the model has all others."""


def export_checkpoint(
    job_dir: Path,
    step: int | None = None,
    name: str = "manual",
    out: Path | None = None,
    data: Sequence[str] = (),
    tables: TablePlace = "auto",
) -> CheckpointExport:
    """Exports from the checkpoint of `step`, the newest where it is None. Local; the job may be running.

    Args:
        data: Where the shards of the first evaluation set lie by now: they tell the shapes of the model's inputs.
        tables: As in FinalExporter.

    Writes `job_dir`/export/`name`/<unix seconds>/, or `out`/<unix seconds>/.

    Raises:
        UserError: There is no such checkpoint, or the job's model cannot be built again, or `name` is an exporter of
            the job. Whatever the model function raises.
    """
    job_dir = job_dir.absolute()
    left = JobDir(job_dir)
    manager = CheckpointManager(left.checkpoints_path, Retention())
    step = _chosen(manager, job_dir, step)
    document = left.job()
    if not re.fullmatch(NAME_PATTERN, name):
        raise UserError(f"--name {name!r} is not allowed; a letter, then letters, digits and underscores")
    if out is None and name in _exporter_names(document.value):
        raise UserError(f"--name {name}: the job has an exporter of that name; choose another one")
    restored = restored_model(job_dir, step, data, tables)
    job, time = restored.job, restored.snapshot.time
    exporter = FinalExporter(name)
    runner = ExporterRunner(
        job_dir,
        (exporter,),
        restored.model,
        restored.signature,
        restored.about,
        job.load,
        sole=False,
        schema=job.schema,
        weights=restored.weights,
    )
    runner.check(())
    folder = ExportFolder(job_dir / EXPORTS / name, False, job_dir)
    if out is not None:
        folder = ExportFolder(out.absolute(), False)
    metrics = left.evaluation_of(time, job.kind) or {}
    path = runner.write(folder, exporter, step, time, metrics)
    return CheckpointExport(step, path, restored.weights is not None)


@dataclass(frozen=True)
class RestoredModel:
    """A job's model with the weights of one of its checkpoints.

    Attributes:
        signature: How it is called.
        about: What an export's hpc_train.json records of the job.
        weights: Where its tables are, if it was built without; None: it has them.
    """

    job: JobModel
    model: keras.Model
    signature: Signature
    snapshot: Snapshot
    about: dict[str, Any]
    weights: TablesInCheckpoint | None = None


def restored_model(job_dir: Path, step: int, data: Sequence[str] = (), tables: TablePlace = "whole") -> RestoredModel:
    """The model of a job with the weights of the checkpoint of `step`. Local; writes nothing.

    Args:
        data, tables: As in export_checkpoint.

    Raises:
        UserError: The checkpoint cannot be read, or the model cannot be built again. Whatever the model function
            raises.
    """
    left = JobDir(job_dir)
    manager = CheckpointManager(left.checkpoints_path, Retention())
    described = job_in_job_dir(left.job())
    job = JobModel.of_job(with_data(described, data, next(iter(input_names(described)))), job_dir)
    with nullcontext() if tables == "whole" else tables_outside():
        model, signature, shards, updates = _built(job)
    if tables == "shards" and not tables_of(model):
        raise UserError(f"--tables shards: {job.name} has no ht.parallel.ShardedEmbedding")
    state = ModelState(model, World.alone(), updates)
    snapshot = _load(manager, step, state.divided)
    if tables == "auto" and state.divided and 2 * _bytes_in(snapshot) <= available_bytes():
        return restored_model(job_dir, step, data)
    snapshot = _restore(state, snapshot, str(manager.path(step)))
    about = about_job(job.job, job_dir, job.params, shards, next(reversed(job.inputs), None))
    weights = TablesInCheckpoint(tuple(_sources(manager, step, model, state, snapshot))) if state.divided else None
    return RestoredModel(job, model, signature, snapshot, about, weights)


def _bytes_in(snapshot: Snapshot) -> int:
    """Bytes of all arrays, of those that were left in the checkpoint, too."""
    arrays = [*snapshot.model.values(), *snapshot.optimizer.values()]
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays)


def _sources(
    manager: CheckpointManager, step: int, model: keras.Model, state: ModelState, snapshot: Snapshot
) -> Iterator[TableSource]:
    """The tables of `model`, which was built without, as they are in the checkpoint; their averages, if there are."""
    stored, averages = state.stored(snapshot), state.updates.averages()
    for name, table in tables_of(model).items():
        array = stored[id(averages.get(id(table), table))]
        rows, width = array.shape
        yield TableSource(name, (rows, width), array.dtype, partial(_stream, manager, step, array))


def _stream(manager: CheckpointManager, step: int, array: StoredArray, put: Put) -> None:
    rows, width = array.shape
    at_once = max(1, BLOCK_BYTES // (width * array.dtype.itemsize))
    blocks = {
        str(begin): (array.dataset, Share((rows, width), 0, begin, min(begin + at_once, rows)))
        for begin in range(0, rows, at_once)
    }
    manager.load_parts(step, blocks, lambda begin, part: put(int(begin) * width, part))


def _chosen(manager: CheckpointManager, job_dir: Path, step: int | None) -> int:
    steps = manager.steps()
    if not steps:
        raise UserError(f"{job_dir}: has no checkpoints; JOBDIR is where a job keeps everything")
    if step is None:
        return steps[-1]
    if step not in steps:
        raise UserError(f"{job_dir}: has no checkpoint of step {step}; there are those of {', '.join(map(str, steps))}")
    return step


def _load(manager: CheckpointManager, step: int, left: Collection[str]) -> Snapshot:
    try:
        return manager.load(step, left)
    except (DamagedError, FormatError) as error:
        raise UserError(f"the checkpoint of step {step} cannot be read: {error}") from None
    except FileNotFoundError:
        raise UserError(f"{manager.path(step)}: was removed meanwhile; start again") from None


def _exporter_names(value: Any) -> set[str]:
    """Names of all exporters in a job, as job.yaml has them: by name, or as a list."""
    names: set[str] = set()
    if isinstance(value, dict):
        exporters = value.get("exporters")
        if isinstance(exporters, dict):
            names |= {str(name) for name, options in exporters.items() if options is not None}
        elif isinstance(exporters, list):
            names |= {str(e.get("name")) for e in exporters if isinstance(e, dict)}
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        names |= _exporter_names(item)
    return names


def _built(job: JobModel) -> tuple[keras.Model, Signature, ShardSet | None, Updates]:
    """The model, its signature, the shards that were read for it (None: there are none any more), its optimizers."""
    reasons = []
    for source in reversed(job.inputs):  # that of training first: its types are those of the exports of the job itself
        try:
            shards = find_shards(source)
        except UserError as error:
            reasons.append(str(error))
            continue
        model, element_spec, updates = job.build(source, shards, InputContext(0, 1, 0))
        datasets = _trained_datasets(job) or shards.feature_inputs
        return model, signature_of(model, element_spec, list(datasets), datasets), shards, updates
    model = job.call()
    try:
        datasets = _trained_datasets(job)
        signature = signature_of_inputs(model, list(datasets) or None, datasets)
        return model, signature, None, NO_UPDATES if has_own_train_step(model) else updates_of(model, None, "")
    except UserError as error:
        hint = elsewhere(job.inputs[0], "", ()) if job.inputs else ""
        raise UserError("\n".join([*reasons, f"{error}{hint}"])) from None


def _trained_datasets(job: JobModel) -> dict[str, str]:
    """The datasets that training reads as features, by what the model calls them; an evaluation's may be others."""
    if not job.inputs:
        return {}
    try:
        return find_shards(job.inputs[-1]).feature_inputs
    except UserError:
        known = job.inputs[-1].features
        return known if isinstance(known, dict) else {name: name for name in known or ()}


def _restore(state: ModelState, snapshot: Snapshot, where: str) -> Snapshot:
    """Gives the model the checkpoint's variables; averages of them take their place where optimizers keep some.

    Returns the snapshot, for this model.
    """
    if state.updates is NO_UPDATES:
        if any(AVERAGE.search(name) for name in snapshot.optimizer):
            raise UserError(
                f"{where}: has averages of the weights (use_ema), which a train_step of the model's own decides on: it "
                "takes data to see which; give --data"
            )
        snapshot = replace(snapshot, optimizer={})
    snapshot = state.fit(snapshot, where)
    state.share(snapshot, 0, state.divided)
    state.updates.finish()
    return snapshot
