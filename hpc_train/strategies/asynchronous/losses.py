"""Workers that are lost while the job goes on: found, reported, and forgotten by the servers. For the chief."""

from __future__ import annotations

import logging
from pathlib import Path

from hpc_train.distributed.parameter_server.lost_workers import Deals, LostWorkers
from hpc_train.distributed.parameter_server.server import Server
from hpc_train.engine.run_context import RunContext
from hpc_train.errors import JobEndedError
from hpc_train.jobdir.paths import LOGS
from hpc_train.outcome import EXIT_FAILED
from hpc_train.resilience.lost_ranks import LostRank, LostRanks
from hpc_train.strategies.asynchronous.parts import AsyncParts

log = logging.getLogger(__name__)


def losses_of(context: RunContext) -> Path:
    """The folder in which guards note lost ranks of this run."""
    return context.job_dir / LOGS / f"lost-{context.plan.run_id}"


class Losses:
    """What the chief does where `run.on_lost_worker` is `continue`. Made before any worker begins."""

    def __init__(self, context: RunContext, parts: AsyncParts, server: Server) -> None:
        assert context.chief is not None, "the chief's"
        self._context, self._reporter, self._server, self._roles = context, context.chief.reporter, server, parts.roles
        self._ranks = LostRanks(losses_of(context))
        self._workers = LostWorkers(parts.window, parts.layouts)
        self._first_step, max_steps = context.plan.first_step, context.plan.max_steps
        tickets = None if max_steps is None else max(0, max_steps - self._first_step)
        self._deals = Deals(server.control, server.waits, tickets)

    def look(self, step: int) -> None:
        """Looks for lost ranks about once a second, and deals their tickets again where others wait for them."""
        for lost in self._ranks.look():
            self._report(lost, step)
            self._workers.add(lost.rank - self._roles.servers)
        self._workers.go_on()
        self._deals.deal(step - self._first_step, self._server.clocks.training)

    def end(self, step: int) -> None:
        """Training has ended at `step`: all workers have left or are lost.

        Raises:
            JobEndedError: The last one is lost, others having left before, and steps lack.
        """
        while self._workers.go_on():
            self._server.let_others_move()
        self._context.watchdog.gone |= set(range(self._roles.servers, self._roles.size))
        if self._server.ended_by_loss and step != self._context.plan.max_steps:
            raise JobEndedError(f"the last worker that trained is lost after step {step}", EXIT_FAILED)

    def _report(self, lost: LostRank, step: int) -> None:
        left = self._roles.readers - len(self._ranks.known)
        log.warning(
            f"rank {lost.rank} was killed by {lost.signal} after step {step}: the job goes on with {left} of "
            f"{self._roles.readers} workers; its next start has all of them"
        )
        self._context.watchdog.gone.add(lost.rank)
        ranks = sorted(one.rank for one in self._ranks.known)
        self._reporter.status.update(state="running", lost_ranks=ranks)
        self._reporter.metrics.note("lost_rank", step, rank=lost.rank, signal=lost.signal, left=left)
