"""Signals that ask a job to stop: the handler sets a flag, and ranks act on it together at a step boundary."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from hpc_train import stdio
from hpc_train.outcome import EXIT_AT_ONCE, STOP_CODES

if TYPE_CHECKING:
    from hpc_train.distributed.world import World

STOP_SIGNALS = tuple(signal.Signals[name] for name in STOP_CODES)
"""Slurm's warning before a time limit (`--signal=B:USR1@120`), its preemption, and Ctrl-C."""

_JOIN_SECS = 1.0


class JobStopped(SystemExit):
    """All ranks leave together, having saved after a signal."""

    of_all_ranks = True  # see World.knows_of

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


def signal_of_any(world: World, received: str | None) -> str | None:
    """The signal that stopped the job, where a rank has received one: Slurm's warning before the others. Collective.

    It comes first since it means to go on.
    """
    return next((name for name in STOP_CODES if world.first(True if received == name else None)), None)


def leave_at_once() -> None:
    """What a second Ctrl-C does: ends this process with EXIT_AT_ONCE, saving nothing."""
    stdio.write_directly("hpc-train: interrupted twice: leaving at once, without saving")
    os._exit(EXIT_AT_ONCE)


class StopSignals:
    """While entered, STOP_SIGNALS set `received` instead of ending the process; a second Ctrl-C calls `at_once`.

    The first signal to come stays in `received`: a Ctrl-C after Slurm's warning does not change what the warning
    meant (the job is requeued), and a warning after a Ctrl-C does not requeue what somebody has stopped.

    Python runs a signal's handler once the main thread is back in Python, which a thread that sits in TensorFlow or
    MPI for ever never is. A thread of its own therefore hears of the signals as well, through a pipe
    (signal.set_wakeup_fd), and calls `at_once`.

    To be entered as early as possible: until then such a signal kills. A process that leaves because it was asked
    to (SystemExit) ignores them from there on, since Python would give them their deadly meaning back while it
    shuts down; after one Ctrl-C the next still kills. Does nothing outside the main thread, where Python allows no
    signal handlers. In a forked child SIGTERM has its former meaning, since `multiprocessing` ends its processes with
    it, and the other two are without effect: the parent acts on them.

    Args:
        at_once: Called for a second Ctrl-C, in a thread that is not the main one.

    Attributes:
        received: The name of the first signal that came ("SIGUSR1", "SIGTERM" or "SIGINT"), or None.
    """

    def __init__(self, at_once: Callable[[], None] = leave_at_once) -> None:
        self.received: str | None = None
        self._at_once = at_once
        self._interrupts = 0
        self._before: dict[int, Any] = {}
        self._pipe_before = -1
        self._pipe: tuple[int, int] | None = None
        self._listener: threading.Thread | None = None

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[1], False)
            self._listener = threading.Thread(
                target=self._listen, args=(self._pipe[0],), name="stop signals", daemon=True
            )
            self._listener.start()
            _entered.append(self)
            self._pipe_before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
            self._before = {number: signal.signal(number, self._handle) for number in STOP_SIGNALS}
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._pipe is None or self._listener is None:
            return
        signal.set_wakeup_fd(self._pipe_before)
        os.close(self._pipe[1])  # the listener ends
        self._listener.join(_JOIN_SECS)
        leaving = isinstance(error, SystemExit)
        for number, handler in self._before.items():
            if not leaving:
                signal.signal(number, handler)
            else:
                again = number == signal.SIGINT and self._interrupts > 0
                signal.signal(number, signal.SIG_DFL if again else signal.SIG_IGN)
        _entered.remove(self)
        self._before, self._pipe, self._listener = {}, None, None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = signal.Signals(number).name

    def _listen(self, pipe: int) -> None:
        """Reads the numbers of the signals that come, a byte each."""
        while numbers := os.read(pipe, 64):
            for number in numbers:
                if number in STOP_SIGNALS:
                    self._handle(number, None)
                self._interrupts += number == signal.SIGINT
                if number == signal.SIGINT and self._interrupts == 2:
                    self._at_once()
        os.close(pipe)

    def _leave_to_parent(self) -> None:
        """In a forked child: the pipe is the parent's, who would take the child's signals for its own."""
        signal.set_wakeup_fd(-1)
        if self._before:
            signal.signal(signal.SIGTERM, self._before[signal.SIGTERM])


_entered: list[StopSignals] = []


def _after_fork_in_child() -> None:
    for signals in reversed(_entered):  # the outermost last: it knows the first handler
        signals._leave_to_parent()
    _entered.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
