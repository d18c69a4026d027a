"""What was measured, by group and way, and the records it becomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Literal

from support.records import Record

BENCHMARK = "parameter_server"

What = Literal["transfer", "transfer, SGD", "training", "slow worker", "time to loss", "idle server"]


@dataclass(frozen=True)
class Group:
    """Ways that ran in the same turns: `what`, `where`, and for transfers the parameters' size and so many servers."""

    what: What
    where: str
    size: str = ""
    servers: int = 0

    def __str__(self) -> str:
        counted = {0: "", 1: "1 server"}.get(self.servers, f"{self.servers} servers")
        return ", ".join(part for part in (self.what, self.where, self.size, counted) if part)


@dataclass(frozen=True)
class Measured:
    """One way of a group.

    Attributes:
        values: By repeat, in `unit`. compared: the ways that it is compared with.
    """

    group: Group
    way: str
    values: tuple[float, ...]
    unit: str
    ranks: int
    compared: tuple[str, ...]
    config: Mapping[str, Any]

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        """Lowest and highest repeat."""
        return min(self.values), max(self.values)


class Results:
    """Everything measured, found by group and way."""

    def __init__(self) -> None:
        self._found: dict[tuple[Group, str], Measured] = {}
        self.staleness: dict[str, Counter[int]] = {}
        """Gradients by staleness, of all jobs of a way."""
        self.left_out: list[str] = []
        """What was not measured, and why: sentences."""

    def add(
        self,
        group: Group,
        way: str,
        values: Sequence[float],
        unit: str,
        ranks: int,
        compared: Sequence[str] = (),
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Adds one way of a group."""
        found = Measured(group, way, tuple(values), unit, ranks, tuple(compared), dict(config or {}))
        self._found[group, way] = found

    def get(self, group: Group, way: str) -> Measured | None:
        return self._found.get((group, way))

    def of(self, group: Group) -> list[Measured]:
        return [found for (own, _), found in self._found.items() if own == group]

    def groups(self, what: What) -> list[Group]:
        """All groups of a kind, in the order in which they were measured."""
        return list(dict.fromkeys(group for group, _ in self._found if group.what == what))

    def ratio(self, group: Group, way: str, baseline: str) -> float | None:
        """The median of a way over another's of the same group; None where one was not measured."""
        own, other = self.get(group, way), self.get(group, baseline)
        return own.median / other.median if own and other else None

    def records(self, config: Mapping[str, Any], versions: dict[str, str]) -> Iterator[Record]:
        """One record for each way and baseline."""
        for found in self._found.values():
            own = {name: value for name, value in asdict(found.group).items() if value}
            record = Record(
                BENCHMARK,
                f"{found.group}, {found.way}",
                ranks=found.ranks,
                value=found.median,
                unit=found.unit,
                baseline=None,
                ratio=None,
                repeats=len(found.values),
                spread=found.spread,
                config={**own, "way": found.way, **found.config, **config},
                versions=versions,
            )
            ratios = {other: self.ratio(found.group, found.way, other) for other in found.compared}
            for baseline, ratio in ratios.items() or [(None, None)]:
                yield replace(record, baseline=baseline, ratio=ratio)
