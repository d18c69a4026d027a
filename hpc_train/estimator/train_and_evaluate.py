"""train_and_evaluate: one job from its specs to its exports, on one rank or many."""

from __future__ import annotations

import os
import shlex
import sys
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from hpc_train.checkpoint.background import BackgroundSaver
from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.layout import Retention
from hpc_train.checkpoint.manager import CheckpointManager, Found
from hpc_train.cluster.roles import Roles, asynchronous_roles
from hpc_train.cluster.uncaught import tell_uncaught
from hpc_train.cluster.world import Threads, World, join_world, set_up_tensorflow
from hpc_train.config.specs import EvalSpec, HDF5Input, RunConfig, TrainSpec
from hpc_train.data.pipeline import Loader, OpenInput, open_training, refuse_name
from hpc_train.data.sampler import DataProgress
from hpc_train.estimator import random_state
from hpc_train.estimator.async_training import AsyncTraining, prepared
from hpc_train.estimator.ending import ends_all_ranks
from hpc_train.estimator.estimator import Estimator
from hpc_train.estimator.evaluation import Evaluator
from hpc_train.estimator.loop import Reporting
from hpc_train.estimator.model import build_model
from hpc_train.estimator.reopened import Reopened
from hpc_train.estimator.run import Result, check_best_metric
from hpc_train.estimator.saving import told_of_failures, told_of_saves
from hpc_train.estimator.session import Session
from hpc_train.estimator.setup import (
    LOGS,
    about_rank,
    begin_job_dir,
    check_labels,
    context_for,
    find_all_shards,
    find_checkpoint,
    means_for,
    where_from,
)
from hpc_train.estimator.state import ModelState
from hpc_train.estimator.sync_training import SyncTraining
from hpc_train.monitoring.environment import rank_table
from hpc_train.monitoring.files import Lenient
from hpc_train.monitoring.metrics import MetricsWriter
from hpc_train.monitoring.progress import Notes, TrainingProgress, make_console
from hpc_train.monitoring.status import StatusFile, job_fields, read_status
from hpc_train.resilience.failure import FailureReport
from hpc_train.resilience.job_lock import JobLock
from hpc_train.resilience.signals import StopSignals
from hpc_train.resilience.watchdog import watch_over
from hpc_train.strategies.async_ps.optimizer import build as build_optimizer
from hpc_train.strategies.base import Alone
from hpc_train.strategies.sync import HorovodSync


def train_and_evaluate(estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> Result:
    """Trains, evaluates and exports; goes on from the newest checkpoint of the job-dir. Collective.

    Returns:
        The metrics of the last evaluation with `global_step`, the same on all ranks, and the exports' folders.

    Writes, in `estimator.config.model_dir`: job.yaml, environment.json, data.json, status.json, metrics.jsonl,
    checkpoints/, event files in train/ and eval/, export/, and logs/failure-*.txt where a rank failed.

    Raises:
        UserError: The data, the model or the job-dir cannot be used; nothing has been written.
        RankError: Another rank failed while the job was set up.
        JobEndedError: The numbers went bad, or a checkpoint could not be written; its `code` is the exit code.
        SystemExit: With code 3, 4 or 5, after SIGUSR1, SIGTERM or SIGINT and a checkpoint.
        Whatever the model or the input raise.

    With several ranks, a failure once training has begun is printed by the rank that failed, and ends all ranks with
    exit code 1. An exception that the program does not catch is told once, and the exit code is 2 for a UserError.
    """
    description = {
        "model": f"{estimator.model_fn.__module__}:{getattr(estimator.model_fn, '__qualname__', 'model_fn')}",
        "params": dict(estimator.params),
        "data": {"train": _describe(train_spec.input_fn), "eval": _describe(eval_spec.input_fn)},
        "run": asdict(estimator.config),
        "train": {"max_steps": train_spec.max_steps},
        "eval": {name: value for name, value in asdict(eval_spec).items() if name != "input_fn"},
    }
    with StopSignals() as signals:
        world = join_world(threads_for(estimator.config.strategy))
        if world.size > 1:
            tell_uncaught(world)
        return run_job(world, estimator, train_spec, eval_spec, description, Path.cwd(), signals)


def _describe(source: Any) -> Any:
    if not isinstance(source, HDF5Input):
        return f"function {_name_of(source)}"
    values = {field.name: getattr(source, field.name) for field in fields(source)}
    return {**values, "map_fn": source.map_fn and _name_of(source.map_fn)}


def _name_of(function: Any) -> str:
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"{kind.__module__}:{kind.__qualname__}"


def run_job(
    world: World,
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_spec: EvalSpec,
    description: dict[str, Any],
    code_folder: Path,
    signals: StopSignals,
    load: Loader = refuse_name,
    delay_secs: float = 0.0,
) -> Result:
    """What train_and_evaluate does, given the job's `description` (for job.yaml) and its code's folder. Collective.

    `load` finds the functions that a job file names. This rank sleeps `delay_secs` after each step.
    """
    config, job_dir = estimator.config, estimator.config.model_dir.absolute()
    manager = CheckpointManager(
        job_dir / "checkpoints", Retention(config.keep_checkpoint_max, config.keep_checkpoint_every_n_hours)
    )
    asynchronous = config.strategy == "async"
    with ExitStack() as stack:
        roles = Roles(world.size)
        if asynchronous:
            roles = world.each(lambda: asynchronous_roles(world.size, config.parameter_servers))
        lock, notes = JobLock(job_dir), Notes()
        existed = world.on_chief(lambda: _lock_what_exists(lock, job_dir, notes.say))
        if world.is_chief:
            manager.note = notes.say
            stack.callback(lock.release)
            stack.callback(notes.flush)
        found = Found(**world.on_chief(lambda: asdict(find_checkpoint(job_dir, manager))))
        first_step = found.step or 0
        shards = find_all_shards(world, roles.readers, train_spec, eval_spec, job_dir, first_step)
        train_shards, eval_shards = shards
        device = set_up_tensorflow(world)
        context = context_for(roles.part_of(world.rank), roles.readers, train_spec.input_fn, config.tf_random_seed)
        means = means_for(world)

        training_input = stack.enter_context(Reopened())

        def open_data(step: int | None) -> tuple[OpenInput, bool]:
            place, reordered = where_from(world, manager, step, train_spec.input_fn, train_shards)
            if asynchronous and not isinstance(train_spec.input_fn, HDF5Input) and config.max_staleness != 0:
                place = DataProgress(place.step // roles.readers)  # batches of each worker: a step is one of them
            opening = open_training(train_spec.input_fn, train_shards, context, place, means, load)
            return world.each(lambda: training_input.enter(opening)), reordered

        data, reordered = open_data(found.step)
        model = world.each(lambda: build_model(estimator, data.dataset))
        evaluating = World.alone() if asynchronous else world
        eval_context = context_for(evaluating.rank, evaluating.size, eval_spec.input_fn, config.tf_random_seed)
        evaluator = Evaluator(model, eval_spec, eval_shards, eval_context, means, load, evaluating)
        world.each(evaluator.check)
        world.each(lambda: check_best_metric(config.best_metric, evaluator.metric_names()))
        check_labels(world, shards, (train_spec, eval_spec), model)
        optimizer = world.each(lambda: build_optimizer(model.optimizer, model.trainable_variables))
        state = ModelState(model, world)
        world.each(state.check_ranks)

        def restore(step: int | None) -> Snapshot | None:
            snapshot = world.each(lambda: _load(manager, step, state) if world.is_chief else None)
            state.share(snapshot, roles.part_of(world.rank))
            random_state.restore(world, snapshot.rng if snapshot else None)
            return replace(snapshot, model={}, optimizer={}, rng={}) if snapshot else None

        restored = restore(found.step)
        training: SyncTraining | AsyncTraining
        if asynchronous:
            training = stack.enter_context(
                prepared(
                    world, roles, config, lambda: build_model(estimator, data.dataset), model, optimizer, state, data
                )
            )
        else:
            training = SyncTraining(world.each(lambda: HorovodSync(world) if world.size > 1 else Alone()))

        ranks = world.all_gather(about_rank(world, roles, device, train_shards, context, data))
        late_lock = None if existed else lock
        told = world.on_chief(
            lambda: begin_job_dir(job_dir, manager, late_lock, found, description, ranks, code_folder, shards)
        )
        failure = FailureReport(job_dir / LOGS, world.broadcast(uuid.uuid4().hex[:12]))
        stack.enter_context(ends_all_ranks(world, job_dir, failure, lock))
        watchdog = stack.enter_context(watch_over(world, job_dir, failure, config.stall_timeout_secs))
        reporting, saver = None, None
        if world.is_chief:
            console = make_console()
            console.print(rank_table(ranks))
            before, lenient = read_status(job_dir), Lenient(notes.say)
            status = StatusFile(
                job_dir,
                failure.path,
                lenient,
                step=first_step,
                max_steps=train_spec.max_steps,
                ranks=world.size,
                **job_fields(os.environ),
            )
            metrics = stack.enter_context(MetricsWriter(job_dir, lenient))
            metrics.start(first_step, ranks=world.size)
            progress = TrainingProgress(console, first_step, train_spec.max_steps, config.log_step_count_steps)
            reporting = Reporting(metrics, status, progress, training.learning_rate(model), data.advice)
            notes.print_with(progress.say)
            status.update(state="running")
            progress.say(_first_line(job_dir, train_spec, roles, config, first_step))
            progress.say(f"curves: tensorboard --logdir {shlex.quote(str(job_dir))} --host localhost")
            for line in [*told, *_of_the_run_before(before)]:
                progress.say(line)
            if reordered:
                progress.say("the order of rows has changed: training goes on with a whole epoch of it")
            for note in data.notes:
                progress.say(f"warning: {note}")
            state.reserve()
            saver = stack.enter_context(
                BackgroundSaver(manager, told_of_saves(progress.say), told_of_failures(manager, progress.say))
            )
        return training.run(
            Session(
                world,
                config,
                train_spec,
                eval_spec,
                model,
                state,
                evaluator,
                data,
                found.step,
                restored,
                restore,
                open_data,
                manager,
                saver,
                lock,
                signals,
                watchdog,
                reporting,
                notes,
                delay_secs,
            )
        )


def threads_for(strategy: str) -> Threads:
    """How threads call MPI in a job of `strategy`."""
    return "serialized" if strategy == "async" else "multiple"


def _lock_what_exists(lock: JobLock, job_dir: Path, say: Callable[[str], None]) -> bool:
    """Takes the lock of a job-dir that is there, and returns whether it is."""
    if not job_dir.is_dir():
        return False
    if note := lock.acquire(lambda text: print(f"hpc-train: {text}", file=sys.stderr)):
        say(note)
    return True


def _load(manager: CheckpointManager, step: int | None, state: ModelState) -> Snapshot | None:
    if step is None:
        return None
    snapshot = manager.load(step)
    state.check(snapshot, str(manager.path(step)))
    return snapshot


def _first_line(job_dir: Path, spec: TrainSpec, roles: Roles, config: RunConfig, first_step: int) -> str:
    begin = f"going on from step {first_step}" if first_step else "training from the beginning"
    batch, source = "", spec.input_fn
    if isinstance(source, HDF5Input) and (not roles.servers or config.max_staleness == 0):
        rows, readers = source.batch_size, roles.readers
        batch = f"; global batch {rows * readers} ({rows} x {readers} {'workers' if roles.servers else 'ranks'})"
    elif isinstance(source, HDF5Input):
        batch = f"; batch {source.batch_size}, a step being one gradient of one of {roles.readers} workers"
    return f"{begin} to step {spec.max_steps or 'end of input'}{batch}; job-dir {job_dir}"


def _of_the_run_before(status: dict[str, Any]) -> list[str]:
    """What to tell where the run before this one ended without a word."""
    if status.get("state") != "running":
        return []
    when = datetime.fromtimestamp(status.get("updated", 0)).astimezone().isoformat(" ", "seconds")
    return [
        f"the run before ended without a word: last heard of at {when}, at step {status.get('step')} "
        f"(host {status.get('host')}, pid {status.get('pid')})"
    ]
