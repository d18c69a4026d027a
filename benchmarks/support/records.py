"""Results as one JSON object a line, the same fields in every benchmark; and finding them again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from hpc_train.files import replace_text
from support.timing import paired_ratio


@dataclass(frozen=True)
class Record:
    """One measured number.

    Attributes:
        case: What was measured, in words; unique together with `baseline`.
        value: Median over `repeats`, in `unit`.
        baseline: Name of what it is compared with, measured in the same run, A B B A; None where nothing is.
        ratio: To the baseline: the median of the ratios of pairs that ran beside each other.
        spread: Lowest and highest repeat, in `unit`.
        config: Settings of this case and of the machine. `ratio_spread`: the middle half of the pairs' ratios.
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


@dataclass(frozen=True)
class Sample:
    """What one contestant reached, by repeat.

    Attributes:
        against: Repeats of each that it is compared with, by name; they ran beside its own.
    """

    case: str
    values: Sequence[float]
    against: Mapping[str, Sequence[float]] = field(default_factory=dict)
    ranks: int = 1
    config: Mapping[str, Any] = field(default_factory=dict)


def records_of(benchmark: str, unit: str, samples: Iterable[Sample]) -> Iterator[Record]:
    """One record for each sample and baseline; one without a baseline where a sample is compared with none. Pure."""
    for own in samples:
        spread = min(own.values), max(own.values)
        value, repeats = median(own.values), len(own.values)
        record = Record(benchmark, own.case, own.ranks, value, unit, None, None, repeats, spread, dict(own.config), {})
        if not own.against:
            yield record
        for name, others in own.against.items():
            ratio, low, high = paired_ratio(own.values, others)
            yield replace(record, baseline=name, ratio=ratio, config={"ratio_spread": [low, high], **own.config})


class Found:
    """Records, found by what their `config` says, or by `ranks`. Pure."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = list(records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __bool__(self) -> bool:
        return bool(self.records)

    def where(self, **wanted: Any) -> Found:
        """Those whose config has all of these values."""
        return Found(one for one in self.records if all(_get(one, name) == value for name, value in wanted.items()))

    def each(self, *names: str) -> list[Any]:
        """Values of a name, or tuples of the values of several, in the order in which they were measured."""
        found = dict.fromkeys(tuple(_get(one, name) for name in names) for one in self.records)
        return [values[0] if len(names) == 1 else values for values in found]

    def cases(self) -> list[Record]:
        """One record of each case."""
        return list({one.case: one for one in reversed(self.records)}.values())[::-1]

    def one(self, **wanted: Any) -> Record | None:
        """The first of those, whatever its baseline."""
        return next(iter(self.where(**wanted)), None)

    def against(self, baseline: str, **wanted: Any) -> Record | None:
        """Of those, the one that is compared with `baseline`."""
        return next((one for one in self.where(**wanted) if one.baseline == baseline), None)

    def ratio(self, baseline: str, **wanted: Any) -> float | None:
        """To `baseline`; None where it was not measured."""
        found = self.against(baseline, **wanted)
        return None if found is None else found.ratio


def _get(record: Record, name: str) -> Any:
    return getattr(record, name) if name in ("ranks", "case") else record.config.get(name)


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Writes `records` in one rename, one JSON object a line.

    Raises:
        ValueError: A number is not finite, or two records have the same case and baseline.
    """
    kept = list(records)
    keys = [(one.case, one.baseline) for one in kept]
    if len(set(keys)) < len(keys):
        raise ValueError(f"measured twice: {next(key for key in keys if keys.count(key) > 1)}")
    replace_text(path, "".join(json.dumps(asdict(record), allow_nan=False) + "\n" for record in kept))


def read_records(path: Path) -> list[Record]:
    """Reads what `write_records` wrote; a last line that was not written to its end is left out.

    Raises:
        ValueError: Another line is no record; the message has its number.
    """
    found = []
    whole, _, _ = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            told = json.loads(line)
            found.append(Record(**{**told, "spread": tuple(told["spread"])}))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}, line {number}: is no record of a benchmark: {error}") from None
    return found
