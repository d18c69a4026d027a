"""Synchronous training: all ranks take each step together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from hpc_train.config.run_config import RunConfig, RunOptions
from hpc_train.data.sampling.sampler import DataProgress
from hpc_train.distributed.allreduce import GradientAllreduce
from hpc_train.distributed.carrier import carrier_of, collectives_by
from hpc_train.distributed.optimizer_trials import refuse_uncuttable
from hpc_train.distributed.roles import Roles
from hpc_train.distributed.share import averaged_over, share_of
from hpc_train.distributed.world import Threads, UndeclaredGroupsError, World
from hpc_train.engine.lifecycle import Lifecycle
from hpc_train.engine.loop import Outcome, RunControl, TrainingLoop
from hpc_train.engine.own_train_step import make_own_train_step
from hpc_train.engine.recovery import last_whole
from hpc_train.engine.run_context import Result, RunContext, Training
from hpc_train.engine.run_plan import TrainingJob
from hpc_train.engine.step_report import TrainStep
from hpc_train.engine.strategy import ModelParts
from hpc_train.engine.train_step import make_train_step
from hpc_train.errors import UserError
from hpc_train.lazy import keras
from hpc_train.model.own_steps import has_own_train_step
from hpc_train.telemetry.reporter import StepReporter

log = logging.getLogger(__name__)


class Synchronous:
    """Gradients are averaged over all ranks that train, in each step. See engine.strategy.Strategy."""

    threads: Threads = "multiple"

    def roles(self, size: int, options: RunOptions) -> Roles:
        """Rank 0 is the chief, which trains too or is dedicated."""
        dedicated = options.chief == "dedicated"
        if dedicated and size < 2:
            raise UserError(
                "run.chief: dedicated leaves no rank to train where there is 1; start at least 2 ranks (hpc-train "
                "launch --ranks, mpirun -np), or set chief: train"
            )
        if options.mesh is not None:
            options.mesh.check_ranks(size)
        return Roles(size, dedicated=dedicated, model=options.mesh.model if options.mesh else 1)

    def least_ranks(self, options: RunOptions) -> int:
        """One, beside a dedicated chief, or those of a mesh."""
        return (options.mesh.least_ranks if options.mesh else 1) + (options.chief == "dedicated")

    def sharers(self, roles: Roles, options: RunOptions) -> int:
        """All that train, or each copy of the model."""
        return roles.readers

    def place(self, job: TrainingJob, roles: Roles, progress: DataProgress) -> DataProgress:
        """As far as the job: all ranks read in step."""
        return progress

    @contextmanager
    def prepare(self, parts: ModelParts) -> Iterator[Training]:
        """Starts Horovod, where it is the carrier, among the workers alone where the chief is dedicated. Collective."""
        from hpc_train.strategies.synchronous.dedicated import dedicated

        check = partial(check_steps, parts.model, parts.config, parts.roles.trainers, parts.loss.uneven)
        parts.world.each(lambda: [check(optimizer) for optimizer, _ in parts.state.updates.optimizers])
        if parts.roles.dedicated:
            with dedicated(parts) as training:
                yield training
        else:
            yield partial(train_together, gradient_allreduce(parts.world, parts.config, parts.roles))


def check_steps(model: keras.Model, config: RunOptions, ranks: int, uneven: bool, optimizer: Any) -> None:
    """UserError where steps cannot be made as the job asks for.

    Args:
        ranks: That train. uneven: whether they may have batches of other numbers of rows. optimizer: one that trains.
    """
    together = [layer.name for layer in model._flatten_layers() if getattr(layer, "synchronized", False)]
    if together and config.accumulate_steps > 1 and uneven:
        raise UserError(
            f"run.accumulate_steps: {together[0]} (BatchNormalization with synchronized=True) averages each piece over "
            "all ranks, but input_fn may give ranks batches of other numbers of rows, and so of pieces; give all "
            "batches the same (Dataset.batch with drop_remainder=True), or leave accumulate_steps or synchronized out"
        )
    in_parts = [variable.path for variable in model.variables if averaged_over(variable) == "alone"]
    if in_parts and config.accumulate_steps > 1 and uneven:
        raise UserError(
            f"run.accumulate_steps: ranks look up the rows of {in_parts[0]} together in each piece, but input_fn may "
            "give them batches of other numbers of rows, and so of pieces; give all batches the same (Dataset.batch "
            "with drop_remainder=True), or leave accumulate_steps out"
        )
    if config.sparse_gradients == "keras" and ranks > 1 and not in_parts:
        raise UserError(
            f"run.sparse_gradients: keras is for one rank; {ranks} train here: Keras updates the rows that a batch "
            "has, and ranks have other rows. Take dense, which gives the same on any number of ranks, or "
            "ht.parallel.ShardedEmbedding, of whose rows each has one rank, which gets the gradients of all"
        )
    held = [variable for variable in model.trainable_variables if share_of(variable) is not None]
    if held:
        refuse_uncuttable(optimizer, held, "ht.parallel", "take the layers of keras.layers")
    if has_own_train_step(model) and config.accumulate_steps > 1:
        raise UserError(
            f"run.accumulate_steps cannot be used with the train_step of {type(model).__name__}, which computes a "
            "batch at once; give its optimizers gradient_accumulation_steps instead"
        )


def gradient_allreduce(world: World, config: RunConfig, roles: Roles | None = None) -> GradientAllreduce:
    """What averages over the ranks of `world`, whose mesh `roles` say; None: each has the model. Collective."""
    carrier = carrier_of(world, config.allreduce)
    mesh = roles.mesh_of(world.rank) if roles and roles.model > 1 else None

    def start() -> GradientAllreduce:
        try:
            collectives = collectives_by(carrier, world, mesh.groups if mesh else ())
        except UndeclaredGroupsError as error:
            raise UserError(
                f"run.mesh: {error}; train jobs with other meshes in programs of their own, or set run.allreduce: mpi"
            ) from None
        return GradientAllreduce(collectives, config.compression, mesh)

    allreduce = world.each(start)
    if carrier != "horovod" and world.size > 1 and world.is_chief:
        where = ", in the memory of GPUs" if carrier == "mpi-gpu" else ""
        said = f"gradients are averaged by MPI itself, without Horovod{where} (run.allreduce)"
        log.info(said, extra={"any_rank": True})  # beside a dedicated chief, it is not the chief who says it
    return allreduce


def train_together(allreduce: GradientAllreduce, context: RunContext) -> Result:
    """All ranks train to the end, save, evaluate and export together. Collective."""
    world, chief = context.world, context.chief
    lifecycle = Lifecycle(context, world, context.state, context.input.current, groups=allreduce.groups)

    def go_back(step: int) -> int:
        going_back = partial(context.watchdog.at, "going back to the last checkpoint", step)
        going_back()
        lifecycle.checkpointing.wait(step, halt=False)
        first_step = world.broadcast(world.each(lambda: last_whole(context, chief, going_back) if chief else 0))
        restored = context.restorer.restore(world, first_step)
        lifecycle.went_back(first_step, context.input.reopen(world, first_step), restored)
        return first_step

    if context.config.on_nan == "rollback" and context.plan.restored_step is None:
        lifecycle.checkpointing.save(0, context.input.current)
    lifecycle.events.begin()
    lifecycle.catch_up()
    reporter = chief.reporter if chief else None
    outcome = train_through(context, world, allreduce, lifecycle, reporter, go_back)
    if outcome.end == "signal":
        lifecycle.stop(outcome.step)
    return lifecycle.finish(outcome)


def train_through(
    context: RunContext,
    world: World,
    allreduce: GradientAllreduce,
    control: RunControl,
    reporter: StepReporter | None,
    go_back: Callable[[int], int],
) -> Outcome:
    """Trains until the end, going back where the numbers have to. Collective over `world`, the ranks that train.

    Args:
        go_back: Takes all of them, and their data, back to the last checkpoint; returns its step.
    """
    loop = TrainingLoop(context, world, _train_step(context, allreduce), control, reporter)
    outcome = loop.run(context.plan.first_step)
    while outcome.end == "rollback":
        outcome = loop.run(go_back(outcome.step))
    return outcome


def _train_step(context: RunContext, allreduce: GradientAllreduce) -> TrainStep:
    """The step of Keras's own train_step, or around one that the model has instead."""
    config, model, state = context.config, context.model, context.state
    undo = config.on_nan != "halt"
    if has_own_train_step(model):
        return make_own_train_step(model, state, allreduce, undo, context.loss)
    return make_train_step(
        model,
        allreduce,
        state.carried,
        undo,
        config.accumulate_steps,
        context.loss,
        rows_apart=config.sparse_gradients == "keras",
        sharded=state.updates.pieces[0] if state.updates.pieces else None,
    )
