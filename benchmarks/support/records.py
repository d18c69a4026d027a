"""Results as one JSON object a line, the same fields in every benchmark."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Record:
    """One measured number.

    Attributes:
        case: What was measured, in words; unique together with `baseline`.
        value: Median over `repeats`, in `unit`.
        baseline: Name of what it is compared with, measured in the same run, A B B A; None where nothing is.
        ratio: Value divided by the baseline's.
        spread: Lowest and highest repeat, in `unit`.
        config: Settings of this case and of the machine.
        versions: Versions of the programs that took part.
    """

    benchmark: str
    case: str
    ranks: int
    value: float
    unit: str
    baseline: str | None
    ratio: float | None
    repeats: int
    spread: tuple[float, float]
    config: dict[str, Any]
    versions: dict[str, str]


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Writes `records` to `path`, one JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(asdict(record)) + "\n" for record in records))
