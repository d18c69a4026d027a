"""What is checked and written before the first step: data, job-dir, and what each rank is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_train.checkpoint.manager import CheckpointManager, Found
from hpc_train.config.specs import EvalSpec, HDF5Input, RunConfig, TrainSpec
from hpc_train.config.yaml_loader import dump_yaml
from hpc_train.data.hdf5.shards import ShardSet, find_shards
from hpc_train.data.loading.batch_source import order_of, training_sampler
from hpc_train.data.loading.fingerprint import check_record, record_of
from hpc_train.data.loading.label_check import LabelRange, check_classes, label_ranges
from hpc_train.data.loading.tf_dataset import InputContext, OpenInput
from hpc_train.data.sampling.sampler import DataOrder, DataProgress, resumed
from hpc_train.distributed.roles import Roles
from hpc_train.distributed.world import World
from hpc_train.engine.recovery import set_aside
from hpc_train.errors import UserError
from hpc_train.jobdir.paths import DATA_FILE, ENVIRONMENT_FILE, JOB_FILE, LOGS
from hpc_train.model.backward import check_accumulation
from hpc_train.model.builder import sparse_classes
from hpc_train.resilience.job_lock import JobLock
from hpc_train.telemetry.environment import describe_environment
from hpc_train.telemetry.json_files import replace_text, write_json

if TYPE_CHECKING:
    import keras

Shards = list["ShardSet | None"]
"""Of training, then of each evaluation set; None stands for an input that is a function."""


def find_all_shards(
    world: World,
    readers: int,
    train_spec: TrainSpec,
    eval_specs: Sequence[EvalSpec],
    config: RunConfig,
    step: int,
) -> Shards:
    """Finds and checks the shards of all specs, on the chief, for all ranks. Collective.

    `readers` ranks train. Where the job goes on from a `step` beyond 0, they must be those with which it began.
    """

    def find() -> list[dict[str, Any] | None]:
        found = checked_shards(readers, train_spec, eval_specs, config.accumulate_steps)
        if step > 0:
            _check_unchanged(config.model_dir / DATA_FILE, dict(zip(parts_of(eval_specs), found, strict=True)))
        return [shards.to_json() if shards is not None else None for shards in found]

    return [None if found is None else ShardSet.from_json(found) for found in world.on_chief(find)]


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


def _check_unchanged(record: Path, shards: Mapping[str, ShardSet | None]) -> None:
    try:
        began = json.loads(record.read_text())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # there is no job yet, or newest_step will tell
    except (OSError, ValueError) as error:
        raise UserError(
            f"{record}: cannot be read: {error}; remove it to go on with the data as they are now"
        ) from None
    for part, found in shards.items():
        if found is not None and began.get(part) is not None:
            check_record(began[part], found, record)


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


def where_from(
    world: World, manager: CheckpointManager, step: int | None, source: Any, shards: ShardSet | None
) -> tuple[DataProgress, bool]:
    """Where the job goes on in its training data, and whether their order has changed. Collective.

    Args:
        step: Of the checkpoint to go on from; None: from the beginning.
    """

    def find() -> list[Any]:
        if step is None:
            return [0, 0, [], None]
        progress, order = manager.progress(step)
        return [progress.step, progress.rows_read, progress.sizes, asdict(order) if order else None]

    saved_step, rows_read, sizes, saved = world.on_chief(find)
    progress = DataProgress(saved_step, rows_read, tuple((int(r), int(n)) for r, n in sizes))
    saved_order = DataOrder(**saved) if saved else None
    order = None
    if isinstance(source, HDF5Input) and shards is not None:
        order = order_of(source, shards)
    return resumed(progress, saved_order, order), saved_order not in (None, order)


def about_rank(
    world: World, roles: Roles, device: str, shards: ShardSet | None, context: InputContext, opened: OpenInput
) -> dict[str, Any]:
    """What the start-up table and environment.json tell of this rank."""
    number, count = context.input_pipeline_id, context.num_input_pipelines
    seed, part = str(context.seed), f"input_fn, part {number + 1} of {count}"
    if shards is not None and opened.sampler is not None:
        part = (
            f"{shards.rows // count:,} of {shards.rows:,} rows an epoch, {len(shards.paths)} files, "
            f"{opened.sampler.shuffle}"
        )
    if roles.serves(world.rank):
        seed, part, device = "–", "holds parameters", "CPU"
    elif not roles.trains(world.rank):
        seed, part = "–", "saves and evaluates"
    return {
        "rank": world.rank,
        "role": roles.role_of(world.rank),
        "host": world.host,
        "cores": world.cores,
        "device": device,
        "shards": part,
        "seed": seed,
    }


def begin_job_dir(
    job_dir: Path,
    manager: CheckpointManager,
    late_lock: JobLock | None,
    found: Found,
    description: dict[str, Any],
    ranks: list[dict[str, Any]],
    code_folder: Path,
    shards: Mapping[str, ShardSet | None],
) -> list[str]:
    """Makes the job-dir, for its owner alone, and writes job.yaml, environment.json and data.json. For the chief.

    Sets damaged checkpoints aside, and removes what saves that were cut short left behind.

    Args:
        late_lock: To be acquired as soon as the job-dir is there; None where that has been done.
        shards: By part (see parts_of).

    Returns:
        What to tell the user of that.
    """
    told = []
    try:
        job_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if late_lock is not None and (note := late_lock.acquire()):
            told.append(note)
        (job_dir / LOGS).mkdir(exist_ok=True)
        manager.clean()
        told += set_aside(manager, found)
        if manager.latest_step() != found.step:
            raise UserError(f"{job_dir}: another job has written checkpoints here meanwhile; start this one again")
        plain = json.loads(json.dumps(description, default=str))
        replace_text(job_dir / JOB_FILE, dump_yaml(plain))
        write_json(job_dir / DATA_FILE, {part: record_of(s) if s is not None else None for part, s in shards.items()})
        write_json(job_dir / ENVIRONMENT_FILE, describe_environment(ranks, code_folder))
    except OSError as error:
        raise UserError(f"{job_dir}: the job-dir cannot be written: {error.strerror} ({error.filename})") from None
    return told
