"""What ranks that a driver keeps look at to know that it lives. Local."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hpc_train.resilience.job_lock import holder_of
from hpc_train.resilience.signals import StopSignals

LOOK_SECS = 1.0


class Supervision:
    """The driver that has its lock in `folder`, and the launcher that has started this process."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._launcher = folder, os.getppid()
        self._looked, self._ended = 0.0, False

    def has_ended(self) -> bool:
        """Whether one of the two has; looked at once in LOOK_SECS."""
        now = time.monotonic()
        if not self._ended and now - self._looked > LOOK_SECS:
            self._looked = now
            self._ended = os.getppid() != self._launcher or holder_of(self._folder) is None
        return self._ended

    def stops_by(self, signals: StopSignals, report_life: Callable[[], None]) -> None:
        """From now on, what this process trains when the driver has ended is asked to save and stop.

        Args:
            report_life: Called every LOOK_SECS, by a thread.
        """

        def watch() -> None:
            while not self.has_ended():
                report_life()
                time.sleep(LOOK_SECS)
            while True:  # a trial may begin just now, which takes what came before for that of another one
                signals.received = signals.received or "SIGUSR1"
                time.sleep(LOOK_SECS)

        threading.Thread(target=watch, name="driver watch", daemon=True).start()
