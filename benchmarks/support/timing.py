"""Timing in turns, A B B A: medians, spread and CPU seconds of competitors that do comparable work."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import quantiles
from typing import TypeVar

T = TypeVar("T")

IDLE_SHARE = 0.2
"""A process that uses less than this share of a core counts as idle."""


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Competitor:
    """One way to do the work.

    Attributes:
        run: Does the work, timed; returns how much was done (bytes, steps), or None: it was done once.
        prepare, finish: Before and after each run, not timed.
    """

    name: str
    run: Callable[[], int | None]
    prepare: Callable[[], object] = _nothing
    finish: Callable[[], object] = _nothing


@dataclass(frozen=True)
class Rates:
    """What one competitor reached: work a second and CPU seconds (of all threads) a unit of work, by repeat."""

    per_sec: tuple[float, ...]
    cpu_secs: tuple[float, ...]

    @property
    def secs(self) -> tuple[float, ...]:
        """Seconds a unit of work, by repeat."""
        return tuple(1 / rate for rate in self.per_sec)


def there_and_back(ways: Sequence[T], passes: int) -> Iterator[T]:
    """All ways there, and back again: A B, then B A, then A B once more."""
    for number in range(passes):
        yield from ways if number % 2 == 0 else reversed(ways)


def interleave(competitors: Sequence[Competitor], rounds: int) -> dict[str, Rates]:
    """Runs all competitors once to warm up, then `rounds` times there and back: A B C C B A.

    What drifts on the machine meanwhile meets all of them alike. Each has 2 x `rounds` repeats.
    """
    for competitor in competitors:
        _run_once(competitor)
    samples: dict[str, list[tuple[float, float]]] = {competitor.name: [] for competitor in competitors}
    gc.disable()
    try:
        for _ in range(rounds):
            for competitor in there_and_back(competitors, 2):
                samples[competitor.name].append(_run_once(competitor))
    finally:
        gc.enable()
    return {name: Rates(*zip(*pairs, strict=True)) for name, pairs in samples.items()}


def _run_once(competitor: Competitor) -> tuple[float, float]:
    competitor.prepare()
    cpu, wall = time.process_time(), time.perf_counter()
    work = competitor.run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    competitor.finish()
    settle()
    work = 1 if work is None else work
    return work / wall, cpu / work


def settle(limit_secs: float = 2.0) -> None:
    """Waits until threads in the background (prefetch) have come to rest, so that they disturb nobody else's run."""
    end = time.perf_counter() + limit_secs
    while time.perf_counter() < end:
        cpu, wall = time.process_time(), time.perf_counter()
        time.sleep(0.004)
        if time.process_time() - cpu < IDLE_SHARE * (time.perf_counter() - wall):
            return


def in_turn(deliver: Callable[[int], int], steps: int, limit_secs: float) -> Callable[[], int]:
    """A run of `steps` calls of `deliver(step)`, or as many as fit into `limit_secs`; the next run goes on from there.

    `deliver` returns how much it delivered.
    """
    numbers = cycle(range(steps))

    def run() -> int:
        end = time.perf_counter() + limit_secs
        done = 0
        for _ in range(steps):
            done += deliver(next(numbers))
            if time.perf_counter() >= end:
                break
        return done

    return run


def paired_ratio(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    """Median, 25th and 75th percentile of the ratios a/b of repeats that ran beside each other.

    What slows the machine down for a while slows down both of a pair, so these vary less than the ratio of two medians.

    Raises:
        ValueError: There are not as many of the one as of the other, or none.
    """
    ratios = sorted(own / other for own, other in zip(a, b, strict=True))
    if not ratios:
        raise ValueError("no repeats to compare")
    if len(ratios) == 1:
        return ratios[0], ratios[0], ratios[0]
    low, middle, high = quantiles(ratios, n=4, method="inclusive")
    return middle, low, high
