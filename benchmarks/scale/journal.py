"""Finished jobs of a curve that is not finished yet: an interrupted run keeps them, and goes on behind them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scale.jobs import Case, Run

NAME = "jobs.jsonl"


class Journal:
    """What each job told, one JSON object a line, in the folder of results; local.

    Args:
        begun: When the run began that the folder belongs to: lines of another one do not count.
    """

    def __init__(self, folder: Path, begun: str) -> None:
        self._path, self._begun = folder / NAME, begun
        self._kept: dict[str, Run] = {}
        for line in self._path.read_text().splitlines() if self._path.exists() else []:
            try:
                told = json.loads(line)
            except ValueError:
                continue  # cut off when the run was interrupted
            if told["begun"] == begun:
                self._kept[told["job"]] = _run(told["run"])

    def get(self, unit: str, case: Case, turn: int) -> Run | None:
        """The job of a case in turn number `turn`, where it is finished."""
        return self._kept.get(_key(unit, case, turn))

    def put(self, unit: str, case: Case, turn: int, run: Run) -> None:
        """Keeps a finished job, on the disk when this returns."""
        key = _key(unit, case, turn)
        self._kept[key] = run
        line = json.dumps({"begun": self._begun, "job": key, "run": asdict(run)})
        with open(self._path, "a") as file:
            file.write(f"{line}\n")
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """All curves are measured: the records have it all."""
        self._path.unlink(missing_ok=True)


def _key(unit: str, case: Case, turn: int) -> str:
    return f"{unit}, {case.way}, {case.workers}, {turn}"


def _run(told: dict[str, Any]) -> Run:
    return Run(**{**told, "rates": tuple(told["rates"]), "step_secs": tuple(told["step_secs"])})
