"""Feed: takes batches out of a dataset in a thread of its own, and measures how long training waits for them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

BATCHES_HELD = 2
"""Batches taken out ahead of their use. Taking one out costs some 0.1 ms, which the training thread need not spend."""
CLOSE_SECS = 10.0


class Feed:
    """An iterator over `dataset`. A context manager: leaving it ends the thread.

    Attributes:
        waited_secs: Time that `next` has waited so far.
    """

    def __init__(self, dataset: Iterable[Any], failure: Callable[[], BaseException | None] = lambda: None) -> None:
        """Begins at once.

        Args:
            failure: What reading raised, to be raised in place of TensorFlow's report of it.
        """
        self.waited_secs = 0.0
        self._failure = failure
        self._queue: queue.Queue[tuple[bool, Any]] = queue.Queue(BATCHES_HELD)
        self._closed = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._fill, args=(dataset,), name="hpc_train-feed", daemon=True)
        self._thread.start()

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *raised: object) -> None:
        self._closed.set()
        deadline = time.monotonic() + CLOSE_SECS
        while self._thread.is_alive() and time.monotonic() < deadline:
            with suppress(queue.Empty):
                self._queue.get(timeout=0.05)

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            StopIteration: There are no more.
            Whatever reading it raised.
        """
        if self._ended:
            raise StopIteration
        start = time.perf_counter()
        is_batch, value = self._queue.get()
        self.waited_secs += time.perf_counter() - start
        if is_batch:
            return value
        self._ended = True
        raise value

    def _fill(self, dataset: Iterable[Any]) -> None:
        try:
            for batch in dataset:
                self._queue.put((True, batch))
                if self._closed.is_set():
                    return
            end: BaseException = StopIteration()
        except BaseException as error:
            end = self._failure() or error
        self._queue.put((False, end))
