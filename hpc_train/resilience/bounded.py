"""Calls that may hang for ever, given up after a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class Bounded:
    """Runs what touches files in threads of their own, since a file system may hang for ever.

    Args:
        limit_secs: How long a call may take.
    """

    def __init__(self, limit_secs: float) -> None:
        self.limit_secs = limit_secs
        self._hanging: threading.Thread | None = None

    def call(self, action: Callable[[], T]) -> T:
        """`action()`, with its result or exception.

        Raises:
            TimeoutError: It takes longer than the limit, or one before it still does.
        """
        if self._hanging is not None and self._hanging.is_alive():
            raise TimeoutError
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(action())
            except BaseException as error:
                done.set_exception(error)

        self._hanging = threading.Thread(target=run, name="hpc_train-watchdog-files", daemon=True)
        self._hanging.start()
        self._hanging.join(self.limit_secs)
        if not done.done():
            raise TimeoutError
        return done.result()
