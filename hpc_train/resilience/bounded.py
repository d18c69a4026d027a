"""Calls that may hang for ever, given up after a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
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
        done: list[T] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                done.append(action())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, name="hpc_train-watchdog-files", daemon=True)
        thread.start()
        thread.join(self.limit_secs)
        self._hanging = thread if thread.is_alive() else None
        if failed:
            raise failed[0]
        if not done:
            raise TimeoutError
        return done[0]
