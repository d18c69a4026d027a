"""A dedicated chief: the others train, and send it their state; it saves, evaluates and exports meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from hpc_train.distributed.allreduce import GradientAllreduce
from hpc_train.distributed.channel import Channel
from hpc_train.distributed.world import World
from hpc_train.engine.run_context import Result, RunContext, Training
from hpc_train.engine.strategy import ModelParts
from hpc_train.errors import UserError
from hpc_train.model.model_state import ModelState
from hpc_train.outcome import STOP_CODES
from hpc_train.resilience.signals import JobStopped
from hpc_train.strategies.synchronous.dedicated_chief import DedicatedChief
from hpc_train.strategies.synchronous.dedicated_worker import DedicatedWorker, Lead
from hpc_train.strategies.synchronous.remote_state import RemoteState
from hpc_train.strategies.synchronous.strategy import gradient_allreduce

LEAD = 1
"""The worker that exchanges messages with the chief, and whose state is saved."""


def _serve(channel: Channel, state: RemoteState, context: RunContext) -> Result:
    """What the chief does, which takes no steps: serves the workers to their end, evaluates and exports. Collective.

    Args:
        channel: To the lead. state: what is received through it.
    """
    assert context.chief is not None, "rank 0 is the chief"
    chief = DedicatedChief(context, context.chief, channel, state)
    stopped = chief.serve()
    return _end(context, stopped, chief.finish() if stopped is None else None)


def _train(workers: World, allreduce: GradientAllreduce, channel: Channel | None, context: RunContext) -> Result:
    """What the others do: they train to the end, and wait for the chief. Collective.

    Args:
        workers: The ranks that train; `allreduce` averages over them. channel: the lead's, to the chief.
    """
    DedicatedWorker(context, workers, allreduce, Lead(context, channel) if channel else None).train()
    return _end(context, None, None)


def _end(context: RunContext, stopped: str | None, result: Result | None) -> Result:
    """What the chief has come to, on all ranks; JobStopped where a signal has ended training. Collective."""
    context.watchdog.at("waiting for the chief (last evaluation, exports)", None)
    context.world.wait_asleep()
    if (name := context.world.broadcast(stopped)) is not None:
        raise JobStopped(STOP_CODES[name])
    found = context.world.broadcast(result)
    assert found is not None, "the chief has finished"
    return found


def _refuse_parts(state: ModelState) -> None:
    """UserError where no worker has the whole state."""
    if name := next(iter(state.divided), None):
        raise UserError(
            f"run.chief: dedicated is sent the state of one worker, but ranks hold parts of {len(state.divided):,} "
            f"variables (first {name}); set chief: train, whose checkpoints are written in a thread, too"
        )


@contextmanager
def dedicated(parts: ModelParts) -> Iterator[Training]:
    """Splits the ranks that train from the chief, and opens a channel from the first of them to it. Collective."""
    world, roles, state = parts.world, parts.roles, parts.state
    world.each(lambda: _refuse_parts(state))
    world.each(lambda: world.check_threads("run.chief: dedicated"))
    workers = world.part(roles.idle)
    if workers is None:
        remote = RemoteState(state, roles.readers)
        channel = Channel(world, LEAD, remote.room)
        world.each(lambda: None)  # the workers start Horovod
        with channel:
            yield partial(_serve, channel, remote)
        return
    channel = Channel(world, 0)
    allreduce = world.each(lambda: gradient_allreduce(workers, parts.config))
    state.world = workers
    if world.rank > LEAD:
        yield partial(_train, workers, allreduce, None)
        return
    with channel:
        yield partial(_train, workers, allreduce, channel)
