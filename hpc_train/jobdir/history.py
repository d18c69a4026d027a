"""What a job-dir tells of its job, read back: for the report."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from hpc_train.telemetry.metrics import METRICS_FILE
from hpc_train.telemetry.status import STATUS_FILE, read_status

JOB_FILES = (METRICS_FILE, STATUS_FILE, "job.yaml", "environment.json")
"""A folder that holds none of these is no job-dir."""
MOST_STEPS, LATEST = 10**15, 10**11
"""Beyond these, steps and seconds since 1970 are none."""


@dataclass(frozen=True)
class Record:
    """One line of metrics.jsonl.

    Attributes:
        time: Seconds since 1970.
        elapsed: Seconds that the job had been running by then, without the time between its runs.
        values: All that the line holds besides kind, step and time, as it stands there.
        superseded: A later run began at a smaller step, so this was done again.
    """

    kind: str
    step: int
    time: float
    elapsed: float
    values: Mapping[str, Any]
    superseded: bool = False

    def number(self, name: str) -> float | None:
        """A value that is a finite number; None where it is none."""
        return as_number(self.values.get(name))

    def text(self, name: str) -> str | None:
        """A value that is a text."""
        value = self.values.get(name)
        return value if isinstance(value, str) else None

    def names(self) -> list[str]:
        """Of the values that are numbers, or null."""
        return [name for name, value in self.values.items() if value is None or _is_number(value)]


@dataclass(frozen=True)
class Restart:
    """A run that went on from the state after `step`; `reached`: the last step that the run before told of."""

    step: int
    time: float
    reached: int
    reason: str | None


@dataclass(frozen=True)
class History:
    """All that a job-dir tells. What is not there is empty.

    Attributes:
        records: In the order of the file, with those that are superseded.
        job: job.yaml, read; job_text: as it stands.
        exports: By exporter, the names of the exports that are there.
    """

    job_dir: Path
    records: tuple[Record, ...] = ()
    restarts: tuple[Restart, ...] = ()
    status: Mapping[str, Any] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)
    job_text: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)
    early_stop: Mapping[str, Any] = field(default_factory=dict)
    warm_start: Mapping[str, Any] = field(default_factory=dict)
    exports: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def series(self, kind: str) -> tuple[Record, ...]:
        """The records of a kind that still hold, by step, one for each step."""
        return self._series.get(kind, ())

    @cached_property
    def _series(self) -> dict[str, tuple[Record, ...]]:
        last: dict[str, dict[int, Record]] = {}
        for record in self.records:
            if not record.superseded:
                last.setdefault(record.kind, {})[record.step] = record
        return {kind: tuple(by_step[step] for step in sorted(by_step)) for kind, by_step in last.items()}

    def all_of(self, *kinds: str) -> tuple[Record, ...]:
        """All records of these kinds, in the order in which they were written."""
        return tuple(record for record in self.records if record.kind in kinds)

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        """The kinds of evaluation there are: "eval" first, then "eval_<name>" by name."""
        kinds = {record.kind for record in self.records}
        return tuple(sorted(kind for kind in kinds if kind == "eval" or kind.startswith("eval_")))

    @property
    def name(self) -> str:
        """The job's, or that of its job-dir."""
        name = self.job.get("name")
        return name if isinstance(name, str) and name else self.job_dir.absolute().name


def read_history(job_dir: Path) -> History:
    """Reads a job-dir. What is missing, or cannot be read, is left out; nothing is raised for it."""
    lines: list[str] = []
    with suppress(OSError):
        lines = (job_dir / METRICS_FILE).read_bytes().decode(errors="replace").split("\n")
    records, restarts = parse_records(lines)
    text, job = "", None
    with suppress(OSError, yaml.YAMLError, ValueError, RecursionError):
        text = (job_dir / "job.yaml").read_bytes().decode(errors="replace")
        job = yaml.safe_load(text)
    return History(
        job_dir,
        records,
        restarts,
        read_status(job_dir),
        job if isinstance(job, dict) else {},
        text,
        _read_json(job_dir / "environment.json"),
        _read_json(job_dir / "early_stop.json"),
        _read_json(job_dir / "warm_start.json"),
        _exports_in(job_dir / "export"),
    )


def _exports_in(folder: Path) -> dict[str, frozenset[str]]:
    """The folders with numbers for names, by the folder that holds them."""
    found: dict[str, frozenset[str]] = {}
    with suppress(OSError):
        for exporter in folder.iterdir():
            found[exporter.name] = frozenset(path.name for path in exporter.glob("*") if path.name.isdecimal())
    return found


def is_job_dir(folder: Path) -> bool:
    """Whether a folder holds what a job leaves."""
    return any((folder / name).is_file() for name in JOB_FILES)


def parse_records(lines: Iterable[str]) -> tuple[tuple[Record, ...], tuple[Restart, ...]]:
    """What the lines of a metrics.jsonl say. Pure; a line that says nothing, such as half of one, is passed over."""
    records: list[Record] = []
    restarts: list[Restart] = []
    began = 0.0  # when a run that had lasted since the first start without a pause would have begun
    for line in lines:
        record = _record(line)
        if record is None:
            continue
        if not records:
            began = record.time
        elif record.kind == "start":
            last = records[-1]
            began += record.time - last.time
            reached = max((r.step for r in records if not r.superseded and r.kind == "train"), default=0)
            records = [replace(r, superseded=True) if r.step > record.step else r for r in records]
            if any(r.kind == "start" for r in records):
                restarts.append(Restart(record.step, record.time, reached, _reason(record, last)))
        before = records[-1].elapsed if records else 0.0
        records.append(replace(record, elapsed=max(before, record.time - began)))
    return tuple(records), tuple(restarts)


def _reason(start: Record, last: Record) -> str | None:
    """Why a run was needed, by its own words or by how the one before ended."""
    if reason := start.text("reason"):
        return reason
    if last.kind != "end":
        return None
    state, reason = last.text("state"), last.text("reason")
    return ": ".join(part for part in (state, reason) if part) or None


def _record(line: str) -> Record | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    kind, step, time = (
        fields.pop("kind", None),
        as_number(fields.pop("step", None)),
        as_number(fields.pop("time", None)),
    )
    if not isinstance(kind, str) or step is None or time is None or step != int(step):
        return None
    if not (0 <= step < MOST_STEPS and 0 <= time < LATEST):
        return None
    return Record(kind, int(step), time, 0.0, fields)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_number(value: object) -> float | None:
    """A finite number from JSON; None for everything else."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            number = float(value)
            return number if math.isfinite(number) else None
    return None


def _read_json(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        fields = json.loads(path.read_bytes().decode(errors="replace"))
        return fields if isinstance(fields, dict) else {}
    return {}
