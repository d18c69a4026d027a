"""Asynchronous training: parameter servers and workers, each in its own time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.run_config import RunConfig, RunOptions
from hpc_train.data.sampling.sampler import DataProgress
from hpc_train.distributed.optimizer_trials import refuse_uncuttable
from hpc_train.distributed.optimizer_variables import parts_of, refuse_loss_scale
from hpc_train.distributed.parameter_server.open_window import opened_window
from hpc_train.distributed.parameter_server.optimizer_shard import OptimizerShard
from hpc_train.distributed.parameter_server.server import Applied, Server
from hpc_train.distributed.parameter_server.window_layout import SIGNALLED, STOP, server_layout
from hpc_train.distributed.parameter_server.worker import Worker
from hpc_train.distributed.partition import Partition, VariableSpec, partition
from hpc_train.distributed.roles import Roles
from hpc_train.distributed.tensors import dtype_of, on_host
from hpc_train.distributed.world import Threads, World
from hpc_train.engine.run_context import Result, RunContext, Training
from hpc_train.engine.run_plan import TrainingJob
from hpc_train.engine.steps_in_flight import depth_of
from hpc_train.engine.strategy import ModelParts
from hpc_train.errors import UserError
from hpc_train.lazy import keras
from hpc_train.model.own_steps import has_own_train_step
from hpc_train.outcome import STOP_CODES
from hpc_train.resilience.guard import dispense
from hpc_train.resilience.signals import JobStopped, signal_of_any
from hpc_train.strategies.asynchronous.chief import AsyncChief
from hpc_train.strategies.asynchronous.gradient_step import GradientStep
from hpc_train.strategies.asynchronous.losses import Losses, check_guard, end_apart, losses_of, waits_for_the_rest
from hpc_train.strategies.asynchronous.parts import AsyncParts, carried_places
from hpc_train.strategies.asynchronous.remote_state import RemoteState
from hpc_train.strategies.asynchronous.worker import AsyncWorker, Bound
from hpc_train.text import listed

T = TypeVar("T")


class Asynchronous:
    """Workers push gradients to parameter servers, each in its own time. See engine.strategy.Strategy."""

    threads: Threads = "serialized"

    def roles(self, size: int, options: RunOptions) -> Roles:
        """The first ranks are servers, rank 0 the chief among them; the others are workers."""
        servers = options.parameter_servers
        if servers < size:
            return Roles(size, servers)
        counted = f"{servers} parameter server{'s' if servers > 1 else ''}"
        few = f"1 rank cannot be split into {counted}" if size == 1 else f"{size} ranks are {counted}"
        raise UserError(
            f"run.parameter_servers: {few} and no worker; start at least {servers + 1} ranks (hpc-train launch "
            f"--ranks, mpirun -np)" + (", or set fewer parameter_servers" if servers > 1 else ", or strategy: sync")
        )

    def least_ranks(self, options: RunOptions) -> int:
        """One worker, beside the servers."""
        return 1 + options.parameter_servers

    def sharers(self, roles: Roles, options: RunOptions) -> int:
        """All workers, where their gradients are averaged; else one, whose gradient is an update."""
        return roles.readers if options.max_staleness == 0 else 1

    def place(self, job: TrainingJob, roles: Roles, progress: DataProgress) -> DataProgress:
        """As far as the job; a function's batches are counted by worker, of which a step is one of them."""
        if isinstance(job.train_spec.input_fn, HDF5Input) or job.config.max_staleness == 0:
            return progress
        return DataProgress(progress.step // roles.readers)

    @contextmanager
    def prepare(self, parts: ModelParts) -> Iterator[Training]:
        """Divides the parameters among the servers, and opens their window. Collective.

        Raises:
            UserError: The optimizer or this MPI cannot do it.
        """
        world, roles, model, config = parts.world, parts.roles, parts.model, parts.config
        world.each(lambda: check_guard(config))
        serves, mean = roles.serves(world.rank), config.max_staleness == 0
        world.each(lambda: check_model(model))
        world.each(lambda: _check_optimizer(model.optimizer, config))
        step = world.each(lambda: None if serves else _gradient_step(parts, mean))
        traced = {"kinds": step.kinds, "changed": step.changed} if step else None
        found: dict[str, Any] = world.all_gather(traced)[roles.servers] or {}  # of the first worker
        kinds = found["kinds"]
        variables = [
            VariableSpec(tuple(v.shape), dtype_of(v), kind == "rows", v.constraint is not None)
            for v, kind in zip(model.trainable_variables, kinds, strict=True)
        ]
        plan = partition(variables, roles.servers)
        world.each(lambda: _check_parts(plan, roles, model) if world.is_chief else None)
        carried = [parts.state.not_trained[number] for number in found["changed"]]
        pushed = [kind != "none" for kind in kinds]
        shard = world.each(lambda: _make_shard(parts, plan, pushed) if serves else None)
        state_nbytes = world.all_gather(shard.state_nbytes if shard else 0)
        layouts = [
            server_layout(
                plan, server, roles.readers, carried_places(carried)[1], state_nbytes[server], parts.loss.exchanged
            )
            for server in range(roles.servers)
        ]
        with opened_window(world, roles, layouts) as window:
            divided = AsyncParts(
                roles, plan, layouts, window, carried, model.trainable_variables, parts.state.updates.variables
            )
            if shard is not None:
                yield partial(_serve, divided, shard)
            elif step is not None:
                yield partial(_work, divided, step)


def _gradient_step(parts: ModelParts, mean: bool) -> GradientStep:
    spec = parts.input.current.dataset.element_spec
    pieces = parts.config.accumulate_steps
    step = GradientStep(parts.model, spec, parts.state.not_trained, not mean, pieces, parts.loss)
    if step.assigned:
        raise UserError(
            f"run.strategy: async cannot be used with {type(parts.model).__name__}: it assigns values to "
            f"{listed(step.assigned)} when it is called, of which parameter servers, who hold them, know nothing; take "
            "strategy: sync"
        )
    return step


def _make_shard(parts: ModelParts, plan: Partition, pushed: Sequence[bool]) -> OptimizerShard:
    """This server's part of the variables, with an optimizer of its own."""
    model, config = parts.model, parts.config
    with on_host():
        another = parts.build_again()
    known = {id(variable) for variable in model.variables}
    if another.optimizer.built or any(id(variable) in known for variable in another.variables):
        raise UserError(
            "model_fn returned the same variables or optimizer twice; with strategy: async it must make a new "
            "model, with new layers and a new optimizer, each time it is called"
        )
    shard = OptimizerShard(
        another.trainable_variables,
        another.optimizer,
        plan,
        parts.world.rank,
        pushed,
        config.max_staleness == 0,
        config.scale_lr_by_staleness,
    )
    optimizer = parts.state.updates.variables
    if [tuple(v.shape) for v in shard.optimizer_variables.common] != [tuple(v.shape) for v in optimizer.common]:
        raise UserError(
            f"run.parameter_servers: {type(model.optimizer).__name__} keeps variables that are not shaped like the "
            "model's, and cannot be divided among several servers; set parameter_servers: 1, or take another one"
        )
    shard.load(model.trainable_variables, optimizer)
    return shard


def _serve(parts: AsyncParts, shard: OptimizerShard, context: RunContext) -> Result:
    """A parameter server serves until all workers have left; the first, the chief, then saves, evaluates and exports.

    Collective.
    """
    config, rank = context.config, context.world.rank
    depth_of(context, context.world, trains=False)
    server = Server(
        parts.window,
        parts.layouts[rank],
        parts.partition,
        rank,
        shard,
        carried_places(parts.carried)[1] if rank == 0 else 0,
        config.max_staleness,
        config.scale_lr_by_staleness,
        config.on_lost_worker == "continue",
    )
    waits_for_the_rest(context)
    if context.chief is not None:
        losses = Losses(context, parts, server) if config.on_lost_worker == "continue" else None
    parts.window.barrier()
    if context.chief is None:
        context.watchdog.at("waiting for gradients", None)
        server.serve(_ServerEvents(parts, context), until_released=True)
        return _end(parts, context, None, None)
    at = context.watchdog.at
    state = RemoteState(parts, shard, server, context.state, lambda phase: at(phase, None))
    chief = AsyncChief(context, context.chief, server, state, shard, losses)
    return _end(parts, context, chief, chief.train())


class _ServerEvents:
    """What a server that is not the first one does beside its updates. See server.Events."""

    def __init__(self, parts: AsyncParts, context: RunContext) -> None:
        self._parts, self._context, self._asked = parts, context, False

    def applying(self) -> None:
        self._context.watchdog.at("applying a gradient", None)

    def applied(self, update: Applied) -> None:
        self.idle()
        self._context.watchdog.at("waiting for gradients", None)

    def idle(self) -> None:
        """Passes a signal on to the first server."""
        if self._context.signals.received is not None and not self._asked:
            self._asked = True
            self._parts.note_signal(self._context.signals.received)
            self._parts.window.replace(0, self._parts.layouts[0].word(STOP), SIGNALLED)


def _work(parts: AsyncParts, step: GradientStep, context: RunContext) -> Result:
    """A worker computes gradients until there are no more to compute, and waits for the chief. Collective."""
    depth = depth_of(context, context.world)
    worker = Worker(parts.window, parts.layouts, parts.partition, parts.roles.part_of(context.world.rank))
    waits_for_the_rest(context)
    parts.window.barrier()
    if context.config.on_lost_worker == "continue":
        dispense(losses_of(context), context.world.rank, parts.roles.readers)
    bound = Bound(context.model.trainable_variables, parts.partition, worker.arena, step.only_reads, depth)
    AsyncWorker(context, parts, worker, bound, step, depth).work()
    return _end(parts, context, None, None)


def _end(parts: AsyncParts, context: RunContext, chief: AsyncChief | None, step: int | None) -> Result:
    """Leaves where a signal has ended training at `step`, else gets what the chief makes of it. Collective."""
    world = context.world
    if context.config.on_lost_worker == "continue":
        return end_apart(context, parts, chief, step)
    context.watchdog.at("waiting for the others (end of training)", None)
    parts.window.barrier()
    name = signal_of_any(world, context.signals.received)
    if world.broadcast(chief.cut_short if chief else None) and name is not None:
        _alone(parts, world, lambda: chief.lifecycle.save_for(name, step) if chief and step is not None else None)
        raise JobStopped(STOP_CODES[name])
    reasons = [world.first(context.hooks.stop_requested)]
    result = _alone(parts, world, lambda: chief.finish(reasons) if chief else None)
    assert result is not None, "the chief has finished"
    return result


def _alone(parts: AsyncParts, world: World, action: Callable[[], T]) -> T:
    """What `action` gives on the chief, for which the others wait asleep. Collective."""
    if not world.is_chief:
        parts.window.barrier()
        return world.on_chief(action)

    def act() -> T:
        try:
            return action()
        finally:
            parts.window.barrier()

    return world.on_chief(act)


def check_model(model: keras.Model) -> None:
    """UserError where workers, each in its own time, cannot do what the model asks for."""
    kind = type(model).__name__
    if has_own_train_step(model):
        raise UserError(
            f"run.strategy: async cannot be used with the train_step of {kind}, which updates variables by itself, "
            "while in an asynchronous job parameter servers do; take strategy: sync, or override compute_loss instead"
        )
    together = [layer.name for layer in model._flatten_layers() if getattr(layer, "synchronized", False)]
    if together:
        raise UserError(
            f"run.strategy: async cannot be used with {', '.join(together[:3])}: BatchNormalization(synchronized=True) "
            "averages over the batches of all ranks at the same time, and workers compute each in its own time; leave "
            "synchronized out, or take strategy: sync"
        )


def _check_optimizer(optimizer: keras.optimizers.Optimizer, config: RunConfig) -> None:
    refuse_loss_scale(optimizer)
    by_norm = any(part.clipnorm or part.global_clipnorm for part in parts_of(optimizer))
    if config.max_staleness == 0 and config.parameter_servers > 1 and by_norm:
        raise UserError(
            "run.max_staleness: 0 clips the mean of all workers' gradients, but each of several servers has only its "
            "part, whose norm is another; set parameter_servers: 1, take clipvalue, or max_staleness: 1 or more"
        )


def _check_parts(plan: Partition, roles: Roles, model: keras.Model) -> None:
    empty = [server for server in range(roles.servers) if not plan.pieces(server)]
    if empty:
        raise UserError(
            f"run.parameter_servers: the model's {plan.nbytes} bytes of variables cannot be divided among "
            f"{roles.servers} servers: nothing would be left for server {empty[0]}; set fewer"
        )
    if plan.cut_variables:
        cut = [model.trainable_variables[number] for number in plan.cut_variables]
        refuse_uncuttable(model.optimizer, cut, "run.parameter_servers", "set parameter_servers: 1")
