"""Finished jobs of a curve that is not finished yet: an interrupted run keeps them, and goes on behind them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from scale.jobs import Case, Run

NAME = "jobs.jsonl"


class Journal:
    """What each job told, one JSON object a line, in the folder of results; local.

    Args:
        run_id: Of the run that the folder belongs to: jobs of another one do not count.
    """

    def __init__(self, folder: Path, run_id: str) -> None:
        self._path, self._run_id = folder / NAME, run_id
        self._kept: dict[str, Run] = {}
        whole = ""
        if self._path.exists():
            whole, _, _ = self._path.read_text().rpartition("\n")  # a last line without its end was cut off
        for line in whole.splitlines():
            told = json.loads(line)
            if told["run_id"] == run_id:
                self._kept[told["job"]] = _run(told["run"])
        self._write("w", self._kept)

    def get(self, unit: str, case: Case, turn: int) -> Run | None:
        """The job of a case in turn number `turn`, where it is finished."""
        return self._kept.get(_key(unit, case, turn))

    def put(self, unit: str, case: Case, turn: int, run: Run) -> None:
        """Keeps a finished job, on the disk when this returns."""
        key = _key(unit, case, turn)
        self._kept[key] = run
        self._write("a", {key: run})

    def _write(self, mode: Literal["w", "a"], jobs: Mapping[str, Run]) -> None:
        with open(self._path, mode) as file:
            for key, run in jobs.items():
                file.write(json.dumps({"run_id": self._run_id, "job": key, "run": asdict(run)}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """All curves are measured: the records have it all."""
        self._path.unlink(missing_ok=True)


def _key(unit: str, case: Case, turn: int) -> str:
    return f"{unit}, {case.way}, {case.workers}, {turn}"


def _run(told: dict[str, Any]) -> Run:
    return Run(**{**told, "rates": tuple(told["rates"]), "step_secs": tuple(told["step_secs"])})
