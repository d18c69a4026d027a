"""Asynchronous training: parameter servers and workers, each in its own time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hpc_train.config.specs import RunConfig
from hpc_train.data.loading.tf_dataset import OpenInput
from hpc_train.distributed.optimizer_variables import OptimizerVariables, refuse_loss_scale, refuse_uncuttable
from hpc_train.distributed.parameter_server.open_window import opened_window
from hpc_train.distributed.parameter_server.optimizer_shard import KerasPart
from hpc_train.distributed.parameter_server.partition import Partition, VariableSpec, partition
from hpc_train.distributed.parameter_server.server import Server
from hpc_train.distributed.parameter_server.window import Window
from hpc_train.distributed.parameter_server.window_layout import ServerLayout, places, server_layout
from hpc_train.distributed.parameter_server.worker import Worker
from hpc_train.distributed.roles import Roles
from hpc_train.distributed.tensors import dtype_of, nbytes_of, on_host
from hpc_train.distributed.world import World
from hpc_train.engine.lifecycle import Result, first_signal
from hpc_train.engine.run_context import Session
from hpc_train.errors import UserError
from hpc_train.model.model_state import ModelState
from hpc_train.outcome import STOP_CODES
from hpc_train.resilience.signals import JobStopped
from hpc_train.strategies.asynchronous.chief import Chief
from hpc_train.strategies.asynchronous.gradient_step import GradientStep
from hpc_train.strategies.asynchronous.remote_state import ServedState
from hpc_train.strategies.asynchronous.server import serve_beside
from hpc_train.strategies.asynchronous.worker import Bound, work

if TYPE_CHECKING:
    import keras

T = TypeVar("T")


@dataclass(frozen=True)
class AsyncTraining:
    """What has been prepared, seen from one rank: a server has `part`, a worker `step`.

    Attributes:
        carried: Variables that workers send along with gradients.
        optimizer: The variables of the model's optimizer, as a checkpoint has them.
    """

    roles: Roles
    partition: Partition
    layouts: Sequence[ServerLayout]
    window: Window
    carried: Sequence[Any]
    optimizer: OptimizerVariables
    part: KerasPart | None
    step: GradientStep | None

    def run(self, session: Session) -> Result:
        """Trains to the end, evaluates and exports. Collective."""
        s, world = session, session.world
        step: int | None = None
        chief: Chief | None = None
        if self.part is None:
            self._work(s)
        else:
            server = self._server(s, self.part)
            self.window.barrier()
            if world.is_chief:
                state = ServedState(
                    s.state,
                    self.part,
                    server,
                    self.window,
                    self.layouts,
                    self.partition,
                    self.optimizer,
                    self.carried,
                    s.model,
                    lambda phase: s.watchdog.at(phase, None),
                )
                chief = Chief(s, server, state, self.roles, self.part)
                step = chief.train()
            else:
                serve_beside(server, self.window, self.layouts[0], s)
        s.watchdog.at("waiting for the others (end of training)", None)
        self.window.barrier()
        received = world.all_gather(s.signals.received)
        if world.broadcast(chief.cut_short if chief else None) and any(received):
            name = first_signal(received)
            self._alone(world, lambda: chief.run.save_for(name, step) if chief and step is not None else None)
            raise JobStopped(STOP_CODES[name])
        reasons = world.all_gather(s.hooks.stop_requested)

        def finish() -> tuple[dict[str, float], list[str]] | None:
            if chief is None:
                return None
            metrics, exports = chief.finish(reasons)
            return metrics, [str(path) for path in exports]

        result = self._alone(world, finish)
        assert result is not None
        metrics, exports = result
        return metrics, [Path(path) for path in exports]

    def _alone(self, world: World, action: Callable[[], T]) -> T:
        """What `action` gives on the chief, for which the others wait asleep. Collective."""
        if not world.is_chief:
            self.window.barrier()
            return world.on_chief(action)

        def act() -> T:
            try:
                return action()
            finally:
                self.window.barrier()

        return world.on_chief(act)

    def _server(self, s: Session, part: KerasPart) -> Server:
        config, rank = s.config, s.world.rank
        nbytes = carried_places(self.carried)[1] if rank == 0 else 0
        return Server(
            self.window,
            self.layouts[rank],
            self.partition,
            rank,
            part,
            nbytes,
            config.max_staleness,
            config.scale_lr_by_staleness,
        )

    def _work(self, s: Session) -> None:
        assert self.step is not None
        worker = Worker(self.window, self.layouts, self.partition, self.roles.part_of(s.world.rank))
        self.window.barrier()
        bound = Bound(s.model.trainable_variables, self.partition, worker.arena, self.step.only_reads)
        work(s, self.roles, worker, bound, self.step, self.carried)


def carried_places(carried: Sequence[Any]) -> tuple[list[int], int]:
    """Where each of the carried variables lies in a mailbox, and the bytes that they take together."""
    return places([nbytes_of(variable) for variable in carried])


@contextmanager
def prepared(
    world: World,
    roles: Roles,
    config: RunConfig,
    build_again: Callable[[], keras.Model],
    model: keras.Model,
    optimizer: OptimizerVariables,
    state: ModelState,
    data: OpenInput,
) -> Iterator[AsyncTraining]:
    """Divides the parameters among the servers, and opens their window. Collective.

    Args:
        build_again: Makes another model like `model`: the servers train one, and the chief evaluates the other.

    Raises:
        UserError: The optimizer or this MPI cannot do it.
    """
    serves, mean = roles.serves(world.rank), config.max_staleness == 0
    world.each(lambda: _check_optimizer(model.optimizer, config))
    step = world.each(
        lambda: (
            None
            if serves
            else GradientStep(model, data.dataset.element_spec, state.not_trained, not mean, config.accumulate_steps)
        )
    )
    traced = {"kinds": step.kinds, "changed": step.changed} if step else None
    told: dict[str, Any] = world.all_gather(traced)[roles.servers] or {}  # of the first worker
    kinds, changed = told["kinds"], told["changed"]
    variables = [
        VariableSpec(tuple(v.shape), dtype_of(v), kind == "rows", v.constraint is not None)
        for v, kind in zip(model.trainable_variables, kinds, strict=True)
    ]
    plan = partition(variables, roles.servers)
    world.each(lambda: _check_parts(plan, roles, model) if world.is_chief else None)
    carried = [state.not_trained[number] for number in changed]
    pushed = [kind != "none" for kind in kinds]

    def make_part() -> KerasPart | None:
        if not serves:
            return None
        with on_host():
            another = build_again()
        known = {id(variable) for variable in model.variables}
        if another.optimizer.built or any(id(variable) in known for variable in another.variables):
            raise UserError(
                "model_fn returned the same variables or optimizer twice; with strategy: async it must make a new "
                "model, with new layers and a new optimizer, each time it is called"
            )
        part = KerasPart(
            another.trainable_variables, another.optimizer, plan, world.rank, pushed, mean, config.scale_lr_by_staleness
        )
        if [tuple(v.shape) for v in part.optimizer_variables.common] != [tuple(v.shape) for v in optimizer.common]:
            raise UserError(
                f"run.parameter_servers: {type(model.optimizer).__name__} keeps variables that are not shaped like the "
                "model's, and cannot be divided among several servers; set parameter_servers: 1, or take another one"
            )
        part.load(model.trainable_variables, optimizer)
        return part

    part = world.each(make_part)
    state_nbytes = world.all_gather(part.state_nbytes if part else 0)
    carried_nbytes = carried_places(carried)[1]
    layouts = [
        server_layout(plan, server, roles.readers, carried_nbytes, state_nbytes[server])
        for server in range(roles.servers)
    ]
    with opened_window(world, roles, layouts) as window:
        yield AsyncTraining(roles, plan, layouts, window, carried, optimizer, part, step)


def _check_optimizer(optimizer: keras.optimizers.Optimizer, config: RunConfig) -> None:
    refuse_loss_scale(optimizer)
    if config.max_staleness == 0 and config.parameter_servers > 1 and (optimizer.clipnorm or optimizer.global_clipnorm):
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
        refuse_uncuttable(model.optimizer, [model.trainable_variables[number].path for number in plan.cut_variables])
