"""A meter: joules since it began, from counters that are read now and then."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from hpc_train.telemetry.energy.counter import (
    MOST_WATTS,
    MOST_WATTS_OF_WRAPPING,
    STILL_BESIDE_SECS,
    STILL_SECS,
    Counter,
    checked,
)

log = logging.getLogger(__name__)

SAMPLE_SECS = 10.0
"""A processor's counter wraps after 3 minutes at the soonest: 65,536 J at 350 W."""
PATIENCE_SECS = 5.0
"""So long a counter may hold up who asks for it, once."""


class Meter:
    """Adds up what `counters` count from `begin` on, in a thread of its own. Context manager; local.

    A counter that can no longer be read, or goes back, ends the measurement as a whole: a part would pass for all.

    Attributes:
        failed: Why nothing is measured any more, in words; None as long as it is.
    """

    def __init__(
        self, counters: Sequence[Counter], every_secs: float = SAMPLE_SECS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._counters, self._every_secs, self._clock = tuple(counters), every_secs, clock
        self._state, self._ended = threading.Condition(), False
        self._wanted, self._reading, self._readings = False, False, 0
        self._joules, self._read_at = 0.0, clock()
        self._begun_at = self._read_at
        self._before: list[float] = []
        self._moved, self._named = [False] * len(self._counters), False
        self.failed: str | None = None
        self._thread = threading.Thread(target=self._run, name="energy", daemon=True)

    def __enter__(self) -> Meter:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._state:
            self._ended = True
            self._state.notify_all()

    @property
    def joules(self) -> float | None:
        """Since it began, as last read; None where it has failed."""
        with self._state:
            return None if self.failed else self._joules

    @property
    def secs(self) -> float:
        """In which these joules were used: from the beginning until its counters were last read."""
        with self._state:
            return self._read_at - self._begun_at

    @property
    def still(self) -> list[str]:
        """Counters by name that stand still while others move: what they count is in no figure."""
        with self._state:
            if self.failed or not any(self._moved) or self._read_at - self._begun_at < STILL_BESIDE_SECS:
                return []
            return [counter.name for counter, moved in zip(self._counters, self._moved, strict=True) if not moved]

    def read(self) -> float | None:
        """The same, read now; as last read where counters are being read, or do not answer: they may block."""
        with self._state:
            if not (self._reading or self._ended):
                self._wanted, before = True, self._readings
                self._state.notify_all()
                self._state.wait_for(lambda: self._readings > before, PATIENCE_SECS)
        if (still := self.still) and not self._named:
            self._named = True
            log.warning(f"energy: {', '.join(still)} stands still, so what it counts is left out")
        return self.joules

    def _run(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._wanted or self._ended, self._every_secs)
                if self._ended:
                    return
                self._wanted, self._reading = False, True
            self._sample()
            with self._state:
                self._reading, self._readings = False, self._readings + 1
                self._state.notify_all()

    def _sample(self) -> None:
        """Reads the counters. One thread at a time."""
        if self.failed is not None:
            return
        name = ""
        try:
            now, found, used, moved = self._clock(), [], 0.0, [*self._moved]
            for place, counter in enumerate(self._counters):
                name = counter.name
                found.append(checked(counter.read()))
                if self._before:
                    more = _used(counter, self._before[place], found[-1], now - self._read_at)
                    used, moved[place] = used + more, moved[place] or more > 0
            if self._joules + used == 0 and now - self._begun_at > STILL_SECS:
                raise ValueError(f"it has not moved for {now - self._begun_at:.0f} s")
        except (OSError, ValueError) as error:
            self.failed = f"the counter {name} failed: {error}"
            log.info(f"energy is no longer measured: {self.failed}")
            return
        with self._state:
            self._begun_at = self._begun_at if self._before else now
            self._before, self._read_at, self._moved = found, now, moved
            self._joules += used


def _used(counter: Counter, before: float, now: float, secs: float) -> float:
    """Joules between two values that were read so many seconds one after the other. Pure.

    Raises:
        ValueError: They cannot be told, or are more than there can be.
    """
    wraps, most = counter.wraps_at, MOST_WATTS if counter.wraps_at is None else MOST_WATTS_OF_WRAPPING
    if wraps is not None and secs * most >= wraps:
        raise ValueError(f"it was not read for {secs:.0f} s, in which it may have begun again more than once")
    used = counter.since(before, now)
    if used > most * (secs + 1):
        raise ValueError(f"it shows {used:g} J for {secs:.1f} s")
    return used
