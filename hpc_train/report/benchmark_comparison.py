"""Two runs of a benchmark of benchmarks/: what became slower or faster, by how much, and whether beyond the spread.

Pure apart from `read_run`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpc_train.errors import UserError
from hpc_train.report import words

RECORDS, RUN = "records.jsonl", "run.json"
SMALLER_IS_FASTER = frozenset(
    {
        *("ns", "us", "µs", "μs", "ms", "s", "min", "h", "seconds", "bytes", "byte"),
        *("B", "kB", "KB", "MB", "GB", "KiB", "MiB", "GiB"),
    }
)
"""First words of units of which less is better; rates, as GB/s and examples/s, are no such units."""
SHARES = frozenset({"of a core", "% of step"})
HARDWARE = ("cpu", "cores", "nodes", "gpus", "memory_gib", "last_level_cache")

Key = tuple[str, str | None]
"""Case and baseline: they name a number."""
Verdict = Literal["slower", "faster", "within the spread", "too few repeats"]
LEAST_REPEATS = 4
"""From the lowest to the highest of fewer repeats, ranges of the same thing lie apart by chance once in ten times, or
more often; of four, 3 times in 100."""


@dataclass(frozen=True)
class Measured:
    """A number of a run.

    Attributes:
        value: Of `unit`, or the ratio to the baseline where it was compared with one. low, high: its spread, see
            `_number_of`. repeats: That the spread is of.
    """

    ranks: int
    value: float
    low: float
    high: float
    unit: str
    is_ratio: bool
    repeats: int


@dataclass(frozen=True)
class Run:
    """What a results folder, or a file of records, holds.

    Attributes:
        about: Machine, versions and settings by name, as text. finished: False where run.json says that it is not.
    """

    name: str
    benchmark: str
    numbers: Mapping[Key, Measured]
    about: Mapping[str, str]
    finished: bool = True


@dataclass(frozen=True)
class Change:
    """A number that both runs have."""

    key: Key
    before: Measured
    after: Measured

    @property
    def factor(self) -> float | None:
        """The number over what it was; None where that was 0."""
        return self.after.value / self.before.value if self.before.value else None

    @property
    def verdict(self) -> Verdict:
        """Slower or faster only where the spreads do not overlap, and are of LEAST_REPEATS or more."""
        if min(self.before.repeats, self.after.repeats) < LEAST_REPEATS:
            return "too few repeats"
        if self.after.low > self.before.high:
            return "slower" if less_is_better(self.before.unit) else "faster"
        if self.after.high < self.before.low:
            return "faster" if less_is_better(self.before.unit) else "slower"
        return "within the spread"

    @property
    def loss(self) -> float:
        """How much worse it is, as a logarithm; negative where it is better."""
        if not self.factor or self.factor < 0:
            worse = (
                self.after.value - self.before.value
                if less_is_better(self.before.unit)
                else (self.before.value - self.after.value)
            )
            return math.copysign(math.inf, worse) if worse else 0.0
        change = math.log(self.factor)
        return change if less_is_better(self.before.unit) else -change


@dataclass(frozen=True)
class Comparison:
    """Two runs of the same benchmark.

    Attributes:
        changes: What became slower first, the worst above; then faster, the best above; then the rest.
        only_before, only_after: Numbers of one of them.
        unlike: Numbers of both that cannot be compared, and why. differing: of machine, versions and settings.
        warnings: What a reader must know first.
    """

    before: Run
    after: Run
    changes: Sequence[Change]
    only_before: Sequence[Key]
    only_after: Sequence[Key]
    unlike: Sequence[tuple[Key, str]]
    differing: Sequence[tuple[str, str, str]]
    warnings: Sequence[str]


def less_is_better(unit: str) -> bool:
    """Whether a larger number of this unit is worse: seconds, bytes; not rates and ratios of them. Pure."""
    return unit in SHARES or unit.split(" ")[0] in SMALLER_IS_FASTER


def read_run(path: Path) -> Run:
    """Reads a results folder of a benchmark, or a file with its records, one JSON object a line.

    A last line that was not written to its end is left out.

    Raises:
        UserError: It is neither; or its records are of several benchmarks, or none.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file or folder; give a results folder of a benchmark, or its records")
    file = path / RECORDS if path.is_dir() else path
    if not file.is_file():
        raise UserError(
            f"{path}: is no results folder of a benchmark: it holds no {RECORDS}; give a folder as "
            "benchmarks/results/<name>_<machine>_<date>, or a file that a benchmark wrote by --json"
        )
    try:
        whole, _, _ = file.read_text(encoding="utf-8", errors="replace").rpartition("\n")
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    lines = whole.splitlines()
    records = [_record(file, number, line) for number, line in enumerate(lines, start=1)]
    return make_run(str(path), records, _run_file(path) if path.is_dir() else {})


def _record(file: Path, number: int, line: str) -> dict[str, Any]:
    try:
        told = json.loads(line)
    except ValueError:
        told = None
    if not isinstance(told, dict) or not isinstance(told.get("case"), str) or _number_of(told) is None:
        raise UserError(f"{file}, line {number}: is no record of a benchmark, which are JSON objects, one a line")
    return told


def _run_file(folder: Path) -> dict[str, Any]:
    try:
        told = json.loads((folder / RUN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def make_run(name: str, records: Sequence[Mapping[str, Any]], run_file: Mapping[str, Any]) -> Run:
    """A run of its records and of what its run.json says, if it has one. Pure.

    Raises:
        UserError: The records are of several benchmarks, or there are none, or two of the same case and baseline.
    """
    benchmarks = {str(record.get("benchmark")) for record in records}
    if len(benchmarks) != 1:
        found = f"records of several benchmarks: {', '.join(sorted(benchmarks))}" if benchmarks else "no records"
        raise UserError(f"{name}: holds {found}; a comparison needs those of one benchmark")
    numbers: dict[Key, Measured] = {}
    for record in records:
        key, number = (record["case"], record.get("baseline")), _number_of(record)
        if key in numbers:
            raise UserError(f"{name}: {named(key)}: is there twice; give the records of one run")
        if number is not None:
            numbers[key] = number
    finished = not run_file or "ended" in run_file
    return Run(name, benchmarks.pop(), numbers, _about(records[0], run_file), finished)


def _number_of(record: Mapping[str, Any]) -> Measured | None:
    """The record's ratio, or its value where it has none; None where the record is not whole.

    The spread of a ratio is `ratio_spread` of the record's config: what slows the machine down for a while slows down
    both of a pair, so it is narrower than that of the value. Where it is not told, that of the value is scaled.
    """
    try:
        value, (low, high) = float(record["value"]), map(float, record["spread"])
        told, unit = record.get("ratio"), record["unit"]
        ratio = None if told is None else float(told)
        paired = None if ratio is None else _ratio_spread(record)
        ranks, repeats = int(record["ranks"]), int(record["repeats"])
    except (KeyError, TypeError, ValueError):
        return None
    own = value if ratio is None else ratio
    scale = own / value if value else 1.0
    ends = paired or ((low * scale, high * scale) if ratio is None or value else (own, own))
    if not isinstance(unit, str) or not all(map(math.isfinite, (own, *ends))):
        return None
    return Measured(ranks, own, min(ends), max(ends), unit, ratio is not None, repeats)


def _ratio_spread(record: Mapping[str, Any]) -> tuple[float, float] | None:
    config = record.get("config")
    told = config.get("ratio_spread") if isinstance(config, dict) else None
    if told is None:
        return None
    low, high = map(float, told)
    return low, high


def _about(record: Mapping[str, Any], run_file: Mapping[str, Any]) -> dict[str, str]:
    config = record.get("config")
    told = config.get("machine") if isinstance(config, dict) else None
    parts = [run_file.get("machine") or told, run_file.get("versions") or record.get("versions")]
    about = {str(name): str(value) for part in parts if isinstance(part, dict) for name, value in part.items()}
    settings = run_file.get("settings")
    for name, value in settings.items() if isinstance(settings, dict) else ():
        about[f"setting {name}"] = value if isinstance(value, str) else json.dumps(value)
    return about


def compare(before: Run, after: Run) -> Comparison:
    """What changed from one run to the other. Pure.

    Raises:
        UserError: They are of different benchmarks.
    """
    if before.benchmark != after.benchmark:
        raise UserError(
            f"different benchmarks: {before.name} is of {before.benchmark}, {after.name} of {after.benchmark}; "
            "a comparison needs two runs of the same one"
        )
    changes, unlike = [], []
    for key, old in before.numbers.items():
        new = after.numbers.get(key)
        if new is not None and (why := _unlike(old, new)):
            unlike.append((key, why))
        elif new is not None:
            changes.append(Change(key, old, new))
    order = {"slower": 0, "faster": 1}
    changes.sort(key=lambda change: (order.get(change.verdict, 2), -abs(change.loss)))
    return Comparison(
        before,
        after,
        changes,
        [key for key in before.numbers if key not in after.numbers],
        [key for key in after.numbers if key not in before.numbers],
        unlike,
        _differing(before, after),
        _warnings(before, after),
    )


def _unlike(old: Measured, new: Measured) -> str:
    pairs = (("ranks", old.ranks, new.ranks), ("unit", old.unit, new.unit), ("ratio", old.is_ratio, new.is_ratio))
    return "; ".join(f"{name}: {a}, then {b}" for name, a, b in pairs if a != b)


def _differing(before: Run, after: Run) -> list[tuple[str, str, str]]:
    names = dict.fromkeys([*before.about, *after.about])
    told = [(name, before.about.get(name, words.UNKNOWN), after.about.get(name, words.UNKNOWN)) for name in names]
    return [(name, old, new) for name, old, new in told if old != new]


def _warnings(before: Run, after: Run) -> list[str]:
    found = []
    machine = [name for name in HARDWARE if before.about.get(name) != after.about.get(name)]
    if machine:
        found.append(f"the machines differ ({', '.join(machine)}): ratios may carry over, bare figures do not")
    for run in (before, after):
        if run.about.get("setting quick") == "true":
            found.append(f"{run.name} is a quick run: its figures mean nothing")
        if not run.finished:
            found.append(f"{run.name} was interrupted: it holds only what it had finished")
    return found


def named(key: Key) -> str:
    """A number's name as people read it. Pure."""
    case, baseline = key
    return case if baseline is None else f"{case} / {baseline}"
