"""What a part of the quick benchmark found, and the file in which its process hands it over. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from support.records import Record
from support.report import Target, replace_text

Missed = tuple[Target, str, str]
"""A target, and the name and the value of what does not reach it."""


@dataclass(frozen=True)
class Measured:
    """What a part found.

    Attributes:
        targets: Those that something was measured for.
        left_out: What was not measured, by name, and why; by the part's own name where that is all of it.
    """

    records: Sequence[Record] = ()
    targets: Sequence[Target] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    def missed(self) -> Iterator[Missed]:
        """All that falls short."""
        for target in self.targets:
            yield from ((target, name, value) for name, value, reached in target.measured if not reached)

    @property
    def reached(self) -> bool:
        """Everything was measured, and nothing falls short."""
        return not self.left_out and not any(self.missed())


@dataclass(frozen=True)
class Ran:
    """A part that ran: what it found, the seconds that it took, and the cores that other processes took meanwhile."""

    measured: Measured
    secs: float
    taken_by_others: float = 0.0


def write_measured(path: Path, measured: Measured) -> None:
    """Writes it in one rename."""
    replace_text(path, json.dumps(asdict(measured), allow_nan=False))


def read_measured(path: Path) -> Measured:
    """What `write_measured` wrote."""
    told = json.loads(path.read_text(encoding="utf-8"))
    records = [Record(**{**one, "spread": tuple(one["spread"])}) for one in told["records"]]
    targets = [Target(**{**one, "measured": [tuple(each) for each in one["measured"]]}) for one in told["targets"]]
    return Measured(records, targets, told["left_out"])
