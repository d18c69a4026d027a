"""The history of a job, read from its job-dir, for the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hpc_train.jobdir.records import Record, is_evaluation


@dataclass(frozen=True)
class Restart:
    """A run that went on from the state after `step`; `reached`: the last step that the run before reported."""

    step: int
    time: float
    reached: int
    reason: str | None


@dataclass(frozen=True)
class History:
    """All that a job-dir records of its job. What is not there is empty.

    Attributes:
        records: In the order of the file, with those that are superseded.
        job: job.yaml, read; job_text: as it is there.
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
        return tuple(sorted({record.kind for record in self.records if is_evaluation(record.kind)}))

    @property
    def name(self) -> str:
        """The job's, or that of its job-dir."""
        name = self.job.get("name")
        return name if isinstance(name, str) and name else self.job_dir.absolute().name


def with_runs(records: Iterable[Record]) -> tuple[tuple[Record, ...], tuple[Restart, ...]]:
    """The records of all runs of a job, with `elapsed` and `superseded`, and where runs went on. Pure."""
    found: list[Record] = []
    restarts: list[Restart] = []
    began = 0.0  # when a run that had lasted since the first start without a pause would have begun
    for record in records:
        if not found:
            began = record.time
        elif record.kind == "start":
            last = found[-1]
            began += record.time - last.time
            reached = max((r.step for r in found if not r.superseded and r.kind == "train"), default=0)
            found = [replace(r, superseded=True) if r.step > record.step else r for r in found]
            if any(r.kind == "start" for r in found):
                restarts.append(Restart(record.step, record.time, reached, _reason(record, last)))
        before = found[-1].elapsed if found else 0.0
        found.append(replace(record, elapsed=max(before, record.time - began)))
    return tuple(found), tuple(restarts)


def _reason(start: Record, last: Record) -> str | None:
    """Why a run was needed, by its own words or by how the one before ended."""
    if reason := start.text("reason"):
        return reason
    if last.kind != "end":
        return None
    state, reason = last.text("state"), last.text("reason")
    return ": ".join(part for part in (state, reason) if part) or None
