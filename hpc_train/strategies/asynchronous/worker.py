"""The training loop of a worker in an asynchronous job."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpc_train.data.loading.feed import Feed
from hpc_train.distributed.parameter_server.clocks import may_begin
from hpc_train.distributed.parameter_server.partition import Partition
from hpc_train.distributed.parameter_server.window import Patience
from hpc_train.distributed.parameter_server.window_layout import FINISH
from hpc_train.distributed.parameter_server.worker import Prefetch, Worker
from hpc_train.distributed.roles import Roles
from hpc_train.distributed.tensors import reading, tensor_of, view_of
from hpc_train.engine.loop import rows_of
from hpc_train.engine.run_context import Session
from hpc_train.errors import UserError
from hpc_train.strategies.asynchronous.gradient_step import GradientStep
from hpc_train.telemetry.progress import Stopwatch, TimeShares


class Bound:
    """Variables that have their values in an arena, where TensorFlow lets them; else they are assigned from there.

    On a CPU, a variable that is assigned a tensor keeps the tensor's memory, and what is written there later is the
    variable's new value at once, as long as nothing else assigns to the variable or gathers from it.

    Args:
        only_reads: Whether training does no more than to read the variables.
    """

    def __init__(self, variables: Sequence[Any], partition: Partition, arena: np.ndarray, only_reads: bool) -> None:
        self._variables, self._tensors = variables, []
        for spec, offset in zip(partition.variables, partition.offsets, strict=True):
            view = arena[offset : offset + spec.nbytes].view(spec.dtype).reshape(spec.shape)
            self._tensors.append(tensor_of(view))
        self._assign()
        read = reading(variables)()
        self._at_once = only_reads and all(
            view_of(tensor).ctypes.data == view_of(given).ctypes.data
            for tensor, given in zip(read, self._tensors, strict=True)
        )

    def refresh(self) -> None:
        """The arena has new values."""
        if not self._at_once:
            self._assign()

    def _assign(self) -> None:
        for variable, tensor in zip(self._variables, self._tensors, strict=True):
            variable.assign(tensor)


def work(s: Session, roles: Roles, worker: Worker, bound: Bound, step: GradientStep, carried: Sequence[Any]) -> None:
    """Computes gradients until there are no more tickets, no more batches, or somebody asks to stop."""
    config, watchdog = s.config, s.watchdog
    mean = config.max_staleness == 0
    tickets = None if s.max_steps is None else s.max_steps - s.first_step
    if tickets is not None and mean:
        tickets *= roles.readers
    ahead = Prefetch(worker) if config.prefetch_parameters else None
    carried_now, times, exchange = reading(carried), TimeShares(), Stopwatch()
    worker.versions = worker.pull()
    s.hooks.begin()
    with Feed(s.data.dataset, lambda: s.data.failure) as batches:
        while tickets is None or tickets > 0:
            watchdog.at("waiting for input", None)
            batch = next(batches, None)
            if batch is None:
                if worker.pushed == 0 and s.first_step == 0:
                    raise UserError(f"no batch to train on for rank {s.world.rank}; give each its part")
                break
            with exchange:
                ticket = _next_ticket(s, worker)
            if ticket is None or (tickets is not None and ticket >= tickets):
                break
            if ahead is None and worker.pushed:
                watchdog.at("waiting for the servers' parameters", None)
                with exchange:
                    worker.versions = worker.pull()
            with exchange:
                bound.refresh()
            if ahead is not None:
                ahead.begin()
            number = s.first_step + ticket + 1
            watchdog.at(f"training step {number}", None)
            s.hooks.before_step(number)
            with Stopwatch() as computing:
                computed = step(batch)
            if s.delay_secs:
                time.sleep(s.delay_secs)
            watchdog.at("waiting for the servers to take a gradient", None)
            if ahead is not None:
                with exchange:
                    ahead.wait()
            rows, exchanged = rows_of(batch), exchange.take()
            times.step(rows, batches.waited_secs, computing.secs + exchanged, exchanged)
            spent = times.take_secs()
            with exchange:
                if computed.finite:
                    sent = [view_of(tensor) for tensor in carried_now()] if carried else []
                    worker.push(computed.gradients, sent, computed.loss, rows, spent)
                else:
                    worker.push_bad(computed.loss, rows, spent)
                if ahead is None:
                    worker.wait_until_taken()
                else:
                    ahead.take()
            s.hooks.after_step(number, computed.loss)
            if s.hooks.stop_requested is not None:
                worker.ask_to_stop(FINISH)
    if s.signals.received is not None:
        s.hooks.interrupted(s.first_step + worker.pushed)
    else:
        s.hooks.end(s.first_step + worker.pushed)
    watchdog.at("waiting for the servers to take the last word", None)
    worker.wait_until_taken()
    worker.leave()
    worker.wait_until_taken()


def _next_ticket(s: Session, worker: Worker) -> int | None:
    """A ticket, once no other worker is too far behind; None where somebody asks to stop."""
    asked, patience = False, Patience()
    s.watchdog.at("waiting for slower workers", None)
    while True:
        if s.signals.received is not None and not asked:
            worker.ask_to_stop()
            asked = True
        state = worker.state()
        if state.stop:
            return None
        if may_begin(worker.pushed, state.slowest, s.config.max_staleness):
            return worker.take_ticket()
        patience.wait()
