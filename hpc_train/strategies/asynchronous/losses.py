"""Workers that are lost while the job goes on: found, reported, and forgotten by the servers. For the chief."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_train.config.run_config import RunConfig
from hpc_train.distributed.parameter_server.lost_workers import Deals, LostWorkers
from hpc_train.distributed.parameter_server.server import Server
from hpc_train.distributed.world import mpi_library
from hpc_train.engine.run_context import Result, RunContext
from hpc_train.errors import JobEndedError, UserError
from hpc_train.jobdir.paths import LOGS
from hpc_train.outcome import EXIT_FAILED, STOP_CODES
from hpc_train.resilience.guard import ALLOWED, is_guarded
from hpc_train.resilience.lost_ranks import PREFIX, LostRank, LostRanks, forget_left, gone_ranks, measured_by, note_left
from hpc_train.resilience.signals import JobStopped
from hpc_train.strategies.asynchronous.parts import AsyncParts
from hpc_train.telemetry.reporter import by_rank

if TYPE_CHECKING:
    from hpc_train.strategies.asynchronous.chief import AsyncChief

log = logging.getLogger(__name__)

GUARDED_BY = "Open MPI v4."
"""How an MPI calls itself whose mpirun a guard can hide a lost rank from."""


def losses_of(context: RunContext) -> Path:
    """The folder in which guards note lost ranks of this run."""
    return context.job_dir / LOGS / f"{PREFIX}{context.plan.run_id}"


def check_guard(config: RunConfig) -> None:
    """UserError where `run.on_lost_worker: continue` cannot be done. Local."""
    if config.on_lost_worker != "continue":
        return
    if not (library := mpi_library()).startswith(GUARDED_BY):
        raise UserError(
            "run.on_lost_worker: continue needs Open MPI 4, whose mpirun can be kept from ending all ranks with one; "
            f"this is {library.split(',')[0]}: load Open MPI 4, or take `end`, and have the job start again (hpc-train "
            "launch --max-restarts)"
        )
    if not is_guarded():
        raise UserError(
            "run.on_lost_worker: continue is for hpc-train launch and submit and slurm/train.sh, where a guard of each "
            f"rank keeps mpirun from ending all; for mpirun and hpc-train train, set {ALLOWED}=1 before mpirun; in "
            "other programs, and with resources.launcher: srun, take `end`"
        )


def waits_for_the_rest(context: RunContext) -> None:
    """The watchdog blames no rank that is lost, or has left by itself, where ranks may be. Local."""
    if context.config.on_lost_worker == "continue":
        context.watchdog.gone = partial(gone_ranks, losses_of(context))


def end_apart(context: RunContext, parts: AsyncParts, chief: AsyncChief | None, step: int | None) -> Result:
    """The end of training where ranks may be lost: each leaves by itself, the chief with the code of the job. Local.

    Raises:
        JobStopped: A signal has ended training at `step`.
    """
    folder = losses_of(context)
    context.world.apart = parts.window.alone = True
    if chief is None or step is None:
        note_left(folder, context.world.rank, context.energy.taken())
        return {}, []
    received = [context.signals.received, parts.noted_signal()]
    name = next((name for name in STOP_CODES if name in received), None)
    try:
        if chief.cut_short and name is not None:
            chief.lifecycle.save_for(name, step)
            raise JobStopped(STOP_CODES[name])
        return chief.finish([context.hooks.stop_requested])
    finally:
        told = [None, *(measured_by(folder, rank) for rank in range(1, parts.roles.size))]
        if context.chief is not None:
            context.chief.reporter.note_energy(by_rank(told, 0))
        forget_left(folder)


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
        if self._server.ended_by_loss and step != self._context.plan.max_steps:
            raise JobEndedError(f"the last worker that trained is lost after step {step}", EXIT_FAILED)

    def _report(self, lost: LostRank, step: int) -> None:
        ranks = sorted(one.rank for one in self._ranks.known)
        left = len(self._server.clocks.training - {rank - self._roles.servers for rank in ranks})
        goes_on = f"the job goes on with {left} of {self._roles.readers} workers" if left else "no other worker trains"
        log.warning(
            f"rank {lost.rank} was killed by {lost.signal} after step {step}: {goes_on}; its next start has all of them"
        )
        self._reporter.status.update(state="running", lost_ranks=ranks)
        self._reporter.metrics.note("lost_rank", step, rank=lost.rank, signal=lost.signal, left=left)
