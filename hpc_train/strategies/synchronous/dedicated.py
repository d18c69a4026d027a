"""A dedicated chief: the others train, and send it their state; it saves, evaluates and exports meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpc_train.config.specs import RunConfig
from hpc_train.distributed.allreduce import GradientAllreduce
from hpc_train.distributed.channel import Channel
from hpc_train.distributed.horovod import collectives_of
from hpc_train.distributed.roles import Roles
from hpc_train.distributed.world import World
from hpc_train.engine.lifecycle import Result
from hpc_train.engine.run_context import Session
from hpc_train.model.model_state import ModelState
from hpc_train.resilience.signals import STOP_CODES, JobStopped
from hpc_train.strategies.synchronous.dedicated_chief import DedicatedChief
from hpc_train.strategies.synchronous.dedicated_worker import DedicatedWorker
from hpc_train.strategies.synchronous.remote_state import Received

LEAD = 1
"""The worker that speaks to the chief, and whose state is saved."""


class DedicatedTraining:
    """One rank of a job whose chief takes no steps.

    Args:
        workers: The ranks that train; None on the chief. allreduce: averages over them.
        channel: Between the chief and the lead. received: what the chief receives through it.
    """

    def __init__(
        self,
        workers: World | None,
        allreduce: GradientAllreduce | None,
        channel: Channel | None,
        received: Received | None,
    ) -> None:
        self._workers, self._allreduce, self._channel, self._received = workers, allreduce, channel, received

    def run(self, session: Session) -> Result:
        """Trains to the end, evaluates and exports. Collective."""
        s, world = session, session.world
        chief: DedicatedChief | None = None
        stopped: str | None = None
        if self._workers is None:
            assert self._channel is not None
            assert self._received is not None
            chief = DedicatedChief(s, self._channel, self._received)
            stopped = chief.serve()
        else:
            assert self._allreduce is not None
            DedicatedWorker(s, self._workers, self._allreduce, self._channel).train()
        result: tuple[dict[str, float], list[str]] | None = None
        if chief is not None and stopped is None:
            metrics, exports = chief.finish()
            result = metrics, [str(path) for path in exports]
        s.watchdog.at("waiting for the chief (last evaluation, exports)", None)
        world.wait_asleep()
        if (name := world.broadcast(stopped)) is not None:
            raise JobStopped(STOP_CODES[name])
        told = world.broadcast(result)
        assert told is not None
        return told[0], [Path(path) for path in told[1]]


@contextmanager
def dedicated(world: World, roles: Roles, config: RunConfig, state: ModelState) -> Iterator[DedicatedTraining]:
    """Splits the ranks that train from the chief, and opens a channel from the first of them to it. Collective."""
    world.each(lambda: world.check_threads("run.chief: dedicated"))
    workers = world.part(roles.idle)
    received = None if workers else Received(state, roles.readers)
    channel = Channel(world, 0 if workers else LEAD, received.room if received else None)

    allreduce = world.each(
        lambda: GradientAllreduce(collectives_of(workers), config.compression) if workers is not None else None
    )
    if workers is not None:
        state.world = workers
    if world.rank > LEAD:
        yield DedicatedTraining(workers, allreduce, None, None)
        return
    with channel:
        try:
            yield DedicatedTraining(workers, allreduce, channel, received)
        finally:
            if received is not None:
                received.close()
