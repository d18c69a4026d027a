"""From the plan of a run to what it has open: data, model, state, evaluations, callbacks, and the chief's services."""

from __future__ import annotations

import logging
import secrets
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hpc_train.callbacks.hook import Hook
from hpc_train.callbacks.hook_list import EvaluationHook, SavingListeners, resolve_listeners
from hpc_train.callbacks.tensorboard import Profiler, WeightHistograms
from hpc_train.checkpoint.async_saver import BackgroundSaver
from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.config.estimator import Estimator
from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.settings import Settings, settings_of
from hpc_train.data.hdf5.local_copies import LocalCopies
from hpc_train.data.loading.batch_source import ReadResources, share_of_node
from hpc_train.data.memory import available_bytes, control_groups
from hpc_train.distributed.devices import set_up_tensorflow
from hpc_train.distributed.placement import Room, placed
from hpc_train.distributed.share import share_of
from hpc_train.distributed.world import World
from hpc_train.engine.abort import ends_all_ranks
from hpc_train.engine.checkpointing import committed_by, failed_by
from hpc_train.engine.rank_energy import rank_energy
from hpc_train.engine.recovery import Restorer, note_changes
from hpc_train.engine.run_context import ChiefServices, Committed, RunContext
from hpc_train.engine.run_plan import RunPlan, TrainingJob
from hpc_train.engine.strategy import ModelParts, Strategy
from hpc_train.engine.training_input import TrainingInput
from hpc_train.errors import UserError
from hpc_train.evaluation.evaluator import Evaluator
from hpc_train.export.exporters import ExporterRunner
from hpc_train.export.whole_model import WholeModel, tables_of
from hpc_train.jobdir.paths import LOGS
from hpc_train.lazy import keras, tf
from hpc_train.model import rng_state
from hpc_train.model.builder import build_model
from hpc_train.model.learning_rate import optimizer_settings
from hpc_train.model.loss_plan import plan_loss
from hpc_train.model.model_state import ModelState
from hpc_train.model.notes import notes_on
from hpc_train.model.one_rank import check_parts
from hpc_train.model.own_steps import has_own_train_step, updates_of
from hpc_train.model.unallocated import traced
from hpc_train.resilience.failure import FailureReport
from hpc_train.resilience.job_lock import JobLock
from hpc_train.resilience.signals import StopSignals
from hpc_train.resilience.watchdog import watch_over
from hpc_train.telemetry.reporter import Reporter
from hpc_train.telemetry.start_timeline import start_timeline
from hpc_train.training.announce import Announcement, start_reporting
from hpc_train.training.components import early_stopper, hooks_of, prepare_evaluations, user_hooks
from hpc_train.training.data_check import check_labels, check_same_batches
from hpc_train.training.job_dir import about_rank, begin_job_dir
from hpc_train.warm_start.apply import WarmStartResult, warm_start

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _TrainingSetup:
    """The model with its first state, and what evaluates it.

    Attributes:
        warm: What a warm start has done, on the chief. settings: what the run is asked for, see config.settings.
    """

    parts: ModelParts
    evaluators: Sequence[Evaluator]
    exporter_runners: Sequence[ExporterRunner]
    restorer: Restorer
    restored: Snapshot | None
    warm: tuple[WarmStartResult, ...]
    settings: Settings
    whole: WholeModel | None


@contextmanager
def build(
    world: World,
    job: TrainingJob,
    plan: RunPlan,
    strategy: Strategy,
    manager: CheckpointManager,
    lock: JobLock,
    signals: StopSignals,
) -> Iterator[RunContext]:
    """Opens what `plan` needs, and begins the job-dir once all of it is known to do. Collective.

    From the first write on, an exception of one rank ends all of them.

    Args:
        lock: The job-dir's, held by the chief where that exists.

    Raises:
        UserError: The data, the model, an exporter, a hook or the strategy does not do; nothing has been written.
        Whatever the model, the input or a hook raise.
    """
    with ExitStack() as stack:
        start_timeline.begin("TensorFlow")
        device = set_up_tensorflow(world)
        energy = stack.enter_context(rank_energy(world))
        start_timeline.begin("data")
        resources = world.each(lambda: share_of_node(world.cores, world.local_size))
        source = job.train_spec.input_fn
        staging = isinstance(source, HDF5Input) and source.stage == "node" and not plan.is_over
        if staging:
            world.each(lambda: _check_stage(job) if plan.roles.trains(world.rank) else None)
            resources = replace(resources, copies=LocalCopies())
        place = partial(strategy.place, job, plan.roles)
        data = stack.enter_context(TrainingInput(job, plan, manager, world.rank, resources, place))
        data.open(world, plan.progress)
        check_same_batches(world, plan.roles, "train", job.train_spec.input_fn, lambda: nullcontext(data.current))
        start_timeline.begin("model")
        together = job.config.strategy == "sync" and plan.roles.trains(world.rank)
        with placed(plan.roles.mesh_of(world.rank) if together else None, _room(world)):
            trained = _build_model(world, job, plan, strategy, manager, data)
        model = trained.parts.model
        start_timeline.begin("exchange")
        training = stack.enter_context(strategy.prepare(trained.parts))
        start_timeline.begin("job-dir")
        hooks = user_hooks(world, job, plan, data.current, model, trained.evaluators[0])
        listeners = world.each(
            lambda: resolve_listeners(job.train_spec.saving_listeners, job.load) if world.is_chief else []
        )
        own_hooks: list[Hook] = []
        if world.rank == plan.roles.idle and job.config.profile_steps is not None:
            own_hooks.append(stack.enter_context(Profiler(job.job_dir / "train", job.config.profile_steps)))

        held = trained.parts.state.held_bytes()
        own = about_rank(world, plan, device, data.context, data.current, held) | energy.described()
        ranks = world.gather(own) or []  # on the chief
        failure = FailureReport(job.job_dir / LOGS, plan.run_id)
        world.each(lambda: begin_job_dir(job, plan, manager, lock, ranks) if world.is_chief else None)
        stack.enter_context(ends_all_ranks(world, job.job_dir, failure, lock))
        reporter: Reporter | None = None
        if world.is_chief:
            optimizer = trained.parts.state.updates.first
            about = Announcement.of_model(job, plan, model, optimizer, data.current, trained.warm)
            reporting = start_reporting(job, plan, failure, ranks, about, energy)
            reporter = stack.enter_context(reporting)
            if trained.restored is not None:
                before = trained.restored.settings
                note_changes(reporter.metrics, plan.first_step, before, trained.settings, plan.is_over)
            if job.config.save_histograms_steps and not plan.roles.idle:
                own_hooks.append(WeightHistograms(reporter.metrics, model, job.config.save_histograms_steps))
            trained.parts.state.reserve()
        # The others wait here for the chief, which has more to make ready.
        watchdog = stack.enter_context(watch_over(world, job.job_dir, failure, job.config.stall_timeout_secs))
        stack.enter_context(trained.parts.state.parts_read())
        chief: ChiefServices | None = None
        if reporter is not None:
            chief = stack.enter_context(_chief_services(job, plan, manager, lock, trained, reporter, listeners))
        if plan.is_over:  # of the steps' hooks there is nothing to do any more
            hooks = [hook for hook in hooks if isinstance(hook, EvaluationHook)]
        told_of_copies = stack.enter_context(_staged(world, job, plan, resources, reporter)) if staging else dict
        start_timeline.begin("first step")
        yield RunContext(
            world=world,
            job=job,
            plan=plan,
            model=model,
            state=trained.parts.state,
            loss=trained.parts.loss,
            input=data,
            hooks=hooks_of(world, job, plan, model, [*hooks, *own_hooks]),
            evaluators=trained.evaluators,
            manager=manager,
            restorer=trained.restorer,
            signals=signals,
            watchdog=watchdog,
            training=training,
            chief=chief,
            whole=trained.whole,
            energy=energy,
            staged=told_of_copies,
        )


def _check_stage(job: TrainingJob) -> None:
    from hpc_train.training.staging import check_folder

    check_folder(job.train_spec.input_fn)


def _staged(
    world: World, job: TrainingJob, plan: RunPlan, resources: ReadResources, reporter: Reporter | None
) -> AbstractContextManager[Callable[[], dict[str, float]]]:
    """The copies of what is trained on; jobs without them do not import what makes them."""
    from hpc_train.training.staging import staged

    shards, copies = plan.shards[0], resources.copies
    assert shards is not None
    assert copies is not None
    return staged(world, job.train_spec.input_fn, shards, plan.roles.trains(world.rank), copies, reporter)


@contextmanager
def _chief_services(
    job: TrainingJob,
    plan: RunPlan,
    manager: CheckpointManager,
    lock: JobLock,
    trained: _TrainingSetup,
    reporter: Reporter,
    listeners: Sequence[Any],
) -> Iterator[ChiefServices]:
    """What the chief has besides; leaving it waits for the checkpoint that is being written."""
    committed: deque[Committed] = deque()
    with BackgroundSaver(manager, committed_by(committed), failed_by(manager)) as saver:
        yield ChiefServices(
            reporter=reporter,
            saver=saver,
            committed=committed,
            lock=lock,
            listeners=SavingListeners(listeners),
            stopper=early_stopper(job, plan),
            exporter_runners=trained.exporter_runners,
            restored=trained.restored,
            settings=trained.settings,
        )


def _room(world: World) -> Room | None:
    """This rank's share of the host's memory; None where its variables lie in a GPU's. Collective."""
    group = zlib.crc32(repr((world.host, control_groups())).encode())
    in_group = world.all_gather(group).count(group)
    left = world.each(lambda: available_bytes(local_ranks=world.local_size, in_group=in_group))
    return None if tf.config.list_logical_devices("GPU") else Room(left)


def _seeded_alike(world: World, job: TrainingJob, plan: RunPlan) -> Estimator:
    """The estimator, with a seed where it has none and its ranks have to draw alike: layers are divided. Collective."""
    if plan.roles.model == 1 or job.config.tf_random_seed is not None:
        return job.estimator
    config = replace(job.config, tf_random_seed=world.broadcast(secrets.randbits(32)))
    return replace(job.estimator, config=config)


def _build_model(
    world: World, job: TrainingJob, plan: RunPlan, strategy: Strategy, manager: CheckpointManager, data: TrainingInput
) -> _TrainingSetup:
    """The model on all ranks alike, with the state that the run begins from, and its evaluations. Collective."""
    estimator, dataset = _seeded_alike(world, job, plan), data.current.dataset

    def build_another() -> keras.Model:
        return build_model(estimator, dataset)

    model = world.each(build_another)
    world.each(lambda: _check_model(model, job, plan))
    tables = tables_of(model)
    if world.is_chief and tables and plan.roles.model > 1 and not any(map(share_of, tables.values())):
        log.warning(
            f"{', '.join(tables)} (ShardedEmbedding): run.mesh has one copy of the model, and rows are spread over "
            "copies: each rank holds the whole table; take a mesh with more copies (data), or leave run.mesh out"
        )
    if plan.roles.model > 1 and any(map(share_of, model.variables)):
        as_traced = partial(build_model, estimator, dataset, traced)
        world.each(lambda: check_parts(model, dataset, as_traced) if world.is_chief else None)
    rng_state.seed_part(estimator.config.tf_random_seed, plan.roles.part_of(world.rank))
    evaluators, exporter_runners, whole = prepare_evaluations(world, job, plan, data, model, build_another)
    check_labels(world, plan.shards, (job.train_spec, *job.eval_specs), model)
    name = getattr(job.estimator.model_fn, "__qualname__", "model_fn")
    trainers = plan.roles.trainers
    shards = job.config.shard_optimizer and trainers > 1
    mesh = plan.roles.mesh_of(world.rank) if shards else None
    updates = world.each(lambda: updates_of(model, dataset, name, mesh))
    if job.config.shard_optimizer and trainers == 1 and world.is_chief:
        log.info("run.shard_optimizer has no effect: one rank trains, and holds the whole optimizer")
    shared = strategy.sharers(plan.roles, job.config)
    if world.is_chief:
        for note in notes_on(
            model, updates, plan.roles.trainers, plan.roles.servers > 0, job.config.mixed_precision, name
        ):
            log.info(note)
    loss = plan_loss(world, model, dataset, shared, job.config, name)
    if job.train_spec.keep_global_batch:
        world.each(lambda: _check_pieces(model, job, plan, loss.uneven, [one for one, _ in updates.optimizers]))
    own = {f"optimizer_{n}": optimizer_settings(o) for n, (o, _) in enumerate(updates.optimizers[1:], start=2)}
    batch = plan.batch.settings if plan.batch is not None else {}
    settings = settings_of({**job.description, "optimizer": optimizer_settings(updates.first), **own, **batch})
    state = ModelState(model, world, updates)
    world.each(state.check_ranks)
    start = job.estimator.warm_start if plan.restored_step is None else None
    warm = warm_start(world, model, start, job.job_dir) if start is not None else None
    restorer = Restorer(manager, state, plan.roles.part_of(world.rank), plan.roles.readers, settings)
    restored = restorer.restore(world, plan.restored_step)
    for pieces in updates.pieces if plan.restored_step is None else ():
        pieces.begin()
    parts = ModelParts(world, plan.roles, job.config, model, state, loss, data, build_another)
    return _TrainingSetup(
        parts, evaluators, exporter_runners, restorer, restored, (warm,) if warm else (), settings, whole
    )


def _check_pieces(model: keras.Model, job: TrainingJob, plan: RunPlan, uneven: bool, optimizers: Sequence[Any]) -> None:
    """UserError where the job could not go on with fewer ranks, which would compute their batches in pieces."""
    from hpc_train.strategies.synchronous.strategy import check_steps

    pieces = replace(job.config, accumulate_steps=max(2, job.config.accumulate_steps))
    try:
        for optimizer in optimizers:
            check_steps(model, pieces, plan.roles.trainers, uneven, optimizer)
    except UserError as error:
        raise UserError(f"train.keep_global_batch, with which fewer ranks compute batches in pieces: {error}") from None
    if any(tensor.shape[0] is not None for tensor in getattr(model, "inputs", None) or ()):
        raise UserError(
            "train.keep_global_batch: the model takes batches of a fixed number of rows; leave keep_global_batch out, "
            "or the batch_size of keras.Input"
        )


def _check_model(model: keras.Model, job: TrainingJob, plan: RunPlan) -> None:
    """UserError where `model`, or its layers of ht.parallel, cannot be trained as `job` asks for."""
    if plan.roles.model == 1 and "hpc_train.parallel" not in sys.modules:  # no need to wait for the import of them
        return
    from hpc_train.parallel.checks import check_layers

    check_layers(model, job.config, plan.roles.model, has_own_train_step(model))
