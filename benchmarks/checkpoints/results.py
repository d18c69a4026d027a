"""Measured times by case, and the records they become."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Literal

from support.records import Record
from support.timing import Rates

BENCHMARK = "checkpoint"
OURS = "hpc_train"
MILLI = 1e3

What = Literal["stall", "stall and next step", "write", "restore"]


@dataclass(frozen=True)
class Case:
    """What was measured: `what` of a state of `size`, by the way `way`."""

    size: str
    what: What
    way: str

    def __str__(self) -> str:
        return f"{self.size} {self.what}, {self.way}"


@dataclass(frozen=True)
class Measured:
    """One case.

    Attributes:
        secs: By repeat.
        nbytes: Of the state.
        ratios: Of its median to that of each baseline of the same interleaving; for ours alone.
    """

    case: Case
    secs: tuple[float, ...]
    nbytes: int
    ratios: Mapping[str, float]

    @property
    def median(self) -> float:
        return median(self.secs)

    @property
    def gb_per_sec(self) -> float:
        return self.nbytes / self.median / 1e9


@dataclass(frozen=True)
class StepRates:
    """Training steps a second, by repeat.

    Attributes:
        alone: Nothing is saved. writing: A save is in flight; the clock stands still during its stall.
        saving: The same, stalls counted. beside: Nothing is saved, but another process keeps a core busy.
        saves: Begun in all repeats.
    """

    size: str
    alone: tuple[float, ...]
    writing: tuple[float, ...]
    saving: tuple[float, ...]
    beside: tuple[float, ...]
    saves: int

    def lost(self, rates: tuple[float, ...]) -> float:
        """Part of the steps that is lost at `rates`, such as `writing`."""
        return 1 - median(rates) / median(self.alone)


class Results:
    """Everything measured, found by case."""

    def __init__(self) -> None:
        self._found: dict[Case, Measured] = {}
        self.steps: list[StepRates] = []
        self.states: list[tuple[str, int, int]] = []
        """Name, bytes and number of variables of each state."""

    def add(self, size: str, what: What, rates: Mapping[str, Rates], nbytes: int) -> None:
        """Adds one interleaving, of a state of `nbytes`; ours is compared with all others in it."""
        for way, found in rates.items():
            others = {other: r for other, r in rates.items() if other != OURS} if way == OURS else {}
            ratios = {other: median(found.secs) / median(r.secs) for other, r in others.items()}
            case = Case(size, what, way)
            self._found[case] = Measured(case, found.secs, nbytes, ratios)

    def add_part(self, size: str, what: What, part: str, secs: Sequence[float], nbytes: int) -> None:
        """Adds what a part of ours took."""
        case = Case(size, what, f"{OURS}: {part}")
        self._found[case] = Measured(case, tuple(secs), nbytes, {})

    def get(self, size: str, what: What, way: str) -> Measured | None:
        return self._found.get(Case(size, what, way))

    def of(self, size: str, what: What) -> list[Measured]:
        return [found for case, found in self._found.items() if (case.size, case.what) == (size, what)]

    def records(self, config: Mapping[str, Any], versions: dict[str, str]) -> Iterator[Record]:
        """One record for each case and baseline."""
        for found in self._found.values():
            millis = [MILLI * secs for secs in found.secs]
            record = Record(
                BENCHMARK,
                str(found.case),
                ranks=1,
                value=MILLI * found.median,
                unit="ms",
                baseline=None,
                ratio=None,
                repeats=len(millis),
                spread=(min(millis), max(millis)),
                config={**asdict(found.case), "bytes": found.nbytes, "gb_per_sec": found.gb_per_sec, **config},
                versions=versions,
            )
            if not found.ratios:
                yield record
            for baseline, ratio in found.ratios.items():
                yield replace(record, baseline=baseline, ratio=ratio)
        for steps in self.steps:
            yield from _step_records(steps, config, versions)


def _step_records(steps: StepRates, config: Mapping[str, Any], versions: dict[str, str]) -> Iterator[Record]:
    alone = median(steps.alone)
    cases = (
        ("no saves", steps.alone, 0),
        ("a save in flight", steps.writing, steps.saves),
        ("a save in flight and stalls", steps.saving, steps.saves),
        ("no saves, another process busy", steps.beside, 0),
    )
    for way, rates, saves in cases:
        own = {"size": steps.size, "what": "steps", "way": way, "saves": saves}
        yield Record(
            BENCHMARK,
            f"{steps.size} training steps, {way}",
            ranks=1,
            value=median(rates),
            unit="steps/s",
            baseline=None if rates is steps.alone else "no saves",
            ratio=None if rates is steps.alone else median(rates) / alone,
            repeats=len(rates),
            spread=(min(rates), max(rates)),
            config={**own, **config},
            versions=versions,
        )
