"""train_and_evaluate: one job from its specs to its exports, on one rank or many."""

from __future__ import annotations

import sys
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hpc_train.callbacks.hook import Hook
from hpc_train.callbacks.hook_list import OfEvaluation
from hpc_train.callbacks.tensorboard import Profiled, WeightsShown
from hpc_train.checkpoint.async_saver import BackgroundSaver
from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.manager import CheckpointManager, Found
from hpc_train.checkpoint.names import Retention
from hpc_train.config.estimator import Estimator
from hpc_train.config.specs import EvalSpec, HDF5Input, TrainSpec, refuse_same_kinds
from hpc_train.data.loading.batch_source import share_of_node
from hpc_train.data.loading.tf_dataset import Loader, OpenInput, context_for, open_training, refuse_name
from hpc_train.data.sampling.sampler import DataProgress
from hpc_train.distributed.allreduce import Alone
from hpc_train.distributed.excepthook import tell_uncaught
from hpc_train.distributed.horovod import HorovodSync
from hpc_train.distributed.optimizer_variables import build as build_optimizer
from hpc_train.distributed.roles import roles_for
from hpc_train.distributed.world import Threads, World, join_world, set_up_tensorflow
from hpc_train.engine.abort import ends_all_ranks
from hpc_train.engine.checkpointing import Committed, told_of_failures, told_of_saves
from hpc_train.engine.lifecycle import Result
from hpc_train.engine.recovery import find_checkpoint
from hpc_train.engine.run_context import Session, ToldBefore
from hpc_train.errors import UserError
from hpc_train.export.contents import about_job
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobdir.paths import CHECKPOINTS, LOGS
from hpc_train.model import rng_state
from hpc_train.model.builder import build_model
from hpc_train.model.model_state import ModelState
from hpc_train.resilience.failure import FailureReport
from hpc_train.resilience.job_lock import JobLock
from hpc_train.resilience.signals import StopSignals
from hpc_train.resilience.watchdog import watch_over
from hpc_train.strategies.asynchronous.strategy import AsyncTraining, prepared
from hpc_train.strategies.synchronous.dedicated import DedicatedTraining, dedicated
from hpc_train.strategies.synchronous.strategy import SyncTraining
from hpc_train.telemetry.progress import Notes
from hpc_train.telemetry.status import read_status
from hpc_train.training.announce import Started, start_reporting
from hpc_train.training.build import Reopened
from hpc_train.training.components import (
    decided_before,
    hooks_given,
    hooks_of,
    listeners_for,
    prepare_evaluations,
    profiler_for,
)
from hpc_train.training.job_description import describe
from hpc_train.training.startup import (
    about_rank,
    begin_job_dir,
    check_labels,
    find_all_shards,
    parts_of,
    where_from,
)
from hpc_train.warm_start.apply import WarmStarted, warm_start


def train_and_evaluate(estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec | Sequence[EvalSpec]) -> Result:
    """Trains, evaluates and exports; goes on from the newest checkpoint of the job-dir. Collective.

    Args:
        eval_spec: One evaluation set, or several with names of their own; the first one decides which checkpoint is
            the best (`best_metric`).

    Returns:
        The metrics of the last evaluation (of the first set) with `global_step`, the same on all ranks, and the
        folders of the exports made of the last checkpoint.

    Writes, in `estimator.config.model_dir`: job.yaml, environment.json, data.json, status.json, metrics.jsonl,
    checkpoints/, event files in train/, eval/ (eval_<name>/) and ranks/, export/, report.html, logs/failure-*.txt where
    a rank failed, early_stop.json and warm_start.json where those happened.

    Raises:
        UserError: The data, the model or the job-dir cannot be used; nothing has been written.
        RankError: Another rank failed while the job was set up.
        JobEndedError: The numbers went bad, or a checkpoint could not be written; its `code` is the exit code.
        SystemExit: With code 3, 4 or 5, after SIGUSR1, SIGTERM or SIGINT and a checkpoint.
        Whatever the model, the input or a hook raise.

    With several ranks, a failure once training has begun is printed by the rank that failed, and ends all ranks with
    exit code 1. An exception that the program does not catch is told once, and the exit code is 2 for a UserError.
    """
    eval_specs = [eval_spec] if isinstance(eval_spec, EvalSpec) else list(eval_spec)
    if not eval_specs:
        raise UserError("eval_spec: there is none; give an EvalSpec, or several")
    try:
        refuse_same_kinds(eval_specs)
    except ValueError as error:
        raise UserError(f"eval_spec: {error}") from None
    description = describe(estimator, train_spec, eval_specs)
    with StopSignals() as signals:
        world = join_world(threads_for(estimator.config.strategy))
        if world.size > 1:
            tell_uncaught(world)
        return run_job(world, estimator, train_spec, eval_specs, description, Path.cwd(), signals)


def run_job(
    world: World,
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_specs: Sequence[EvalSpec],
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
        job_dir / CHECKPOINTS, Retention(config.keep_checkpoint_max, config.keep_checkpoint_every_n_hours)
    )
    asynchronous = config.strategy == "async"
    with ExitStack() as stack:
        roles = world.each(lambda: roles_for(world.size, config))
        lock, notes = JobLock(job_dir), Notes()
        existed = world.on_chief(lambda: _lock_what_exists(lock, job_dir, notes.say))
        if world.is_chief:
            manager.note = notes.say
            stack.callback(lock.release)
            stack.callback(notes.flush)
        found = Found(**world.on_chief(lambda: asdict(find_checkpoint(job_dir, manager))))
        first_step = found.step or 0
        decided = world.each(
            lambda: decided_before(job_dir, train_spec, eval_specs, found.step) if world.is_chief else None
        )
        max_steps = world.broadcast(decided.max_steps if decided else None)
        shards = find_all_shards(world, roles.readers, train_spec, eval_specs, config, first_step)
        device = set_up_tensorflow(world)
        part = roles.part_of(world.rank)
        context = context_for(part, roles.readers, train_spec.input_fn, config.tf_random_seed)
        means = world.each(lambda: share_of_node(world.cores, world.local_size))

        training_input = stack.enter_context(Reopened())

        def open_data(ranks: World, step: int | None) -> tuple[OpenInput, bool]:
            place, reordered = where_from(ranks, manager, step, train_spec.input_fn, shards[0])
            if asynchronous and not isinstance(train_spec.input_fn, HDF5Input) and config.max_staleness != 0:
                place = DataProgress(place.step // roles.readers)  # batches of each worker: a step is one of them
            opening = open_training(train_spec.input_fn, shards[0], context, place, means, load)
            return ranks.each(lambda: training_input.enter(opening)), reordered

        data, reordered = open_data(world, found.step)
        model = world.each(lambda: build_model(estimator, data.dataset))
        about = about_job(description.get("name"), job_dir, estimator.params, shards[0])
        evaluations = prepare_evaluations(
            world,
            roles.idle > 0,
            config,
            train_spec,
            eval_specs,
            shards,
            data.dataset.element_spec,
            model,
            about,
            load,
            means,
        )
        check_labels(world, shards, (train_spec, *eval_specs), model)
        optimizer = world.each(lambda: build_optimizer(model.optimizer, model.trainable_variables))
        state = ModelState(model, world)
        world.each(state.check_ranks)
        warm: list[WarmStarted] = []
        if found.step is None and (settings := estimator.warm_start) is not None:
            world.each(lambda: warm.append(warm_start(model, settings, job_dir)) if world.is_chief else None)

        def restore(ranks: World, step: int | None) -> Snapshot | None:
            snapshot = ranks.each(lambda: _load(manager, step, state) if ranks.is_chief else None)
            state.share(snapshot, part)
            rng_state.restore(ranks, snapshot.rng if snapshot else None, part, roles.readers)
            return replace(snapshot, model={}, optimizer={}, rng={}) if snapshot else None

        restored = restore(world, found.step)
        training: SyncTraining | DedicatedTraining | AsyncTraining
        if asynchronous:
            training = stack.enter_context(
                prepared(
                    world, roles, config, lambda: build_model(estimator, data.dataset), model, optimizer, state, data
                )
            )
        elif roles.dedicated:
            training = stack.enter_context(dedicated(world, roles, config, state))
        else:
            strategy = world.each(lambda: HorovodSync(world, config.compression) if world.size > 1 else Alone())
            training = SyncTraining(strategy)
        names = next(iter(evaluations.metric_names.values()))
        evaluated = world.on_chief(lambda: len(JobDir(job_dir).evaluations(first_step).get(eval_specs[0].kind, {})))
        given_hooks = world.each(
            lambda: hooks_given(world, roles, config, train_spec, eval_specs, data, model, names, evaluated, load)
        )
        listeners = world.each(lambda: listeners_for(world, train_spec, load))
        profiler = stack.enter_context(profiler_for(world, roles, config, notes))
        own_hooks: list[Hook] = [Profiled(profiler)] if profiler.wanted else []

        ranks = world.all_gather(about_rank(world, roles, device, shards[0], context, data))
        late_lock = None if existed else lock
        by_part = dict(zip(parts_of(eval_specs), shards, strict=True))
        told = world.on_chief(
            lambda: begin_job_dir(job_dir, manager, late_lock, found, description, ranks, code_folder, by_part)
        )
        failure = FailureReport(job_dir / LOGS, world.broadcast(uuid.uuid4().hex[:12]))
        stack.enter_context(ends_all_ranks(world, job_dir, failure, lock))
        reporting, saver = None, None
        told_before = ToldBefore.of(read_status(job_dir) if world.is_chief else {}, first_step)
        committed: deque[Committed] = deque()
        if world.is_chief:
            started = Started(
                job_dir, config, estimator, train_spec, eval_specs, roles, first_step, max_steps, model, data, warm
            )
            reporting = stack.enter_context(start_reporting(started, failure, notes, ranks, told, reordered))
            if config.save_histograms_steps and not roles.idle:
                own_hooks.append(WeightsShown(reporting.metrics, model, config.save_histograms_steps))
            state.reserve()
        # The others wait here for the chief, which has more to make ready.
        watchdog = stack.enter_context(watch_over(world, job_dir, failure, config.stall_timeout_secs))
        if reporting is not None:
            saver = stack.enter_context(
                BackgroundSaver(
                    manager, told_of_saves(reporting.say, committed), told_of_failures(manager, reporting.say)
                )
            )
        if max_steps is not None and first_step >= max_steps:  # of the steps' hooks there is nothing to do any more
            given_hooks = [hook for hook in given_hooks if isinstance(hook, OfEvaluation)]
        hooks = hooks_of(world, roles, config, max_steps, first_step, model, [*given_hooks, *own_hooks])
        return training.run(
            Session(
                world,
                config,
                train_spec,
                eval_specs,
                max_steps,
                decided.held if decided else None,
                model,
                state,
                hooks,
                listeners,
                decided.stopper if decided else None,
                evaluations.evaluators,
                evaluations.exporting,
                data,
                found.step,
                restored,
                restore,
                open_data,
                manager,
                saver,
                committed,
                lock,
                signals,
                watchdog,
                reporting,
                notes,
                delay_secs,
                told_before,
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
