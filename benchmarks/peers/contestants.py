"""Who is compared, and the records that a unit becomes; found again by model, ranks and way. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

from support.records import Record
from support.timing import paired_ratio

from peers.settings import BATCH, BENCHMARK, OURS
from peers.told import Told

UNIT = "examples/s"
Kind = Literal["one process", "weak scaling", "other programs"]
"""Of a unit: two ways in one process; those that scaling is told from; a program that is no part of this package."""


@dataclass(frozen=True)
class Contestant:
    """A way to train, on so many ranks."""

    way: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.way}, {self.ranks} rank{'s' if self.ranks > 1 else ''}"


@dataclass(frozen=True)
class Ratio:
    """Of examples a second: the median of the pairs' ratios, and where their middle half lies."""

    median: float
    low: float
    high: float

    def over(self, number: float) -> Ratio:
        return Ratio(self.median / number, self.low / number, self.high / number)


@dataclass(frozen=True)
class Unit:
    """Ways that run in turn: two in one process, or several, each in processes of its own.

    Attributes:
        ranks: Of ours; `ways` may have others.
    """

    kind: Kind
    model: str
    ranks: int
    ways: tuple[Contestant, ...]

    @property
    def name(self) -> str:
        """In words, the same for an interrupted run that goes on."""
        counted = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        return f"{self.model}, {counted}, {self.kind}: {', '.join(dict.fromkeys(one.way for one in self.ways))}"


def pair_records(unit: Unit, told: Sequence[Told]) -> list[Record]:
    """Of two that ran in blocks in one process."""
    rates = {one: found.rates for one, found in zip(unit.ways, told, strict=True)}
    more = {one: _about(found) for one, found in zip(unit.ways, told, strict=True)}
    return list(_records(unit, rates, more))


def turn_records(unit: Unit, told: Mapping[Contestant, Sequence[Told]]) -> list[Record]:
    """Of several that ran in processes of their own: a repeat for each pass."""
    rates = {one: tuple(found.rate for found in told[one]) for one in unit.ways}
    more = {one: _about(told[one][-1]) for one in unit.ways}
    return list(_records(unit, rates, more))


def _about(told: Told) -> dict[str, Any]:
    return {
        "steps": told.steps * len(told.secs),
        "first_loss": told.losses[0],
        "last_loss": told.losses[1],
        "cores": told.cores,
    }


def _records(
    unit: Unit, rates: Mapping[Contestant, Sequence[float]], more: Mapping[Contestant, Mapping[str, Any]]
) -> Iterator[Record]:
    """One for each way, and one for each that it is compared with: ours with all, all with those on one rank."""
    for own, values in rates.items():
        record = Record(
            BENCHMARK,
            f"{unit.name} – {own}",
            ranks=own.ranks,
            value=median(values),
            unit=UNIT,
            baseline=None,
            ratio=None,
            repeats=len(values),
            spread=(min(values), max(values)),
            config={"kind": unit.kind, "model": unit.model, "way": own.way, "batch": BATCH, **more[own]},
            versions={},
        )
        record.config["values"] = list(values)
        yield record
        for other in rates:
            if other == own or other.ranks > own.ranks or (own.way != OURS and own.ranks == other.ranks):
                continue
            middle, low, high = paired_ratio(values, rates[other])
            compared = {"baseline_way": other.way, "baseline_ranks": other.ranks, "ratio_spread": [low, high]}
            yield replace(record, baseline=str(other), ratio=middle, config={**record.config, **compared})


class Found:
    """What was measured in units of one kind, by model and ways."""

    def __init__(self, records: Iterable[Record], kind: Kind) -> None:
        self._by: dict[tuple[str, Contestant, Contestant | None], list[Record]] = {}
        for record in records:
            own, config = Contestant(record.config["way"], record.ranks), record.config
            if config["kind"] != kind:
                continue
            other = None
            if record.baseline is not None:
                other = Contestant(config["baseline_way"], config["baseline_ranks"])
            self._by.setdefault((config["model"], own, other), []).append(record)

    def models(self) -> list[str]:
        """In the order in which they were measured."""
        return list(dict.fromkeys(model for model, _, _ in self._by))

    def ranks(self) -> list[int]:
        """Numbers of ranks that ours ran on."""
        return sorted({own.ranks for _, own, _ in self._by if own.way == OURS})

    def record(self, model: str, own: Contestant, other: Contestant | None) -> Record | None:
        """How `own` compares with `other`; None: not measured."""
        return next(iter(self._by.get((model, own, other), ())), None)

    def beside(self, model: str, own: Contestant, other: Contestant) -> tuple[Record, Record] | None:
        """The records of `own`, compared with `other`, and of `other` in the same turns."""
        found = self.record(model, own, other)
        if found is None:
            return None
        theirs = self._by.get((model, other, None), [])
        return next(((found, one) for one in theirs if one.config["unit"] == found.config["unit"]), None)

    def ratio(self, model: str, own: Contestant, other: Contestant) -> Ratio | None:
        """Of the examples a second of all ranks together."""
        found = self.record(model, own, other)
        if found is None or found.ratio is None:
            return None
        return Ratio(found.ratio, *found.config["ratio_spread"])
