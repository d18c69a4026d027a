"""JobDir: the one reader of what a job leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_train.config.yaml_loader import Document, read_yaml
from hpc_train.errors import UserError
from hpc_train.files import read_bytes
from hpc_train.jobdir.history import History, with_runs
from hpc_train.jobdir.paths import (
    CHECKPOINTS,
    EARLY_STOP_FILE,
    ENVIRONMENT_FILE,
    EXPORTS,
    JOB_FILE,
    WARM_START_FILE,
    checkpoint_steps,
)
from hpc_train.jobdir.records import Record, is_evaluation, lines_of, records_of
from hpc_train.telemetry.files import METRICS_FILE, STATUS_FILE
from hpc_train.telemetry.json_files import read_json
from hpc_train.telemetry.status import read_status

MARKS = (METRICS_FILE, STATUS_FILE, JOB_FILE, ENVIRONMENT_FILE)
"""A folder that holds none of these is no job-dir."""
MAX_JOB_BYTES, MAX_JOB_VALUES = 16 << 20, 1_000_000
"""Of job.yaml: a program's job may have larger parameters than a job file."""

Evaluations = dict[str, dict[int, dict[str, float]]]
"""Metrics by name, by the kind of the evaluation ("eval", "eval_<name>") and the step."""


@dataclass(frozen=True)
class JobDir:
    """What the job in the folder `path` has left so far. Local; making one reads nothing.

    Each method reads what it gives anew, since the job may be running. Files may be damaged, or another program's:
    reads are bounded, types are checked, and what cannot be read counts as not there, except where a method says so.
    """

    path: Path

    @property
    def checkpoints_path(self) -> Path:
        """The folder of checkpoints."""
        return self.path / CHECKPOINTS

    def is_one(self) -> bool:
        """Whether the folder holds what a job leaves."""
        return any((self.path / name).is_file() for name in MARKS)

    def status(self) -> dict[str, Any]:
        """status.json (see StatusFile); empty where there is none."""
        return read_status(self.path)

    def environment(self) -> dict[str, Any]:
        """environment.json: versions, ranks and variables; empty where there is none."""
        return read_json(self.path / ENVIRONMENT_FILE)

    def early_stop(self) -> dict[str, Any]:
        """early_stop.json: why training ended early; empty where it did not."""
        return read_json(self.path / EARLY_STOP_FILE)

    def warm_start(self) -> dict[str, Any]:
        """warm_start.json: where the first values came from; empty where they are the model's own."""
        return read_json(self.path / WARM_START_FILE)

    def job(self) -> Document:
        """job.yaml, whose paths are absolute, or below the job-dir (see code_paths).

        Raises:
            UserError: There is none, or it is no mapping, too large, or no YAML.
        """
        path = self.path / JOB_FILE
        if not path.is_file():
            raise UserError(f"{path}: no such file; JOBDIR is where a job keeps everything")
        document = read_yaml(path, MAX_JOB_BYTES, MAX_JOB_VALUES, follow=False)
        if not isinstance(document.value, dict):
            raise UserError(f"{path}: is no mapping, as a job's is; it was not written by hpc-train")
        return document

    def records(self, wanted: Callable[[str], bool] = lambda kind: True) -> Iterator[Record]:
        """The records of metrics.jsonl that are of a `wanted` kind, in the order in which they were written."""
        return records_of(lines_of(self.path / METRICS_FILE), wanted)

    def evaluations(self, first_step: int | None = None) -> Evaluations:
        """All evaluations but those that a later run superseded.

        A "start" record takes back records above it with a larger step; with `first_step`, a run is about to begin
        there.
        """
        found: Evaluations = {}
        for record in self.records(lambda kind: kind == "start" or is_evaluation(kind)):
            if record.kind == "start":
                found = _up_to(record.step, found)
            else:
                found.setdefault(record.kind, {})[record.step] = record.metrics()
        return found if first_step is None else _up_to(first_step, found)

    def evaluation_of(
        self, checkpoint_time: float, kind: str, what: str | None = None, only_last: bool = False
    ) -> dict[str, float] | None:
        """The metrics of the newest evaluation of the checkpoint taken at `checkpoint_time`; None where there is none.

        Args:
            kind: "eval" or "eval_<name>".
            what: Of which data (Evaluator.what); None: of any.
            only_last: Of those made when training had ended: it may have changed the weights for them.
        """
        found = None
        for record in self.records(lambda other: other == kind):
            values = record.values
            if values.get("checkpoint_time") != checkpoint_time or (what is not None and values.get("what") != what):
                continue
            if values.get("last") is True or not only_last:
                found = record
        return found.metrics() if found is not None else None

    def checkpoints(self) -> list[int]:
        """The steps of the checkpoints, lowest first; whether they are whole is not looked at."""
        with suppress(OSError):
            return checkpoint_steps(self.checkpoints_path)
        return []

    def exports(self) -> dict[str, frozenset[str]]:
        """The names of the exports, which are numbers, by exporter."""
        found: dict[str, frozenset[str]] = {}
        with suppress(OSError):
            for exporter in (self.path / EXPORTS).iterdir():
                found[exporter.name] = frozenset(path.name for path in exporter.glob("*") if path.name.isdecimal())
        return found

    def history(self) -> History:
        """All of it, for the report."""
        text, job = "", {}
        with suppress(OSError):
            text = read_bytes(self.path / JOB_FILE, MAX_JOB_BYTES).decode(errors="replace")
        with suppress(UserError):
            job = self.job().value
        records, restarts = with_runs(self.records())
        return History(
            self.path,
            records,
            restarts,
            self.status(),
            job,
            text,
            self.environment(),
            self.early_stop(),
            self.warm_start(),
            self.exports(),
        )


def _up_to(step: int, evaluations: Evaluations) -> Evaluations:
    return {kind: {s: metrics for s, metrics in steps.items() if s <= step} for kind, steps in evaluations.items()}
