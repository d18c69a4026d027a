"""Results as one JSON object a line, the same fields in every benchmark."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
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
        config: Settings of this case and of the machine. `ratio_spread`: where the ratio is the median of those of
            pairs that ran beside each other, the two numbers between which most of them lie.
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


FIELDS = tuple(field.name for field in fields(Record))


def as_lines(records: Iterable[Record]) -> str:
    """One JSON object a line.

    Raises:
        ValueError: A number is not finite.
    """
    return "".join(json.dumps(asdict(record), allow_nan=False) + "\n" for record in records)


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Writes `records` to `path` in one rename, one JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(as_lines(records), encoding="utf-8")
    os.replace(temporary, path)


def read_records(path: Path) -> list[Record]:
    """Reads what `write_records` or a ResultsFolder wrote; a last line that was not written to its end is left out.

    Raises:
        ValueError: Another line is no record; the message has its number.
    """
    found = []
    whole, _, _ = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            told = json.loads(line)
            record = Record(**{**told, "spread": tuple(told["spread"])})
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}, line {number}: is no record of a benchmark: {error}") from None
        found.append(record)
    return found
