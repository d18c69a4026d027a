"""The training loop of a worker in an asynchronous job."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpc_train.data.loading.feed import Feed
from hpc_train.distributed.parameter_server.clocks import may_begin
from hpc_train.distributed.parameter_server.window import Patience
from hpc_train.distributed.parameter_server.window_layout import FINISH
from hpc_train.distributed.parameter_server.worker import Prefetch, Worker
from hpc_train.distributed.partition import Partition
from hpc_train.distributed.tensors import aligned_zeros, reader_of, tensor_of, view_of, writer_of
from hpc_train.engine.loop import rows_of
from hpc_train.engine.run_context import RunContext
from hpc_train.engine.steps_in_flight import Stream
from hpc_train.errors import UserError
from hpc_train.strategies.asynchronous.gradient_step import GradientStep, LocalGradients
from hpc_train.strategies.asynchronous.parts import AsyncParts
from hpc_train.telemetry.gpu_clock import GpuClock
from hpc_train.telemetry.progress import Stopwatch, TimeShares


class Bound:
    """Variables that get their values from arenas, in turn, and keep them there, where TensorFlow lets them.

    On a CPU, a variable that is assigned a tensor keeps the tensor's memory, and what is written there later is the
    variable's new value at once, as long as nothing else assigns to the variable or gathers from it. So with one arena
    nothing is assigned any more; while steps are in flight each of them needs an arena of its own.

    Args:
        arena: The first of them.
        only_reads: Whether training does no more than to read the variables.
        depth: Steps that may be in flight beside another one: so many arenas more.
    """

    def __init__(
        self, variables: Sequence[Any], partition: Partition, arena: np.ndarray, only_reads: bool, depth: int = 0
    ) -> None:
        self._write = writer_of(variables)
        arenas = [arena, *(aligned_zeros(arena.size) for _ in range(depth))]
        self._arenas = deque((each, list(_tensors_in(each, partition))) for each in arenas)
        self._write(self._arenas[0][1])
        read = reader_of(variables)()
        self._at_once = (
            depth == 0
            and only_reads
            and all(
                view_of(tensor).ctypes.data == view_of(given).ctypes.data
                for tensor, given in zip(read, self._arenas[0][1], strict=True)
            )
        )

    @property
    def arena(self) -> np.ndarray:
        """The one that no step in flight reads, and that `refresh` takes values from."""
        return self._arenas[0][0]

    def refresh(self) -> None:
        """The arena has new values, which the variables get after all steps that were dispatched before."""
        if not self._at_once:
            self._write(self._arenas[0][1])
            self._arenas.rotate(-1)


def _tensors_in(arena: np.ndarray, partition: Partition) -> Iterator[Any]:
    """The variables in an arena, as tensors that share its memory."""
    for spec, offset in zip(partition.variables, partition.offsets, strict=True):
        yield tensor_of(arena[offset : offset + spec.nbytes].view(spec.dtype).reshape(spec.shape))


@dataclass(frozen=True)
class _InFlight:
    """A gradient that was dispatched and is to be pushed.

    Attributes:
        number: Its step. rows: of its batch. versions: of the parameters that it is computed at.
        gradients: Waits for it. carried: what this worker keeps of its own, as the step leaves it.
    """

    number: int
    rows: int
    versions: list[int]
    gradients: Callable[[], LocalGradients]
    carried: list[Any]


class AsyncWorker:
    """Computes gradients until there are no more tickets, no more batches, or somebody asks to stop.

    With steps in flight, the next gradients are dispatched before one is pushed: so what lies between two gradients
    (push, update, pull) is done while the device computes. Each ticket that is drawn is pushed, in order.

    Args:
        worker: Speaks to the servers. bound: the model's variables.
        depth: Gradients that may be in flight beside the one that is pushed next.
    """

    def __init__(
        self, context: RunContext, parts: AsyncParts, worker: Worker, bound: Bound, step: GradientStep, depth: int
    ) -> None:
        self._context, self._watchdog, self._hooks = context, context.watchdog, context.hooks
        self._parts = parts
        self._worker, self._bound, self._gradients, self._depth = worker, bound, step, depth
        step.exchange = worker.mean
        mean, max_steps = context.config.max_staleness == 0, context.plan.max_steps
        tickets = None if max_steps is None else max_steps - context.plan.first_step
        self._tickets = tickets * parts.roles.readers if tickets is not None and mean else tickets
        self._ahead = Prefetch(worker) if context.config.prefetch_parameters else None
        self._read_carried: Callable[[], list[Any]] = reader_of(parts.carried, to_host=True) if parts.carried else list
        self._stream, self._in_flight = Stream(depth), deque[_InFlight]()
        self._batch: Any = None
        self._survives = context.config.on_lost_worker == "continue"
        self._ticket: int | None = None
        self._waits = False
        self._no_more, self._asked_to_stop, self._asked_to_finish = tickets == 0, False, False
        self._times, self._computing, self._exchange = TimeShares(), Stopwatch(), Stopwatch()
        self._beside, self._gpu = Stopwatch(), GpuClock()
        self._waited_secs = self._done_at = 0.0

    def work(self) -> None:
        """All of them; the servers have the last gradient when this returns."""
        context, worker = self._context, self._worker
        worker.versions = worker.pull(self._bound.arena)
        self._bound.refresh()
        self._hooks.begin()
        data = context.input.current
        with Feed(data.dataset, lambda: data.failure) as self._batches:
            while self._dispatch_what_may_fly():
                self._push_oldest()
        last = context.plan.first_step + worker.pushed
        if context.signals.received is not None:
            self._hooks.interrupted(last)
        else:
            self._hooks.end(last)
        self._watchdog.at("waiting for the servers to take the last word", None)
        worker.wait_until_taken()
        worker.leave()
        if not self._survives:  # else servers may leave as soon as they have heard of it
            worker.wait_until_taken()

    def _dispatch_what_may_fly(self) -> bool:
        """Dispatches as many gradients as may be in flight now; whether any is."""
        while len(self._in_flight) <= self._depth and not self._no_more and not self._worker.dismissed:
            if not self._has_batch():
                break
            with self._exchange:
                ticket = self._take_ticket()
            if ticket is None:
                break
            self._dispatch(self._context.plan.first_step + ticket + 1)
        return bool(self._in_flight)

    def _has_batch(self) -> bool:
        """Whether there is a batch for the next gradient, which is waited for."""
        if self._batch is None:
            self._watchdog.at("waiting for input", None)
            self._batch = next(self._batches, None)
        if self._batch is None:
            self._no_more = True
            if self._worker.pushed + len(self._in_flight) == 0 and self._context.plan.first_step == 0:
                raise UserError(f"no batch to train on for rank {self._context.world.rank}; give each its part")
        return not self._no_more

    def _take_ticket(self) -> int | None:
        """A ticket, once no other worker is too far behind; None where there are no more, or somebody asks to stop.

        None, too, where other workers are so far behind that the gradients in flight have to be pushed first.
        """
        context, worker, patience = self._context, self._worker, Patience()
        self._watchdog.at("waiting for slower workers", None)
        while True:
            if context.signals.received is not None and not self._asked_to_stop:
                self._parts.note_signal(context.signals.received)
                worker.ask_to_stop()
                self._asked_to_stop = True
            state = worker.state()
            if state.stop:
                self._no_more = True
                return None
            good = not self._survives or self._has_good_ticket(state.limit)
            if good and may_begin(worker.pushed + len(self._in_flight), state.slowest, context.config.max_staleness):
                if self._survives:
                    ticket, self._ticket = self._ticket, None
                    return ticket
                ticket = worker.take_ticket()
                self._no_more = self._tickets is not None and ticket >= self._tickets
                return None if self._no_more else ticket
            if self._in_flight:
                return None
            patience.wait()

    def _has_good_ticket(self, limit: int) -> bool:
        """Where workers may be lost: draws a ticket where this one has none, and has the chief know if it is to wait.

        A ticket at `limit` or above becomes good once another worker is lost that had one below.
        """
        if self._ticket is None:
            self._ticket = self._worker.take_ticket()
        good = self._ticket < limit
        if good and self._waits:
            self._worker.wait_with(None)
            self._waits = False
        elif not good and not self._waits and not self._in_flight:
            self._worker.wait_until_taken()
            self._worker.wait_with(self._ticket)
            self._waits = True
        return good

    def _dispatch(self, number: int) -> None:
        """Dispatches a gradient of the newest parameters."""
        batch, self._batch = self._batch, None
        self._get_parameters()
        self._watchdog.at(f"training step {number}", None)
        if not self._in_flight:
            with self._beside:
                self._hooks.before_step(number)
        with self._computing, self._stream.dispatching():
            gradients = self._gradients(batch)
            carried = self._read_carried()
        self._in_flight.append(_InFlight(number, rows_of(batch), self._worker.versions, gradients, carried))

    def _get_parameters(self) -> None:
        """The variables get the newest parameters."""
        worker = self._worker
        if self._ahead is None:
            self._watchdog.at("waiting for the servers' parameters", None)
            with self._exchange:
                worker.versions = worker.pull(self._bound.arena)
        with self._exchange, self._stream.dispatching():
            self._bound.refresh()
        if self._ahead is not None:
            self._ahead.begin()

    def _push_oldest(self) -> None:
        """Waits for the oldest gradient in flight, and puts it into the servers' mailboxes."""
        taken = self._in_flight.popleft()
        self._watchdog.at(f"training step {taken.number}", None)
        with self._computing:
            computed = taken.gradients()
        if self._worker.dismissed:  # nobody can complete this round
            return
        if self._context.job.step_delay_secs:
            time.sleep(self._context.job.step_delay_secs)
        self._watchdog.at("waiting for the servers to take a gradient", None)
        if self._ahead is not None:
            with self._exchange:
                self._ahead.wait()
        self._count(taken.rows, computed)
        with self._exchange:
            self._push(taken, computed)
        with self._beside:
            self._hooks.after_step(taken.number, computed.loss)
        if self._hooks.stop_requested is not None and not self._asked_to_finish:
            self._asked_to_finish = True
            self._worker.ask_to_stop(FINISH)
        if self._in_flight:  # whose turn it is now
            with self._beside:
                self._hooks.before_step(self._in_flight[0].number)

    def _count(self, rows: int, computed: LocalGradients) -> None:
        """Counts a gradient: what is exchanged beside one that is computed holds nothing up, and does not count."""
        computing, exchanged = self._computing.take(), self._exchange.take()
        waited, self._waited_secs = self._batches.waited_secs - self._waited_secs, self._batches.waited_secs
        gap = None
        if computed.done_at:
            begun_at = max(computed.begun_at, self._done_at)
            if self._done_at:
                gap = begun_at - self._done_at
                exchanged = min(exchanged, max(0.0, gap - waited))
            computing, self._done_at = computed.done_at - begun_at, computed.done_at
        beside = self._beside.take()
        self._times.step(rows, self._waited_secs, computing + exchanged, exchanged, gap_secs=gap, beside_secs=beside)

    def _push(self, taken: _InFlight, computed: LocalGradients) -> None:
        worker, spent = self._worker, {**self._times.take_secs(), **self._gpu.taken()}
        worker.versions = taken.versions
        if computed.finite:
            sent = [view_of(tensor) for tensor in taken.carried]
            worker.push(computed.gradients, sent, computed.loss, taken.rows, spent, computed.weight)
        else:
            worker.push_bad(computed.loss, taken.rows, spent)
        if self._ahead is None:
            worker.wait_until_taken()
        else:
            self._ahead.take()
