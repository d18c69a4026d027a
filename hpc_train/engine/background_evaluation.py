"""Evaluation of snapshots in a thread, for a chief that does something else meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.manifest import DamagedError
from hpc_train.engine.checkpointing import Checkpointing
from hpc_train.engine.lifecycle import Lifecycle, missed_evaluations
from hpc_train.engine.run_context import ChiefServices, RunContext
from hpc_train.evaluation.runner import EvaluationResult

log = logging.getLogger(__name__)

POLL_SECS = 0.5
MANY_QUEUED = 10
"""Checkpoints that wait for their evaluation, above which that is worth a line."""
DROP_SECS = 30.0
"""How long a batch of an evaluation that is dropped may take."""


_left_behind: list[Future[list[EvaluationResult]]] = []


def hangs() -> bool:
    """Whether an evaluation that was dropped goes on in this process, in a batch that does not end. Local."""
    return any(not evaluation.done() for evaluation in _left_behind)


class _DroppedError(Exception):
    """Nobody wants the result."""


class _UnreadableError(Exception):
    """A checkpoint was there, and cannot be read."""


class SnapshotSource(Protocol):
    """The newest snapshot, which somebody else is going to overwrite."""

    def borrow(self, step: int) -> Snapshot | None:
        """The snapshot, where it is that of `step`; it stays until `give_back`."""

    def give_back(self) -> None:
        """It is needed no more. Any thread may call this."""


class LastSnapshot:
    """The snapshot that `checkpointing` took last, in a process that takes the next one itself. See SnapshotSource."""

    def __init__(self, checkpointing: Checkpointing) -> None:
        self._checkpointing, self._free = checkpointing, threading.Event()
        self._free.set()

    def borrow(self, step: int) -> Snapshot | None:
        snapshot = self._checkpointing.snapshot
        if snapshot is None or snapshot.step != step:
            return None
        self._free.clear()
        return snapshot

    def give_back(self) -> None:
        self._free.set()

    def wait_until_free(self) -> None:
        """To be called before the next snapshot is taken."""
        self._free.wait()


class BackgroundEvaluation:
    """Evaluates and exports checkpoints in a thread, which makes no MPI calls. One at a time.

    A context manager: leaving it drops an evaluation that goes on, at its next batch.
    """

    def __init__(self, context: RunContext, chief: ChiefServices, lifecycle: Lifecycle, source: SnapshotSource) -> None:
        self._context, self._saver = context, chief.saver
        self._lifecycle, self._source = lifecycle, source
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hpc_train-evaluation")
        self._pending: Future[list[EvaluationResult]] | None = None
        self._now: int | None = None
        self._moves, self._dropped, self._warned_of_many = 0, False, False
        self._queue_missed()
        context.manager.wanted = self._wanted

    def _queue_missed(self) -> None:
        """Checkpoints of earlier runs that an evaluation of every checkpoint has not come to."""
        run = self._context.plan
        newest = run.first_step - run.is_over  # the last one of all is evaluated in the end
        there = [step for step in self._context.manager.steps() if 0 < step <= newest]
        for number, step in missed_evaluations(self._context, there):
            self._lifecycle.schedule.queue(number, step)

    def _wanted(self) -> set[int]:
        """Checkpoints that an evaluation is still to come to, or is reading."""
        return {*self._lifecycle.schedule.queued, *([] if self._now is None else [self._now])}

    def __enter__(self) -> BackgroundEvaluation:
        return self

    def __exit__(self, *_: object) -> None:
        self._dropped = True
        if self._pending is not None:
            late = wait([self._pending], DROP_SECS).not_done
            _left_behind.extend(late)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._context.manager.wanted = tuple

    def look(self, step: int) -> None:
        """Passes on what has been saved and evaluated, and begins the next evaluation; the rules may end training.

        To be called now and then; `step`: where training is.
        """
        if self._lifecycle.log is not None:
            self._lifecycle.log.committed()
        if self._pending is not None and self._pending.done():
            self._collect(step)
        if self._pending is None:
            self._begin_next()
        elif not self._warned_of_many and len(self._lifecycle.schedule.queued) > MANY_QUEUED:
            self._warned_of_many = True
            queued = len(self._lifecycle.schedule.queued)
            log.warning(
                f"{queued} checkpoints wait for their evaluation (eval_every_checkpoint), "
                "and stay on the disk until then; save less often, or evaluate less"
            )
        self._lifecycle.look_at_rules(step + 1)

    def _begin_next(self) -> bool:
        self._drop_what_is_gone()
        due = self._lifecycle.schedule.due(time.monotonic(), self._is_there)
        if due is None:
            return False
        self._now = due.checkpoint.step
        log.debug(f"evaluating the checkpoint of step {self._now}")
        snapshot = self._source.borrow(self._now)
        self._pending = self._pool.submit(self._evaluate, self._now, due.numbers, snapshot)
        return True

    def _is_there(self, step: int) -> bool:
        if self._source.borrow(step) is not None:
            self._source.give_back()
            return True
        return self._context.manager.path(step).is_dir()

    def _drop_what_is_gone(self) -> None:
        """A checkpoint that could not be written, or that somebody has removed, is waited for no longer."""
        queued = self._lifecycle.schedule.queued
        if queued and not self._saver.busy:
            for step in sorted(queued):
                if not self._is_there(step):
                    self._lifecycle.schedule.leave_out(step)
                    log.warning(f"the checkpoint of step {step} is not there to be evaluated")

    def _evaluate(self, step: int, numbers: tuple[int, ...], snapshot: Snapshot | None) -> list[EvaluationResult]:
        try:
            loaded = snapshot if snapshot is not None else self._load(step)
            taken = loaded.time
            self._context.state.assign(loaded)
            del loaded
        finally:
            if snapshot is not None:
                self._source.give_back()
        return list(self._lifecycle.runner.evaluate(step, taken, numbers, self._move))

    def _load(self, step: int) -> Snapshot:
        try:
            return self._context.manager.load(step)
        except (OSError, DamagedError) as error:
            text = f"the checkpoint of step {step} cannot be read, and is not evaluated: {error}"
            raise _UnreadableError(text) from None

    def _move(self) -> None:
        self._moves += 1
        if self._dropped:
            raise _DroppedError

    def _collect(self, step: int) -> None:
        assert self._pending is not None
        pending, self._pending = self._pending, None
        try:
            for result in pending.result():
                self._lifecycle.evaluated(result, step)
        except _UnreadableError as error:
            log.warning(str(error))
        finally:
            self._now = None

    def finish(self, step: int, moved: Callable[[], None]) -> None:
        """Waits for what is to be evaluated yet, but for the last checkpoint, that of `step`; `moved` is called."""
        self._lifecycle.schedule.leave_out(step)
        while self._pending is not None or (self._lifecycle.schedule.queued and self._begin_next()):
            seen = -1
            while self._pending is not None and not self._pending.done():
                if self._moves != seen:
                    seen = self._moves
                    moved()
                wait([self._pending], POLL_SECS)
            self._collect(step)
