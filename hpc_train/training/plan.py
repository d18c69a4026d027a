"""The plan of one run: what the chief finds out, sent to all ranks before any of them opens anything."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpc_train.checkpoint.manager import CheckpointManager, Found
from hpc_train.config.settings import settings_of
from hpc_train.config.table_schema import read_schema
from hpc_train.data.hdf5.shards import ShardSet, check_record
from hpc_train.distributed.world import World
from hpc_train.engine.global_batch import ASKED_FOR, ROWS, GlobalBatch
from hpc_train.engine.recovery import find_checkpoint
from hpc_train.engine.run_plan import RunPlan, TrainingJob
from hpc_train.engine.strategy import Strategy
from hpc_train.engine.training_input import saved_progress
from hpc_train.errors import UserError
from hpc_train.evaluation.early_stopping import Decision, read_decision, still_holds
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobdir.paths import DATA_FILE, SCHEMA_FILE
from hpc_train.telemetry.json_files import UnreadableError, load_json
from hpc_train.text import listed
from hpc_train.training.data_check import check_schema, checked_shards, parts_of

log = logging.getLogger(__name__)


def plan(world: World, job: TrainingJob, strategy: Strategy, manager: CheckpointManager) -> RunPlan:
    """Finds out what this run of `job` does. Writes nothing. Collective.

    Raises:
        UserError: The data, the job-dir or the number of ranks do not do; nothing has been written.
    """
    roles = world.each(lambda: strategy.roles(world.size, job.config))
    found = Found(**world.on_chief(lambda: asdict(find_checkpoint(job.job_dir, manager))))
    decided = world.on_chief(lambda: _decision(job, found.step))
    decision = Decision(**decided) if decided else None
    last = found.step if decision else job.train_spec.max_steps
    is_over = last is not None and (found.step or 0) >= last
    batch = None if is_over else _find_batch(world, roles.readers, job, manager, found.step)
    job = job.with_batch(batch)
    shards = _find_shards(world, roles.readers, job, found.step or 0)
    source = job.train_spec.input_fn
    progress, reordered = saved_progress(world, manager, found.step, source, shards[0])
    plan = RunPlan(
        run_id=world.broadcast(uuid.uuid4().hex[:12]),
        roles=roles,
        found=found,
        max_steps=last,
        decision=decision,
        shards=shards,
        batch=batch,
        progress=progress,
        reordered=reordered,
    )
    log.debug(f"run {plan.run_id}: {roles}, from step {plan.first_step} to {plan.max_steps}, data at {progress}")
    return plan


def _decision(job: TrainingJob, step: int | None) -> dict[str, Any] | None:
    """That an earlier run has ended training early at `step`, where its decision still holds. For the chief."""
    decision = read_decision(job.job_dir)
    spec = job.train_spec
    if decision is None or step is None or not still_holds(decision, spec.max_steps, spec.early_stopping, step):
        return None
    return asdict(decision)


def _find_batch(
    world: World, readers: int, job: TrainingJob, manager: CheckpointManager, step: int | None
) -> GlobalBatch | None:
    """What each rank gives to a step, by what they gave to those before the checkpoint of `step`. Collective.

    Where a run has ended before its first checkpoint, by what it began with.
    """

    def find() -> dict[str, str]:
        settings = _of_a_run_without_checkpoint(job.job_dir) if step is None else manager.settings(step) or {}
        return {key: settings[key] for key in (ROWS, ASKED_FOR) if key in settings}

    before = world.on_chief(find)
    return world.each(lambda: GlobalBatch.of(job.train_spec, job.config, readers, before))


def _of_a_run_without_checkpoint(job_dir: Path) -> dict[str, str]:
    """The settings of its batch, as far as its job-dir tells."""
    before = JobDir(job_dir)
    starts = [record.number("global_batch") for record in before.records(lambda kind: kind == "start")]
    if not starts or (rows := starts[-1]) is None:
        return {}
    try:
        asked = settings_of(before.job().value).get(ASKED_FOR)
    except UserError:
        return {}
    return {ROWS: f"{rows:.0f}"} | ({ASKED_FOR: asked} if asked is not None else {})


def _find_shards(world: World, readers: int, job: TrainingJob, step: int) -> tuple[ShardSet | None, ...]:
    """Finds and checks the shards of all specs, on the chief, for all ranks. Collective.

    `readers` ranks train. Where the job goes on from a `step` beyond 0, they must be those with which it began.
    """

    def find() -> list[dict[str, Any] | None]:
        found = checked_shards(readers, job.train_spec, job.eval_specs, job.config.accumulate_steps)
        if job.schema is not None:
            check_schema(found, (job.train_spec, *job.eval_specs), job.schema)
        if step > 0:
            _check_same_schema(job)
            record = job.job_dir / DATA_FILE
            _check_unchanged(record, dict(zip(parts_of(job.eval_specs), found, strict=True)))
        return [shards.to_json() if shards is not None else None for shards in found]

    return tuple(None if found is None else ShardSet.from_json(found) for found in world.on_chief(find))


def _check_same_schema(job: TrainingJob) -> None:
    """UserError where the job-dir's checkpoints were trained with another schema: its numbers mean something else."""
    path = job.job_dir / SCHEMA_FILE
    if job.schema is None or not path.is_file():
        return
    if differing := job.schema.differing(read_schema(path, follow=False)):
        raise UserError(
            f"{job.job_dir}: was trained with another schema ({listed(differing)} changed), which {path.name} there "
            "holds; train with that one, or into another job-dir"
        )


def _check_unchanged(record: Path, shards: Mapping[str, ShardSet | None]) -> None:
    try:
        began = load_json(record)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # there is no job yet, or find_checkpoint has reported it
    except (OSError, UnreadableError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{record}: cannot be read: {why}; remove it to go on with the data as they are now") from None
    for part, found in shards.items():
        if found is not None and began.get(part) is not None:
            check_record(began[part], found, record)
