"""Evaluation beside other work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Protocol

from hpc_train.checkpoint.format import Snapshot
from hpc_train.estimator.assessing import Assessment
from hpc_train.estimator.early_stopping import evaluations_in
from hpc_train.estimator.run import Run
from hpc_train.estimator.saving import Saving
from hpc_train.estimator.session import Session

POLL_SECS = 0.5
DROP_SECS = 30.0
"""How long a batch of an evaluation that is dropped may take."""


class _DroppedError(Exception):
    """Nobody wants the result."""


class Memory(Protocol):
    """The newest snapshot, which somebody else is going to overwrite."""

    def borrow(self, step: int) -> Snapshot | None:
        """The snapshot, where it is that of `step`; it stays until `give_back`."""
        ...

    def give_back(self) -> None:
        """It is needed no more. Any thread may call this."""
        ...


class Newest:
    """The snapshot that `saving` took last, in a process that takes the next one itself."""

    def __init__(self, saving: Saving) -> None:
        self._saving, self._free = saving, threading.Event()
        self._free.set()

    def borrow(self, step: int) -> Snapshot | None:
        """See Memory."""
        snapshot = self._saving.snapshot
        if snapshot is None or snapshot.step != step:
            return None
        self._free.clear()
        return snapshot

    def give_back(self) -> None:
        """See Memory."""
        self._free.set()

    def wait_until_free(self) -> None:
        """To be called before the next snapshot is taken."""
        self._free.wait()


class Evaluating:
    """Evaluates and exports checkpoints in a thread, which makes no MPI calls. One at a time, as `run.plan` says.

    A context manager: leaving it drops an evaluation that goes on, at its next batch.
    """

    def __init__(self, session: Session, run: Run, memory: Memory) -> None:
        self._s, self._run, self._memory = session, run, memory
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hpc_train-evaluation")
        self._pending: Future[list[Assessment]] | None = None
        self._kept: dict[int, ExitStack] = {}
        self._moves, self._dropped = 0, False
        self._queue_missed()

    def _queue_missed(self) -> None:
        """Checkpoints of earlier runs that an evaluation of every checkpoint has not come to."""
        s = self._s
        known = evaluations_in(s.job_dir, s.first_step)
        for number, spec in enumerate(s.eval_specs):
            for step in s.manager.steps() if spec.eval_every_checkpoint else []:
                newest = s.first_step - s.is_over  # the last one of all is evaluated in the end
                if 0 < step <= newest and step not in known.get(spec.kind, {}):
                    self._run.plan.queue(number, step)
                    self.committed(step)

    def __enter__(self) -> Evaluating:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._dropped = True
        if self._pending is not None:
            wait([self._pending], DROP_SECS)
        self._pool.shutdown(wait=False, cancel_futures=True)
        for kept in self._kept.values():
            kept.close()

    def committed(self, step: int) -> None:
        """The checkpoint of `step` is on the disk: it stays as long as an evaluation is to come to it."""
        if step in self._run.plan.queued and step not in self._kept:
            kept = ExitStack()
            with suppress(FileNotFoundError):
                kept.enter_context(self._s.manager.reading(step))
                self._kept[step] = kept

    def look(self, step: int) -> None:
        """Tells of an evaluation that has ended, and begins the next. `step`: where training is."""
        if self._pending is not None and self._pending.done():
            self._tell(step)
        if self._pending is None:
            self._begin_next()

    def _begin_next(self) -> bool:
        due = self._run.plan.due(time.monotonic(), self._is_there)
        if due is None:
            return False
        step, numbers = due
        snapshot = self._memory.borrow(step)
        self._pending = self._pool.submit(self._assess, step, numbers, snapshot)
        return True

    def _is_there(self, step: int) -> bool:
        if self._memory.borrow(step) is not None:
            self._memory.give_back()
            return True
        return self._s.manager.path(step).is_dir()

    def _assess(self, step: int, numbers: tuple[int, ...], snapshot: Snapshot | None) -> list[Assessment]:
        try:
            loaded = snapshot if snapshot is not None else self._s.manager.load(step)
            taken = loaded.time
            self._s.state.assign(loaded)
            del loaded
        finally:
            if snapshot is not None:
                self._memory.give_back()
        return list(self._run.assessor.assess(step, taken, numbers, self._move))

    def _move(self) -> None:
        self._moves += 1
        if self._dropped:
            raise _DroppedError

    def _tell(self, step: int) -> None:
        assert self._pending is not None
        pending, self._pending = self._pending, None
        try:
            assessments = pending.result()
        except FileNotFoundError as error:
            self._s.notes.say(f"warning: a checkpoint is gone before its evaluation: {error}")
            assessments = []
        for assessment in assessments:
            self._run.tell(assessment, step)
        for old in set(self._kept) - self._run.plan.queued:
            self._kept.pop(old).close()

    def finish(self, step: int, moved: Callable[[], None]) -> None:
        """Waits for what is to be evaluated yet, but for the last checkpoint, that of `step`; `moved` is called."""
        self._run.plan.leave_out(step)
        while self._pending is not None or (self._run.plan.queued and self._begin_next()):
            seen = -1
            while self._pending is not None and not self._pending.done():
                if self._moves != seen:
                    seen = self._moves
                    moved()
                wait([self._pending], POLL_SECS)
            self._tell(step)
