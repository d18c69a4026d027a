"""Signals that ask a job to stop: the handler sets a flag, and ranks act on it together at a step boundary."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

STOP_SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
"""Slurm's warning before a time limit (`--signal=B:USR1@120`), its preemption, and Ctrl-C."""


class StopSignals:
    """While entered, STOP_SIGNALS set `received` instead of ending the process; a second Ctrl-C does end it.

    To be entered as early as possible: until then such a signal kills. A process that leaves because it was asked
    to (SystemExit) ignores them from there on, since Python would give them their deadly meaning back while it
    shuts down. Does nothing outside the main thread, where Python allows no signal handlers.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in STOP_SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leaving = isinstance(error, SystemExit)
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if leaving else handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number).name
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
