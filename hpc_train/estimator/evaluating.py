"""Evaluation beside other work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType

from hpc_train.checkpoint.format import Snapshot
from hpc_train.estimator.evaluation import Evaluator
from hpc_train.estimator.state import ModelState

POLL_SECS = 0.5
DROP_SECS = 30.0
"""How long a batch of an evaluation that is dropped may take."""


class _DroppedError(Exception):
    """Nobody wants the result."""


class Evaluating:
    """Evaluates snapshots in a thread, which makes no MPI calls, while this process serves. One at a time.

    A context manager: leaving it drops an evaluation that goes on, at its next batch.
    """

    def __init__(self, state: ModelState, evaluator: Evaluator) -> None:
        self._state, self._evaluator = state, evaluator
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hpc_train-evaluation")
        self._pending: tuple[int, Future[dict[str, float]]] | None = None
        self._copied = threading.Event()
        self._copied.set()
        self._moves, self._dropped = 0, False

    def __enter__(self) -> Evaluating:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._dropped = True
        if self._pending is not None:
            wait([self._pending[1]], DROP_SECS)
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def busy(self) -> bool:
        """Whether an evaluation has been begun and not been taken."""
        return self._pending is not None

    def begin(self, step: int, snapshot: Snapshot) -> None:
        """Begins to evaluate `snapshot`, whose arrays must stay as they are until `wait_until_copied` has returned."""
        self._copied.clear()
        self._pending = step, self._pool.submit(self._evaluate, snapshot)

    def _evaluate(self, snapshot: Snapshot) -> dict[str, float]:
        try:
            self._state.assign(snapshot)
        finally:
            self._copied.set()
        return self._evaluator.evaluate(self._move)

    def _move(self) -> None:
        self._moves += 1
        if self._dropped:
            raise _DroppedError

    def wait_until_copied(self) -> None:
        """Waits until the snapshot is needed no more."""
        self._copied.wait()

    def wait(self, moved: Callable[[], None]) -> tuple[int, dict[str, float]] | None:
        """Waits for the evaluation that goes on, if any, then as `take`; `moved` is called as long as it does."""
        seen = -1
        while self._pending is not None and not self._pending[1].done():
            if self._moves != seen:
                seen = self._moves
                moved()
            wait([self._pending[1]], POLL_SECS)
        return self.take()

    def take(self) -> tuple[int, dict[str, float]] | None:
        """The step and the metrics of an evaluation that has ended; None where none has. Raises what it raised."""
        if self._pending is None or not self._pending[1].done():
            return None
        (step, future), self._pending = self._pending, None
        return step, future.result()
