"""Clocks of functions that call each other: what each takes itself. Pure but for the clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any


class Clocks:
    """Seconds by part, without those of parts that are called from within. Of the thread that makes it, alone.

    Attributes:
        last: Seconds by part between the last two calls of `restart`.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._thread = clock, threading.get_ident()
        self._secs: dict[str, float] = {}
        self._within: list[str] = []
        self._since = clock()
        self.last: dict[str, float] = {}

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, whose time is that of `part`."""

        @wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*given, **named)
            self._turn()
            self._within.append(part)
            try:
                return function(*given, **named)
            finally:
                self._turn()
                self._within.pop()

        return call

    def restart(self) -> None:
        """From now on."""
        self._turn()
        self.last, self._secs = self._secs, {}

    def _turn(self) -> None:
        """Who has had the time so far gets it."""
        now = self._clock()
        if self._within:
            part = self._within[-1]
            self._secs[part] = self._secs.get(part, 0.0) + now - self._since
        self._since = now
