"""Which ranks hold the others up: by the time that a step takes them alone, beside the others'. Pure.

A rank's own time leaves out what it waits for: its input, the other ranks, checkpoints and evaluations. Each record
has its mean over the steps since the one before. A rank is named once its own time was above `factor` times the median
of the other ranks in ENOUGH of the last WINDOW records: what comes and goes, as another program's work does, is in few.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

WINDOW, ENOUGH = 20, 14
"""With equal ranks each of which is the slower one by chance in half of the records, fewer than 6 in 100 have 14 of 20;
that the slower one is so by a fifth is much rarer."""
SHORTEST_SECS = 0.003
"""Steps whose own time is shorter count as not slow: what a system does beside them is not small against them. They are
counted, since of ranks near this time only the slow moments would be seen otherwise."""


@dataclass(frozen=True)
class SlowRank:
    """A rank that is slow: medians of its own time, in seconds, and of how many times the others' that is."""

    rank: int
    step: int
    secs: float
    ratio: float


class SlowRanks:
    """Judges record after record.

    Args:
        factor: Above 1.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._ratios: dict[int, deque[tuple[float, float]]] = {}
        self._named: set[int] = set()

    def judge(self, step: int, own_secs: Sequence[float | None]) -> list[SlowRank]:
        """The ranks that are slow from this record on, each once.

        Args:
            own_secs: By rank, of a step; None: not known, or not to be judged.
        """
        known = {rank: secs for rank, secs in enumerate(own_secs) if secs is not None and secs > 0}
        found = []
        for rank, secs in known.items():
            others = [other for number, other in known.items() if number != rank]
            if not others:
                continue
            seen = self._ratios.setdefault(rank, deque(maxlen=WINDOW))
            seen.append((secs / median(others) if secs >= SHORTEST_SECS else 0.0, secs))
            if rank in self._named or sum(ratio > self._factor for ratio, _ in seen) < ENOUGH:
                continue
            self._named.add(rank)
            slow = [one for one in seen if one[0] > self._factor]
            found.append(SlowRank(rank, step, median(secs for _, secs in slow), median(ratio for ratio, _ in slow)))
        return found
