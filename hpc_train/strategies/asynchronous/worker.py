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
from hpc_train.distributed.tensors import reader_of, tensor_of, view_of
from hpc_train.engine.loop import rows_of
from hpc_train.engine.run_context import RunContext
from hpc_train.errors import UserError
from hpc_train.strategies.asynchronous.gradient_step import GradientStep, LocalGradients
from hpc_train.strategies.asynchronous.parts import AsyncParts
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
        read = reader_of(variables)()
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


class AsyncWorker:
    """Computes gradients until there are no more tickets, no more batches, or somebody asks to stop.

    Args:
        worker: Speaks to the servers. bound: the model's variables in its memory.
    """

    def __init__(
        self, context: RunContext, parts: AsyncParts, worker: Worker, bound: Bound, step: GradientStep
    ) -> None:
        self._context, self._watchdog, self._hooks = context, context.watchdog, context.hooks
        self._worker, self._bound, self._gradients, self._carried = worker, bound, step, parts.carried
        step.exchange = worker.mean
        mean, max_steps = context.config.max_staleness == 0, context.plan.max_steps
        tickets = None if max_steps is None else max_steps - context.plan.first_step
        self._tickets = tickets * parts.roles.readers if tickets is not None and mean else tickets
        self._ahead = Prefetch(worker) if context.config.prefetch_parameters else None
        self._read_carried, self._times, self._exchange = reader_of(parts.carried), TimeShares(), Stopwatch()

    def work(self) -> None:
        """All of them; the servers have the last gradient when this returns."""
        context, worker = self._context, self._worker
        worker.versions = worker.pull()
        self._hooks.begin()
        data = context.input.current
        with Feed(data.dataset, lambda: data.failure) as batches:
            while (self._tickets is None or self._tickets > 0) and not worker.dismissed:
                self._watchdog.at("waiting for input", None)
                batch = next(batches, None)
                if batch is None:
                    if worker.pushed == 0 and context.plan.first_step == 0:
                        raise UserError(f"no batch to train on for rank {context.world.rank}; give each its part")
                    break
                with self._exchange:
                    ticket = _next_ticket(context, worker)
                if ticket is None or (self._tickets is not None and ticket >= self._tickets):
                    break
                self._step(context.plan.first_step + ticket + 1, batch, batches)
        last = context.plan.first_step + worker.pushed
        if context.signals.received is not None:
            self._hooks.interrupted(last)
        else:
            self._hooks.end(last)
        self._watchdog.at("waiting for the servers to take the last word", None)
        worker.wait_until_taken()
        worker.leave()
        worker.wait_until_taken()

    def _step(self, number: int, batch: Any, batches: Feed) -> None:
        """One gradient, from the newest parameters to its place in the servers' mailboxes."""
        self._refresh()
        self._watchdog.at(f"training step {number}", None)
        self._hooks.before_step(number)
        with Stopwatch() as computing:
            computed = self._gradients(batch)
        if self._worker.dismissed:  # nobody can complete this round
            return
        if self._context.job.step_delay_secs:
            time.sleep(self._context.job.step_delay_secs)
        self._watchdog.at("waiting for the servers to take a gradient", None)
        if self._ahead is not None:
            with self._exchange:
                self._ahead.wait()
        rows, exchanged = rows_of(batch), self._exchange.take()
        self._times.step(rows, batches.waited_secs, computing.secs + exchanged, exchanged)
        with self._exchange:
            self._push(computed, rows)
        self._hooks.after_step(number, computed.loss)
        if self._hooks.stop_requested is not None:
            self._worker.ask_to_stop(FINISH)

    def _refresh(self) -> None:
        """The variables get the newest parameters."""
        worker = self._worker
        if self._ahead is None and worker.pushed:
            self._watchdog.at("waiting for the servers' parameters", None)
            with self._exchange:
                worker.versions = worker.pull()
        with self._exchange:
            self._bound.refresh()
        if self._ahead is not None:
            self._ahead.begin()

    def _push(self, computed: LocalGradients, rows: int) -> None:
        worker, spent = self._worker, self._times.take_secs()
        if computed.finite:
            sent = [view_of(tensor) for tensor in self._read_carried()] if self._carried else []
            worker.push(computed.gradients, sent, computed.loss, rows, spent, computed.weight)
        else:
            worker.push_bad(computed.loss, rows, spent)
        if self._ahead is None:
            worker.wait_until_taken()
        else:
            self._ahead.take()


def _next_ticket(context: RunContext, worker: Worker) -> int | None:
    """A ticket, once no other worker is too far behind; None where somebody asks to stop."""
    asked, patience = False, Patience()
    context.watchdog.at("waiting for slower workers", None)
    while True:
        if context.signals.received is not None and not asked:
            worker.ask_to_stop()
            asked = True
        state = worker.state()
        if state.stop:
            return None
        if may_begin(worker.pushed, state.slowest, context.config.max_staleness):
            return worker.take_ticket()
        patience.wait()
