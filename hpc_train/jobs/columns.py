"""What a list of jobs can show and be sorted by: what is known of each job, its settings, its evaluations."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from hpc_train.config.overrides import overridden
from hpc_train.config.settings import flattened
from hpc_train.config.yaml_loader import read_yaml
from hpc_train.errors import UserError, did_you_mean
from hpc_train.jobdir.history import History, with_runs
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobdir.paths import CODE
from hpc_train.jobdir.records import is_evaluation
from hpc_train.jobs.record.status import JobStatus
from hpc_train.jobs.record.submission import read_submission
from hpc_train.report.numbers import best_of, metrics_of, mode_of

Value = str | int | float | None
OTHER_NAMES = {"number": "job_id", "left": "secs_left", "limit": "limit_secs_left", "queue": "backend"}
"""What columns of the table are called where JobStatus has another name."""
OWN = tuple(
    field.name
    for field in fields(JobStatus)
    if field.name not in ("error", "exports", "note", "finishing", "energy", "slow_ranks", "staged")
)
"""What of a JobStatus can be a column."""
EVALUATION, BEST = "evaluation.", "best."
MOST_NAMED = 12


class JobValues:
    """The values of one job by key. Its settings and its records are read when they are first asked for."""

    def __init__(self, status: JobStatus) -> None:
        self.status = status
        self._bests: dict[str, float | None] = {}

    @property
    def metrics(self) -> dict[str, float]:
        """Of the newest evaluation (of the first set)."""
        found = self.status.evaluation or {}
        return {name: value for name, value in found.items() if name != "step" and isinstance(value, int | float)}

    @cached_property
    def settings(self) -> dict[str, str]:
        """By their path in the job file; of a job that has not begun, those that it was submitted with."""
        return flattened(self._job)

    @cached_property
    def _job(self) -> dict[str, Any]:
        job_dir = Path(self.status.job_dir)
        with suppress(UserError):
            return dict(JobDir(job_dir).job().value)
        if (submission := read_submission(job_dir)) is not None:
            with suppress(UserError):
                document = read_yaml(job_dir / CODE / submission.entry, follow=False)
                job = overridden(document, submission.masked.settings).value
                if isinstance(job, dict):
                    resources = job.get("resources")
                    without = {k: v for k, v in resources.items() if k != "environment"} if resources else {}
                    return {**job, "resources": without}
        return {}

    @cached_property
    def history(self) -> History:
        """Its evaluations alone."""
        job_dir = Path(self.status.job_dir)
        records, restarts = with_runs(JobDir(job_dir).records(lambda kind: kind == "start" or is_evaluation(kind)))
        return History(job_dir, records, restarts, job=self._job)

    def best(self, metric: str) -> float | None:
        """The best value of a metric, in the first evaluation set that has it."""
        if metric not in self._bests:
            found = (best_of(self.history, kind, metric) for kind in self.history.evaluation_sets)
            self._bests[metric] = next((best.value for best in found if best is not None), None)
        return self._bests[metric]

    def mode(self, metric: str) -> Literal["min", "max"] | None:
        """Whether small or large values of a metric are good; None: unknown."""
        return mode_of(History(Path(self.status.job_dir), job=self._job), metric)


@dataclass(frozen=True)
class Key:
    """A column: what it is called, and its value of a job, None where a job has none.

    Attributes:
        own: The field of JobStatus that it is; empty for others.
        metric: The metric that it is; empty for others.
    """

    name: str
    value: Callable[[JobValues], Value]
    own: str = ""
    metric: str = ""

    def typed(self, value: Value) -> Value:
        """A setting's text as the number or truth value that it is."""
        if isinstance(value, str) and not self.own:
            with suppress(ValueError, RecursionError):
                found = json.loads(value)
                return found if isinstance(found, bool | int | float) or found is None else value
        return value


def keys_named(given: str, option: str, jobs: Sequence[JobValues]) -> list[Key]:
    """The columns that `given` names, by commas: see `docs/jobs.md`. `KEY.*` stands for all settings below KEY.

    Raises:
        UserError: None of the jobs has one of them; names the nearest that there are.
    """
    names = [name.strip() for name in given.split(",")]
    if not all(names):
        raise UserError(f"{option}: {given!r} is not allowed; allowed: names with commas between, as in state,accuracy")
    found = [key for name in names for key in _named(name, option, jobs)]
    return list({key.name: key for key in found}.values())


def _named(name: str, option: str, jobs: Sequence[JobValues]) -> list[Key]:
    own = OTHER_NAMES.get(name, name)
    if own in OWN:
        return [Key(name, lambda job: _plain(getattr(job.status, own)), own)]
    if name.endswith(".*"):
        below = dict.fromkeys(key for job in jobs for key in job.settings if key.startswith(name[:-1]))
        if below:
            return [_setting(key) for key in below]
    best = name.removeprefix(BEST) if name.startswith(BEST) else ""
    if best and any(job.best(best) is not None for job in jobs):
        return [Key(name, lambda job: job.best(best), metric=best)]
    metric = name.removeprefix(EVALUATION)
    if any(metric in job.metrics for job in jobs):
        return [Key(name, lambda job: job.metrics.get(metric), metric=metric)]
    if any(name in job.settings for job in jobs):
        return [_setting(name)]
    known = list(dict.fromkeys(_all_names(jobs)))
    ends = [key for key in known if key.endswith(f".{name}")]
    near = f"did you mean `{ends[0]}`? " if ends else did_you_mean(name, known)
    metrics = sorted({metric for job in jobs for metric in job.metrics})
    allowed = ["columns such as name, number, state, step, loss, left, submitted", "settings such as train.max_steps"]
    allowed += [f"metrics ({', '.join(metrics[:MOST_NAMED])}; best.{metrics[0]})"] if metrics else []
    raise UserError(f"{option}: no job here has {name!r}; {near}allowed: {', '.join(allowed)}")


def _setting(name: str) -> Key:
    return Key(name, lambda job: job.settings.get(name))


def _all_names(jobs: Sequence[JobValues]) -> Iterator[str]:
    yield from (*OWN, *OTHER_NAMES)
    for job in jobs:
        kinds = job.history.evaluation_sets
        yield from (*job.metrics, *job.settings)
        yield from (f"{BEST}{name}" for kind in kinds for name in metrics_of(job.history, kind))


def _plain(value: Any) -> Value:
    """Of an evaluation, the metric that the table shows."""
    if isinstance(value, dict):
        known = {name: number for name, number in value.items() if name != "step" and isinstance(number, int | float)}
        return next((number for name, number in known.items() if name != "loss"), known.get("loss"))
    return value if isinstance(value, str | int | float) else None


def in_order(jobs: Sequence[JobValues], key: Key, reverse: bool) -> list[JobValues]:
    """`jobs` by a key: metrics best first, all else from small to large; with `reverse` the other way round.

    Texts that are numbers count as such, and come before other texts. Jobs without a value are last in any case.
    """
    values = [(_comparable(key.value(job)), job) for job in jobs]
    known = [(value, job) for value, job in values if value is not None]
    falling = False
    if key.metric:
        modes = (job.mode(key.metric) for _, job in known)
        falling = next((mode for mode in modes if mode is not None), "max") == "max"
    ordered = sorted(known, key=lambda pair: pair[0], reverse=falling is not reverse)
    return [*(job for _, job in ordered), *(job for value, job in values if value is None)]


def _comparable(value: Value) -> tuple[int, float, list[tuple[int, int, str]]] | None:
    """Numbers by size; in texts, runs of digits by the number that they are."""
    if value is None or value == "null":
        return None
    with suppress(ValueError, OverflowError):
        number = float(value)
        return None if math.isnan(number) else (0, number, [])
    parts = re.findall(r"\d{1,18}|\D+", str(value))
    return 1, 0.0, [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]
