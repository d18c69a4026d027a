"""The job-dir as a run begins: made, with job.yaml, environment.json and data.json."""

from __future__ import annotations

import json
import logging
import os
import secrets
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.config.run_config import RunConfig
from hpc_train.config.yaml_loader import dump_yaml
from hpc_train.data.hdf5.shards import record_of
from hpc_train.data.loading.tf_dataset import InputContext, OpenInput
from hpc_train.distributed.world import World
from hpc_train.engine.recovery import set_aside
from hpc_train.engine.run_plan import RunPlan, TrainingJob
from hpc_train.errors import UserError
from hpc_train.files import replace_text
from hpc_train.folders import make_folder, make_new_folder, remove_folder
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobdir.paths import DATA_FILE, ENVIRONMENT_FILE, JOB_FILE, LOGS, SCHEMA_FILE
from hpc_train.resilience.job_lock import JobLock
from hpc_train.telemetry.environment import describe_environment
from hpc_train.telemetry.json_files import write_json
from hpc_train.telemetry.logs import set_up_logging
from hpc_train.training.data_check import parts_of

log = logging.getLogger(__name__)


def settle_job_dir(world: World, config: RunConfig) -> None:
    """Gives a RunConfig without a model_dir a new temporary folder, the same on all ranks. Collective.

    It stays when the job has ended, and for as long as the config is used again.

    Raises:
        UserError: Some ranks have a model_dir and others none, or not all ranks see the folder: nothing is left of it.
    """
    given = True if config.model_dir is not None else None
    if world.first(None if given else True) is None:
        return
    some = world.first(given)

    def refuse_some() -> None:
        if some:
            raise UserError("RunConfig: model_dir: some ranks have one and others none; give all of them the same")
        set_up_logging(world.is_chief, world.rank)

    world.each(refuse_some)
    path = Path(world.on_chief(_make_temporary))
    blind = world.first(None if path.is_dir() else world.rank)

    def refuse_unseen() -> None:
        if blind is None:
            return
        if world.is_chief:
            remove_folder(path)
        raise UserError(
            f"RunConfig: model_dir: missing, and rank {blind} does not see the temporary folder {path} of "
            "rank 0; give a folder that all nodes share"
        )

    world.each(refuse_unseen)
    object.__setattr__(config, "model_dir", path)  # once, for all that hold it
    if world.is_chief:
        log.warning(
            f"RunConfig has no model_dir: the job-dir is the temporary folder {path}; give one to resume the job"
        )


def _make_temporary() -> str:
    try:
        path = Path(tempfile.gettempdir()).resolve() / f"hpc_train-{secrets.token_hex(8)}"
        make_new_folder(path, 0o700)
    except OSError as error:
        why = f"no temporary folder can be made: {error.strerror}; give a folder, or set TMPDIR"
        raise UserError(f"RunConfig: model_dir: missing, and {why}") from None
    return str(path)


def about_rank(
    world: World, plan: RunPlan, device: str, context: InputContext, opened: OpenInput, memory: dict[str, int]
) -> dict[str, Any]:
    """What the table at the start and environment.json show of this rank. Local.

    Args:
        memory: Bytes by what they hold, see ModelState.held_bytes.
    """
    roles, shards = plan.roles, plan.shards[0]
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
        **({"node": node} if (node := os.environ.get("SLURMD_NODENAME")) else {}),
        "pid": os.getpid(),
        "cores": world.cores,
        "binding": world.binding.described(),
        "device": device,
        "shards": part,
        "seed": seed,
        "memory": memory,
    }


STEPS_HOW = ("mixed_precision", "accumulate_steps", "sparse_gradients")
"""Of `run`: how steps are computed."""
READ_HOW = ("batch_size", "shuffle", "seed")
"""Of `data.train`: how it is read, not what."""


def _as_trained(job: dict[str, Any], job_dir: Path) -> dict[str, Any]:
    """`job`, by which no step will be made, with what the job-dir's steps were made with."""
    try:
        before = JobDir(job_dir).job().value
    except UserError:  # the first run's, or none that can be read
        return job

    def merged(now: Any, then: Any, keys: Iterable[str]) -> Any:
        if not isinstance(now, dict) or not isinstance(then, dict):
            return now
        return {**now, **{key: then[key] for key in keys if key in then}}

    trained = merged(job, before, ("params",))
    if isinstance(trained.get("run"), dict):
        trained["run"] = merged(trained["run"], before.get("run"), STEPS_HOW)
    if isinstance(trained.get("train"), dict):
        trained["train"] = merged(trained["train"], before.get("train"), ("class_weight",))
    data, then = trained.get("data"), before.get("data")
    if isinstance(data, dict) and isinstance(then, dict):
        trained["data"] = {**data, "train": merged(data.get("train"), then.get("train"), READ_HOW)}
    return dict(trained)


def begin_job_dir(
    job: TrainingJob, plan: RunPlan, manager: CheckpointManager, lock: JobLock, ranks: list[dict[str, Any]]
) -> None:
    """Makes the job-dir, for its owner alone, and writes job.yaml, environment.json and data.json. For the chief.

    Sets damaged checkpoints aside, and removes what saves that were cut short left behind.

    Args:
        lock: Acquired as soon as the job-dir is there, where it is not held yet. ranks: About each rank.

    Raises:
        UserError: The job-dir cannot be written, or another job has written there meanwhile.
    """
    job_dir = job.job_dir
    try:
        make_folder(job_dir, 0o700, follow=True)
        if not lock.held:
            lock.acquire()
        make_folder(job_dir / LOGS)
        manager.clean()
        set_aside(manager, plan.found)
        if manager.latest_step() != plan.found.step:
            raise UserError(f"{job_dir}: another job has written checkpoints here meanwhile; start this one again")
        plain = json.loads(json.dumps(job.description, default=str))
        if plan.is_over:
            plain = _as_trained(plain, job_dir)
        if job.schema is not None:
            replace_text(job_dir / SCHEMA_FILE, job.schema.to_yaml())
        replace_text(job_dir / JOB_FILE, dump_yaml(plain))
        by_part = zip(parts_of(job.eval_specs), plan.shards, strict=True)
        write_json(job_dir / DATA_FILE, {part: record_of(s) if s is not None else None for part, s in by_part})
        write_json(job_dir / ENVIRONMENT_FILE, describe_environment(ranks, job.code_folder))
    except OSError as error:
        raise UserError(f"{job_dir}: the job-dir cannot be written: {error.strerror} ({error.filename})") from None
