"""A job that trains trees, from its plan to its exports. Collective, as train_and_evaluate is."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpc_train.boosting.collective import joined, signals_kept_out
from hpc_train.boosting.evaluation import TreeEvaluator
from hpc_train.boosting.exports import TreeExporters
from hpc_train.boosting.rounds import TREES, Chief, Forest, Rounds
from hpc_train.boosting.rows import TreeRows, read_rows
from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.config.builtin_model import GBDTModel
from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.job import JobConfig
from hpc_train.config.settings import settings_of
from hpc_train.distributed.devices import set_up_tensorflow
from hpc_train.distributed.world import World
from hpc_train.engine.abort import ends_all_ranks
from hpc_train.engine.checkpointing import best_before
from hpc_train.engine.rank_energy import rank_energy
from hpc_train.engine.recovery import note_changes
from hpc_train.engine.run_plan import RunPlan, TrainingJob
from hpc_train.errors import UserError
from hpc_train.evaluation.early_stopping import check_metrics
from hpc_train.export.contents import about_job
from hpc_train.jobdir.paths import LOGS
from hpc_train.resilience.failure import FailureReport
from hpc_train.resilience.job_lock import JobLock
from hpc_train.resilience.signals import StopSignals
from hpc_train.resilience.watchdog import watch_over
from hpc_train.telemetry.reporter import Reporter
from hpc_train.telemetry.start_timeline import start_timeline
from hpc_train.training.announce import Announcement, start_reporting
from hpc_train.training.components import check_best_metric, early_stopper
from hpc_train.training.energy import told_at_the_end
from hpc_train.training.job_dir import begin_job_dir
from hpc_train.training.trainer import Result, asked_for, run_job
from hpc_train.trees.booster import matrix_of, parameters, xgboost
from hpc_train.trees.columns import TreeColumns

log = logging.getLogger(__name__)


def train_trees(
    world: World, job: JobConfig, job_dir: Path, code_folder: Path, signals: StopSignals, delay_secs: float = 0.0
) -> Result:
    """Runs a job file's job of `builtin: gbdt` in `job_dir`; see train_and_evaluate. Collective.

    This rank sleeps `delay_secs` after each round.

    Raises:
        UserError: XGBoost is not installed, too.
    """
    assert isinstance(job.model, GBDTModel)
    asked = _without_batches(asked_for(job, job_dir, code_folder, delay_secs))
    return run_job(world, asked, signals, partial(_run, settings=job.model, name=job.name))


def _without_batches(job: TrainingJob) -> TrainingJob:
    """`job`, for which a row for each rank is enough, whatever `batch_size` is."""
    source = job.train_spec.input_fn
    assert isinstance(source, HDF5Input), "a job file's"
    return replace(job, train_spec=replace(job.train_spec, input_fn=replace(source, batch_size=1)))


def _run(
    world: World,
    job: TrainingJob,
    run: RunPlan,
    manager: CheckpointManager,
    lock: JobLock,
    signals: StopSignals,
    settings: GBDTModel,
    name: str,
) -> tuple[dict[str, float], list[str]]:
    module, schema = world.each(xgboost), job.schema
    assert schema is not None, "read with the job"
    with ExitStack() as stack:
        start_timeline.begin("TensorFlow")
        set_up_tensorflow(world)  # whose metrics are computed
        energy = stack.enter_context(rank_energy(world))
        start_timeline.begin("data")
        columns = world.each(lambda: TreeColumns(schema))
        parts = [shards for shards in run.shards if shards is not None]
        weights = [job.train_spec.class_weight, None]
        train, test = (
            world.each(partial(read_rows, shards, world.rank, world.size, columns, schema, weight))
            for shards, weight in zip(parts, weights, strict=True)
        )
        start_timeline.begin("exchange")
        stack.enter_context(signals_kept_out())
        stack.enter_context(joined(world))
        start_timeline.begin("model")
        threads = world.cores
        matrices = [_matrix(rows, columns, threads) for rows in (train, test)]
        before = world.each(lambda: _loaded(manager, run.restored_step) if world.is_chief else None)
        content = _shared(world, before)
        known = parameters(settings, schema, threads, job.config.tf_random_seed or 0)
        booster = module.Booster(known, matrices, model_file=bytearray(content) if content else None)
        start_timeline.begin("job-dir")
        ranks = world.gather(_about_rank(world, train, run) | energy.described()) or []
        failure = FailureReport(job.job_dir / LOGS, run.run_id)
        exporters = _exporters(world, job, run, columns, name)
        both = zip((train, test), matrices, strict=True)
        training, evaluation = (TreeEvaluator(world, schema, rows, own) for rows, own in both)
        world.each(partial(_check_metrics, job, evaluation.names, exporters))
        world.each(lambda: begin_job_dir(job, run, manager, lock, ranks) if world.is_chief else None)
        stack.enter_context(ends_all_ranks(world, job.job_dir, failure, lock))
        chief: Chief | None = None
        if exporters is not None:
            about = Announcement(_first_line(job, run), {"strategy": "trees", "ranks": world.size})
            reporter = stack.enter_context(start_reporting(job, run, failure, ranks, about, energy))
            chief = _chief(job, run, manager, exporters, reporter, lock, before)
        watchdog = stack.enter_context(watch_over(world, job.job_dir, failure, job.config.stall_timeout_secs))
        start_timeline.begin("first step")
        rows = int(world.sum(np.array([len(train)], np.int64))[0])
        forest = Forest(booster, matrices[0], rows, training, evaluation)
        with told_at_the_end(world, job, energy, chief.reporter if chief else None):
            return Rounds(world, job, run, forest, signals, watchdog, chief).train()


def _check_metrics(job: TrainingJob, names: Sequence[str], exporters: TreeExporters | None) -> None:
    """UserError where the best evaluation, a rule of early stopping or an exporter is by a metric that is not there."""
    check_best_metric(job.config.best_metric, names)
    check_metrics(job.train_spec.early_stopping, {job.eval_specs[0].kind: names})
    if exporters is not None:
        exporters.check(names)


def _chief(
    job: TrainingJob,
    run: RunPlan,
    manager: CheckpointManager,
    exporters: TreeExporters,
    reporter: Reporter,
    lock: JobLock,
    before: Snapshot | None,
) -> Chief:
    """What the chief has besides; `before`: the checkpoint that the run goes on from."""
    asked = settings_of(job.description)
    if before is not None:
        exporters.content = before.model[TREES].tobytes()
    note_changes(reporter.metrics, run.first_step, before.settings if before else None, asked, run.is_over)
    best = best_before(manager, before, job.config)
    taken = before.time if before is not None else 0.0
    return Chief(reporter, manager, exporters, early_stopper(job, run), asked, lock, best, taken)


def _first_line(job: TrainingJob, run: RunPlan) -> str:
    begin = f"going on from round {run.first_step}" if run.first_step else "training from the beginning"
    return f"{begin} to round {run.max_steps}; job-dir {job.job_dir}"


def _matrix(rows: TreeRows, columns: TreeColumns, threads: int) -> Any:
    matrix = matrix_of(columns, rows.features, threads)
    matrix.set_label(rows.labels)
    if rows.weights is not None:
        matrix.set_weight(rows.weights)
    return matrix


def _loaded(manager: CheckpointManager, step: int | None) -> Snapshot | None:
    """The checkpoint to go on from; None at the beginning. For the chief.

    Raises:
        UserError: It is of another model.
    """
    if step is None:
        return None
    found = manager.load(step)
    if TREES not in found.model:
        raise UserError(f"{manager.path(step)}: is of another model, and not of trees; give another job-dir")
    return found


def _shared(world: World, before: Snapshot | None) -> bytes:
    """The booster of the chief's checkpoint, on all ranks; empty at the beginning. Collective."""
    own = np.zeros(0, np.uint8) if before is None else before.model[TREES]
    size = world.broadcast(len(own))
    content = own if world.is_chief else np.zeros(size, np.uint8)
    if world.size > 1:
        world.broadcast_arrays([content])
    return content.tobytes()


def _about_rank(world: World, train: TreeRows, run: RunPlan) -> dict[str, Any]:
    """What the table at the start and environment.json show of this rank. Local."""
    shards = run.shards[0]
    assert shards is not None
    return {
        "rank": world.rank,
        "role": run.roles.role_of(world.rank),
        "host": world.host,
        "pid": os.getpid(),
        "cores": world.cores,
        "binding": world.binding.described(),
        "device": "CPU",
        "shards": f"{len(train):,} of {shards.rows:,} rows, {len(shards.paths)} files",
        "seed": "–",
    }


def _exporters(world: World, job: TrainingJob, run: RunPlan, columns: TreeColumns, name: str) -> TreeExporters | None:
    """On the chief."""
    if not world.is_chief:
        return None
    assert job.schema is not None
    about = about_job(name, job.job_dir, {}, run.shards[0], job.train_spec.input_fn)
    return TreeExporters(job.job_dir, job.eval_specs[0].exporters, job.load, job.schema, columns, about)
