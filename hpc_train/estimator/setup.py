"""What is checked and written before the first step: data, job-dir, and what each rank is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import yaml

from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.cluster.world import World
from hpc_train.config.specs import EvalSpec, HDF5Input, TrainSpec
from hpc_train.data.pipeline import InputContext, training_sampler
from hpc_train.data.sampler import derive_seed
from hpc_train.data.shards import ShardSet, find_shards
from hpc_train.errors import UserError
from hpc_train.monitoring.environment import describe_environment
from hpc_train.monitoring.files import replace_text, write_json

LOGS = "logs"


def find_all_shards(
    world: World, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[ShardSet | None, ShardSet | None]:
    """Finds and checks the shards of both specs, on the chief, for all ranks. Collective.

    None stands for an input that is a function.
    """

    def find() -> list[dict[str, Any] | None]:
        found: list[ShardSet | None] = []
        for spec in (train_spec, eval_spec):
            source = spec.input_fn
            found.append(find_shards(source) if isinstance(source, HDF5Input) else None)
        train, evaluation = found
        if train is not None and isinstance(train_spec.input_fn, HDF5Input):
            training_sampler(train_spec.input_fn, train.rows, 0, world.size)
        if train is not None and evaluation is not None:
            _check_alike(train, evaluation)
        return [shards.to_json() if shards is not None else None for shards in found]

    train, evaluation = world.on_chief(find)
    return _from_json(train), _from_json(evaluation)


def _from_json(value: dict[str, Any] | None) -> ShardSet | None:
    return None if value is None else ShardSet.from_json(value)


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


def newest_step(job_dir: Path, manager: CheckpointManager) -> int:
    """The step of the newest checkpoint, 0 where there is none; UserError where `job_dir` cannot be written."""
    parent = job_dir
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not parent.is_dir():
        raise UserError(f"{job_dir}: cannot be the job-dir, because {parent} is not a folder")
    if not os.access(parent, os.R_OK | os.W_OK | os.X_OK):
        raise UserError(f"{job_dir}: the job-dir cannot be written ({parent} is read-only, or belongs to others)")
    return manager.latest_step() or 0


def context_for(world: World, source: Any, tf_random_seed: int | None) -> InputContext:
    """This rank's input pipeline."""
    seed = source.seed if isinstance(source, HDF5Input) else tf_random_seed or 0
    return InputContext(world.rank, world.size, derive_seed(seed, 0, world.rank))


def about_rank(
    world: World, device: str, source: Any, shards: ShardSet | None, context: InputContext, first_step: int
) -> dict[str, Any]:
    """What the start-up table and environment.json tell of this rank."""
    seed, part = context.seed, f"input_fn, part {world.rank + 1} of {world.size}"
    if shards is not None and isinstance(source, HDF5Input):
        sampler = training_sampler(source, shards.rows, world.rank, world.size)
        epoch = sampler.epoch_of(first_step)
        seed = sampler.shuffle_seed(epoch)
        own = sampler.steps_per_epoch * sampler.batch_size
        part = f"{own:,} of {shards.rows:,} rows an epoch, {len(shards.paths)} files, {source.shuffle}"
    return {
        "rank": world.rank,
        "role": world.role,
        "host": world.host,
        "cores": world.cores,
        "device": device,
        "shards": part,
        "seed": seed,
    }


def begin_job_dir(
    job_dir: Path,
    manager: CheckpointManager,
    description: dict[str, Any],
    ranks: list[dict[str, Any]],
    code_folder: Path,
) -> None:
    """Makes the job-dir, for its owner alone, and writes job.yaml and environment.json. For the chief."""
    try:
        job_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        (job_dir / LOGS).mkdir(exist_ok=True)
        manager.clean()
        plain = json.loads(json.dumps(description, default=str))
        replace_text(job_dir / "job.yaml", yaml.safe_dump(plain, sort_keys=False))
        write_json(job_dir / "environment.json", describe_environment(ranks, code_folder))
    except OSError as error:
        raise UserError(f"{job_dir}: the job-dir cannot be written: {error.strerror}") from None
