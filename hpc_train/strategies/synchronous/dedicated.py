"""A dedicated chief: the others train, and send it their state; it saves, evaluates and exports meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpc_train.distributed.allreduce import GradientAllreduce
from hpc_train.distributed.channel import Channel
from hpc_train.distributed.world import World
from hpc_train.engine.run_context import Result, RunContext, Training
from hpc_train.engine.strategy import ModelParts
from hpc_train.outcome import STOP_CODES
from hpc_train.resilience.signals import JobStopped
from hpc_train.strategies.synchronous.dedicated_chief import DedicatedChief
from hpc_train.strategies.synchronous.dedicated_worker import DedicatedWorker, LeadWorker
from hpc_train.strategies.synchronous.remote_state import RemoteState
from hpc_train.strategies.synchronous.strategy import gradient_allreduce

LEAD = 1
"""The worker that exchanges messages with the chief, and whose state is saved."""

FinalResult = tuple[dict[str, float], list[str]]


class _ChiefSide:
    """What the chief does: it takes no steps.

    Args:
        channel: To the lead. state: what is received through it.
    """

    def __init__(self, channel: Channel, state: RemoteState) -> None:
        self._channel, self._state = channel, state

    def run(self, context: RunContext) -> Result:
        """Serves until the workers have ended, then evaluates and exports. Collective."""
        assert context.chief is not None, "rank 0 is the chief"
        chief = DedicatedChief(context, context.chief, self._channel, self._state)
        stopped = chief.serve()
        result: FinalResult | None = None
        if stopped is None:
            metrics, exports = chief.finish()
            result = metrics, [str(path) for path in exports]
        return _end(context, stopped, result)


class _WorkerSide:
    """What the others do: they train.

    Args:
        workers: The ranks that train; `allreduce` averages over them. channel: the lead's, to the chief.
    """

    def __init__(self, workers: World, allreduce: GradientAllreduce, channel: Channel | None) -> None:
        self._workers, self._allreduce, self._channel = workers, allreduce, channel

    def run(self, context: RunContext) -> Result:
        """Trains to the end, and waits for the chief. Collective."""
        if self._channel is None:
            DedicatedWorker(context, self._workers, self._allreduce).train()
        else:
            LeadWorker(context, self._workers, self._allreduce, self._channel).train()
        return _end(context, None, None)


def _end(context: RunContext, stopped: str | None, result: FinalResult | None) -> Result:
    """What the chief has come to, on all ranks; JobStopped where a signal has ended training. Collective."""
    context.watchdog.at("waiting for the chief (last evaluation, exports)", None)
    context.world.wait_asleep()
    if (name := context.world.broadcast(stopped)) is not None:
        raise JobStopped(STOP_CODES[name])
    found = context.world.broadcast(result)
    assert found is not None, "the chief has finished"
    return found[0], [Path(path) for path in found[1]]


@contextmanager
def dedicated(parts: ModelParts) -> Iterator[Training]:
    """Splits the ranks that train from the chief, and opens a channel from the first of them to it. Collective."""
    world, roles, state = parts.world, parts.roles, parts.state
    world.each(lambda: world.check_threads("run.chief: dedicated"))
    workers = world.part(roles.idle)
    if workers is None:
        remote = RemoteState(state, roles.readers)
        channel = Channel(world, LEAD, remote.room)
        world.each(lambda: None)  # the workers start Horovod
        with channel:
            try:
                yield _ChiefSide(channel, remote)
            finally:
                remote.close()
        return
    channel = Channel(world, 0)
    allreduce = world.each(lambda: gradient_allreduce(workers, parts.config))
    state.world = workers
    if world.rank > LEAD:
        yield _WorkerSide(workers, allreduce, None)
        return
    with channel:
        yield _WorkerSide(workers, allreduce, channel)
