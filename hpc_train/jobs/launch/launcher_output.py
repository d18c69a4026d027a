"""What a launcher writes of its own accord when a rank ends: understood, and kept away from what the ranks write."""

from __future__ import annotations

import os
import re
import select
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass

from hpc_train.outcome import signal_name

HOLD_SECS = 0.5
"""How long what may be the beginning of a notice may wait for what follows it."""

_FAILURE = re.compile(rb"rank \d+ failed:|hpc-train: error: |Traceback \(most recent call last\)")


@dataclass(frozen=True)
class RankEnd:
    """How the first rank to end did so, as far as its launcher reports it.

    `signal` is the number of the signal that killed it; `code` its exit code where it left by itself, None where the
    launcher does not say. `why`: of a signal, where that is known.
    """

    rank: int | None
    host: str | None = None
    signal: int | None = None
    code: int | None = None
    why: str | None = None

    @property
    def signal_name(self) -> str | None:
        """Such as SIGKILL."""
        if self.signal is None:
            return None
        return signal_name(128 + self.signal) or f"signal {self.signal}"

    def __str__(self) -> str:
        who = ("a rank" if self.rank is None else f"rank {self.rank}") + (f" on {self.host}" if self.host else "")
        if self.signal is not None:
            return f"{who} was killed by {self.signal_name}{f' ({self.why})' if self.why else ''}"
        return f"{who} left{f' with code {self.code}' if self.code else ''} without finishing"


class LauncherOutput(ABC):
    """A filter for a launcher's standard error: takes its notices out, and passes on at once what the ranks write.

    Attributes:
        end: How the first rank to end did so, or None.
        reported: Whether a rank has reported a failure itself.
        cannot_start: Whether it will never start the ranks, and does not end either.
    """

    def __init__(self) -> None:
        self.end: RankEnd | None = None
        self.reported = False
        self.cannot_start = False
        self._held = b""

    @property
    def holding(self) -> bool:
        """Whether something waits for what follows it."""
        return bool(self._held)

    @abstractmethod
    def feed(self, data: bytes) -> bytes:
        """What of `data`, and of what was held, is to be written now."""

    @abstractmethod
    def flush(self) -> bytes:
        """What was held, since nothing follows it."""

    def settle(self, code: int) -> int:
        """The exit code of the ranks, where the launcher has left with `code`; `end` is final from here on."""
        return code

    def _look_for_failure(self, text: bytes) -> None:
        """Notes whether a rank has reported one in `text`."""
        self.reported = self.reported or bool(_FAILURE.search(text))


def pump(source: int, output: LauncherOutput, target: int) -> None:
    """Writes what comes from the descriptor `source` to `target` through `output`, until its end; closes `source`.

    What cannot be written is lost: the ranks go on.
    """
    try:
        while True:
            if output.holding and not select.select([source], [], [], HOLD_SECS)[0]:
                _write_all(target, output.flush())
            data = os.read(source, 1 << 16)
            if not data:
                _write_all(target, output.flush())
                return
            _write_all(target, output.feed(data))
    finally:
        os.close(source)


def _write_all(target: int, data: bytes) -> None:
    with suppress(OSError):
        while data:
            data = data[os.write(target, data) :]
