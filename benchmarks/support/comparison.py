"""Two runs of a benchmark: what became slower or faster, by how much, and whether beyond the spread.

Pure apart from `read_measured`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpc_train.report import words
from support.records import Record, read_records
from support.results import RECORDS, RUN
from support.usage import UsageError

SMALLER_IS_FASTER = frozenset(
    {
        *("ns", "us", "µs", "μs", "ms", "s", "min", "h", "seconds", "bytes", "byte"),
        *("B", "kB", "KB", "MB", "GB", "KiB", "MiB", "GiB"),
    }
)
"""First words of units of which less is better; rates, as GB/s and examples/s, are no such units."""
SHARES = frozenset({"of a core", "% of step", "of the way", "numbers that differ", "steps"})
HARDWARE = ("cpu", "cores", "nodes", "gpus", "memory_gib", "last_level_cache")
LEAST_REPEATS = 4
"""From the lowest to the highest of fewer repeats, ranges of the same thing lie apart by chance once in ten times, or
more often; of four, 3 times in 100."""

Key = tuple[str, str | None]
"""Case and baseline: they name a number."""
Verdict = Literal["slower", "faster", "within the spread", "too few repeats"]


@dataclass(frozen=True)
class Measured:
    """What a results folder, or a file of records, holds; `run`: its run.json, empty where there is none."""

    name: str
    records: Sequence[Record]
    run: Mapping[str, Any]

    @property
    def about(self) -> dict[str, str]:
        """Machine, versions and settings by name, as text."""
        first = self.records[0]
        parts = [self.run.get("machine") or first.config.get("machine", {}), self.run.get("versions") or first.versions]
        about = {name: str(value) for part in parts for name, value in part.items()}
        return about | {f"setting {name}": json.dumps(value) for name, value in self.run.get("settings", {}).items()}

    @property
    def numbers(self) -> dict[Key, Record]:
        return {(record.case, record.baseline): record for record in self.records}


@dataclass(frozen=True)
class Change:
    """A number that both runs have."""

    key: Key
    before: Record
    after: Record

    @property
    def factor(self) -> float | None:
        """The number over what it was; None where that was 0."""
        before, after = number(self.before)[0], number(self.after)[0]
        return after / before if before else None

    @property
    def verdict(self) -> Verdict:
        """Slower or faster only where the spreads do not overlap, and are of LEAST_REPEATS or more."""
        if min(self.before.repeats, self.after.repeats) < LEAST_REPEATS:
            return "too few repeats"
        (_, low, high), (_, new_low, new_high) = number(self.before), number(self.after)
        if low <= new_high and new_low <= high:
            return "within the spread"
        return "slower" if (new_low > high) == less_is_better(self.before.unit) else "faster"

    @property
    def by(self) -> str:
        """By how much of what it was the number grew or shrank: "+18 %"."""
        if self.factor is None:
            return words.UNKNOWN
        percent = 100 * (self.factor - 1)
        return f"{percent:+.{0 if abs(percent) >= 9.95 else 1}f} %".replace("-", "−")


@dataclass(frozen=True)
class Comparison:
    """Two runs of the same benchmark.

    Attributes:
        changes: What became slower first, the worst above; then faster, the best above; then the rest.
        warnings: What a reader must know first. others: what differs in machine, versions and settings, and numbers
            that were not compared; a line each.
    """

    title: str
    changes: Sequence[Change]
    warnings: Sequence[str]
    others: Sequence[str]

    @property
    def summary(self) -> str:
        """How many numbers became slower and faster, in a line."""
        verdicts = [change.verdict for change in self.changes]
        told = [f"{verdicts.count(one)} {one}" for one in ("slower", "faster", "within the spread")]
        if few := verdicts.count("too few repeats"):
            told.append(f"{few} of fewer than {LEAST_REPEATS} repeats, which say too little")
        return f"{words.count(len(verdicts), 'number')} compared: {', '.join(told)}"

    @property
    def rows(self) -> Iterator[tuple[str, ...]]:
        """Verdict, by how much, what, before and after."""
        for one in self.changes:
            yield one.verdict, one.by, named(one.key), _amount(one.before), _amount(one.after)


def less_is_better(unit: str) -> bool:
    """Whether a larger number of this unit is worse: seconds, bytes; not rates and ratios of them. Pure."""
    return unit in SHARES or unit.split(" ")[0] in SMALLER_IS_FASTER


def number(record: Record) -> tuple[float, float, float]:
    """The record's ratio, or its value where it has none, and from where to where it lies.

    The spread of a ratio is `ratio_spread` of the record's config: what slows the machine down for a while slows down
    both of a pair, so it is narrower than that of the value. Where it is not known, that of the value is scaled.
    """
    if record.ratio is None:
        return record.value, *record.spread
    scale = record.ratio / record.value if record.value else 0.0
    low, high = record.config.get("ratio_spread") or (end * scale for end in record.spread)
    return record.ratio, float(low), float(high)


def named(key: Key) -> str:
    """A number's name as people read it. Pure."""
    case, baseline = key
    return case if baseline is None else f"{case} / {baseline}"


def _amount(record: Record) -> str:
    value, low, high = number(record)
    unit = record.unit if record.ratio is None else "x"
    return f"{words.number(value)} {unit} ({words.number(low, 3)} to {words.number(high, 3)})"


def read_measured(path: Path) -> Measured:
    """Reads a results folder of a benchmark, or a file with its records, one JSON object a line.

    Raises:
        UsageError: It is neither; or its records are of several benchmarks, or none, or hold a number twice.
    """
    file = path / RECORDS if path.is_dir() else path
    try:
        records = read_records(file)
    except OSError as error:
        raise UsageError(
            f"{file}: {error.strerror}; give a results folder, as benchmarks/results/<name>_<machine>_<date>, or a "
            "file that a benchmark wrote by --json"
        ) from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    benchmarks = sorted({record.benchmark for record in records})
    if len(benchmarks) != 1:
        raise UsageError(f"{path}: holds records of {', '.join(benchmarks) or 'no benchmark'}; give those of one")
    keys = [(record.case, record.baseline) for record in records]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise UsageError(f"{path}: {named(twice)}: is there twice; give the records of one run")
    try:
        run = json.loads((path / RUN).read_text(encoding="utf-8")) if path.is_dir() else {}
    except (OSError, ValueError):
        run = {}
    return Measured(str(path), records, run if isinstance(run, dict) else {})


def compare(before: Measured, after: Measured) -> Comparison:
    """What changed from one run to the other. Pure.

    Raises:
        UsageError: They are of different benchmarks.
    """
    names = [one.records[0].benchmark for one in (before, after)]
    if names[0] != names[1]:
        raise UsageError(f"{before.name} is of {names[0]}, {after.name} of {names[1]}: give two runs of the same one")
    changes, others = [], list(_differing(before.about, after.about))
    old, new = before.numbers, after.numbers
    for key in [key for key in old if key in new]:
        pairs = [(getattr(old[key], name), getattr(new[key], name), name) for name in ("ranks", "unit")]
        unlike = [f"{name}: {a}, then {b}" for a, b, name in pairs if a != b]
        if unlike:
            others.append(f"not compared: {named(key)}: {'; '.join(unlike)}")
        else:
            changes.append(Change(key, old[key], new[key]))
    others += [f"only in {before.name}: {named(key)}" for key in old if key not in new]
    others += [f"only in {after.name}: {named(key)}" for key in new if key not in old]
    changes.sort(key=_order)
    warnings = list(_warnings(before, after))
    return Comparison(f"{names[0]}: {before.name}, then {after.name}", changes, warnings, others)


def _order(change: Change) -> tuple[int, float]:
    size = abs(math.log(change.factor)) if change.factor and change.factor > 0 else math.inf
    return {"slower": 0, "faster": 1}.get(change.verdict, 2), -size


def _differing(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name, words.UNKNOWN), after.get(name, words.UNKNOWN)
        if old != new:
            yield f"{name}: {old}, then {new}"


def _warnings(before: Measured, after: Measured) -> Iterator[str]:
    machine = [name for name in HARDWARE if before.about.get(name) != after.about.get(name)]
    if machine:
        yield f"the machines differ ({', '.join(machine)}): ratios may carry over, bare figures do not"
    for one in (before, after):
        if one.about.get("setting quick") == "true":
            yield f"{one.name} is a quick run: its figures mean nothing"
        if one.run and "ended" not in one.run:
            yield f"{one.name} was interrupted: it holds only what it had finished"
