"""A counter of joules, and what is read of one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpc_train.files import read_bytes

MAX_BYTES = 4096
"""Of a file that shows a counter."""
MOST_JOULES = 1e15
"""No counter shows more: a gigawatt for eleven days."""
MOST_WATTS = 1e5
"""What a node takes at most, several times over: a counter that runs faster is broken, or has been reset."""
MOST_WATTS_OF_WRAPPING = 2000.0
"""As above, of what counters that wrap count: processor packages and memory."""
STILL_SECS = 600.0
"""A node's counters that have not moved for so long do not count."""
STILL_BESIDE_SECS = 60.0
"""Nor does one that has not moved for so long beside others that have."""


class NotMeasuredError(Exception):
    """The machine does not tell; the message says why, as the end of a sentence."""


@dataclass(frozen=True)
class Counter:
    """What counts joules since some moment.

    Attributes:
        name: What it counts, for messages: "package-0".
        read: The joules now; OSError or ValueError where it cannot be read. wraps_at: it begins again at 0 beyond so
            many joules; None: it does not.
    """

    name: str
    read: Callable[[], float]
    wraps_at: float | None = None

    def since(self, before: float, now: float) -> float:
        """Joules between two values read one after the other, no more than one wrap apart. Pure.

        Raises:
            ValueError: It has gone back, and does not wrap.
        """
        if now >= before:
            return now - before
        if self.wraps_at is not None and before <= self.wraps_at:
            return now + self.wraps_at - before
        raise ValueError("it has gone back")


def file_counter(name: str, path: Path, unit: str, joules_a_unit: float, wraps_at: float | None = None) -> Counter:
    """Of a file that holds a whole number; after it perhaps `unit` and a time, as in Cray's "384 J 1700000000 us"."""
    return Counter(name, lambda: read_number(path, unit) * joules_a_unit, wraps_at)


def read_number(path: Path, unit: str = "") -> int:
    """The number in a file of the system; files there are links.

    Raises:
        OSError: It cannot be read. ValueError: it holds something else.
    """
    text = read_bytes(path, MAX_BYTES, follow=True).decode("ascii", "replace")
    found = re.fullmatch(rf"\s*([0-9]{{1,20}})(?:\s+{re.escape(unit)}(?:\s+[0-9]+\s+us)?)?\s*", text)
    if found is None:
        raise ValueError(f"{path} holds no number of {unit or 'a counter'}")
    return int(found[1])


def checked(joules: float) -> float:
    """`joules`; ValueError where no counter would show that."""
    if not math.isfinite(joules) or not 0 <= joules <= MOST_JOULES:
        raise ValueError(f"it shows {joules:g} J")
    return joules
