"""What was measured, found again in the records. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from support.records import Record

from scale.settings import SYNC


@dataclass(frozen=True)
class Measured:
    """All records of a curve."""

    unit: str
    records: tuple[Record, ...]

    @property
    def kind(self) -> str:
        """WEAK or STRONG."""
        return str(self.records[0].config["kind"])

    @property
    def workload(self) -> str:
        return str(self.records[0].config["workload"])

    @property
    def title(self) -> str:
        """In words."""
        return self.unit[0].upper() + self.unit[1:]

    @property
    def emulated_step_ms(self) -> float | None:
        step_ms: float | None = self.records[0].config["emulated_step_ms"]
        return step_ms

    @property
    def ways(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(record.config["way"] for record in self.records))

    def of(self, way: str) -> list[Record]:
        """Those of a way, by the number of workers."""
        own = [record for record in self.records if record.config["way"] == way]
        return sorted(own, key=lambda record: record.config["workers"])

    def at(self, way: str, workers: int) -> Record | None:
        return next((record for record in self.of(way) if record.config["workers"] == workers), None)

    @property
    def alone(self) -> Record:
        """One rank, which exchanges nothing."""
        found = self.at(SYNC, 1)
        assert found is not None, "measured in each curve"
        return found


def efficiency(record: Record) -> float:
    """Examples a second over as many times those of one rank alone, whose own record has no ratio."""
    return 1.0 if record.ratio is None else record.ratio


def curves_in(records: Iterable[Record]) -> list[Measured]:
    """All curves, in the order in which they were measured."""
    kept = list(records)
    units = dict.fromkeys(str(record.config["unit"]) for record in kept)
    return [Measured(unit, tuple(r for r in kept if r.config["unit"] == unit)) for unit in units]
