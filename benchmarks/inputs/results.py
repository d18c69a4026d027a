"""Measured rates by case, and the records they become."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from support.records import Record
from support.timing import Rates

BENCHMARK = "input_pipeline"
GB = 1e9


@dataclass(frozen=True)
class Case:
    """What was measured.

    Attributes:
        rows: Name of the row kind.
        way: Who delivered the rows: "reader" and "tf.data" are ours, the rest are baselines.
        threads: Of our reader; 0 where that does not apply.
        cores: "all" or "one".
    """

    rows: str
    layout: str
    order: str
    way: str
    threads: int = 0
    cores: str = "all"
    cache: str = "warm"

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}" if self.threads else ""
        cores = "on one core" if self.cores == "one" else ""
        cache = "cold" if self.cache == "cold" else ""
        return " ".join(filter(None, [self.order, self.layout, self.rows, self.way, threads, cores, cache]))


@dataclass(frozen=True)
class Measured:
    """One case with its rates (bytes a second), and its ratio to each baseline and to memcpy in its interleaving."""

    case: Case
    rates: Rates
    ratios: Mapping[str, float]
    over_memcpy: float | None

    @property
    def gb_per_sec(self) -> float:
        return self.rates.median / GB

    @property
    def cpu_secs_per_gb(self) -> float:
        return self.rates.cpu_median * GB


@dataclass(frozen=True)
class StepWait:
    """A training loop fed in one order: repeats of its wait for input and of its step time, fed and not fed."""

    order: str
    wait_shares: tuple[float, ...]
    fed_secs: tuple[float, ...]
    resident_secs: tuple[float, ...]

    @property
    def wait_share(self) -> float:
        return median(self.wait_shares)

    @property
    def step_secs(self) -> float:
        """With input."""
        return median(self.fed_secs)

    @property
    def resident_step_secs(self) -> float:
        """On one batch that lies in memory."""
        return median(self.resident_secs)


class Results:
    """Everything measured, found by case."""

    def __init__(self) -> None:
        self._found: dict[Case, Measured] = {}
        self.steps: list[StepWait] = []
        self.notes: list[str] = []

    def add(self, rates: Mapping[Case, Rates]) -> None:
        """Adds one interleaving: ours are compared with its baselines, several threads with one.

        A case that was there before keeps its rates and is compared with the new baselines, too.
        """
        memcpy = next((r for o, r in rates.items() if o.way == "memcpy"), None)
        for case, own in rates.items():
            others = {o.way: r for o, r in rates.items() if not is_ours(o)} if is_ours(case) else {}
            alone = replace(case, threads=1)
            if case.threads > 1 and alone in rates:
                others["1 thread"] = rates[alone]
            ratios = {way: own.median / other.median for way, other in others.items()}
            over_memcpy = own.median / memcpy.median if memcpy else None
            before = self._found.get(case)
            if before:
                self._found[case] = replace(before, ratios={**ratios, **before.ratios})
            else:
                self._found[case] = Measured(case, own, ratios, over_memcpy)

    def get(self, case: Case) -> Measured | None:
        return self._found.get(case)

    def __iter__(self) -> Iterator[Measured]:
        return iter(self._found.values())

    def records(self, config: Mapping[str, Any], versions: dict[str, str]) -> Iterator[Record]:
        """One record for each case and baseline."""
        for found in self:
            low, high = found.rates.spread
            record = Record(
                BENCHMARK,
                str(found.case),
                ranks=1,
                value=found.gb_per_sec,
                unit="GB/s",
                baseline=None,
                ratio=None,
                repeats=len(found.rates.per_sec),
                spread=(low / GB, high / GB),
                config={**asdict(found.case), "cpu_secs_per_gb": found.cpu_secs_per_gb, **config},
                versions=versions,
            )
            if not found.ratios:
                yield record
            for baseline, ratio in found.ratios.items():
                yield replace(record, baseline=baseline, ratio=ratio)
        for step in self.steps:
            yield from _step_records(step, config, versions)


def _step_records(step: StepWait, config: Mapping[str, Any], versions: dict[str, str]) -> Iterator[Record]:
    shares = [100 * share for share in step.wait_shares]
    millis = [1000 * secs for secs in step.fed_secs]
    record = Record(
        BENCHMARK,
        f"{step.order} training step, wait for input",
        ranks=1,
        value=100 * step.wait_share,
        unit="% of step",
        baseline=None,
        ratio=None,
        repeats=len(shares),
        spread=(min(shares), max(shares)),
        config={"order": step.order, **config},
        versions=versions,
    )
    yield record
    yield replace(
        record,
        case=f"{step.order} training step, time",
        value=1000 * step.step_secs,
        unit="ms",
        baseline="same step on a batch in memory",
        ratio=step.step_secs / step.resident_step_secs,
        spread=(min(millis), max(millis)),
    )


def is_ours(case: Case) -> bool:
    return case.way in ("reader", "tf.data")
