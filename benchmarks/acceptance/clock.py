"""A hook of your own job: the loss and the end of each step, evaluations, and the end once a metric is good enough."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acceptance.metric import Wanted
from hpc_train import Hook, HookContext

CLOCK = "HPC_BENCHMARK_CLOCK"
"""Names the file that the hook writes to; `wanted` beside it, where it is there, has a Wanted to end at."""
WANTED = "wanted.json"


class Clock(Hook):
    """Writes losses, the ends of steps (s, without what evaluations took), and the metrics of each evaluation.

    Args:
        wanted: Once an evaluation has reached it, training ends.
    """

    chief_only = True
    needs_state = False

    def __init__(self, path: Path, wanted: Wanted | None) -> None:
        self._path, self._wanted = path, wanted
        self._losses: list[float] = []
        self._ends: list[float] = []
        self._evaluations: list[dict[str, Any]] = []
        self._paused = self._begun = 0.0

    def begin(self, context: HookContext) -> None:
        self._context = context

    def after_step(self, step: int, loss: float) -> None:
        self._losses.append(loss)
        self._ends.append(time.perf_counter() - self._paused)

    def before_evaluate(self, step: int, name: str | None) -> None:
        self._begun = time.perf_counter()

    def after_evaluate(self, step: int, name: str | None, metrics: Mapping[str, float]) -> None:
        self._paused += time.perf_counter() - self._begun
        secs = self._ends[-1] - self._ends[0] if self._ends else 0.0
        self._evaluations.append({"step": step, "secs": secs, "metrics": dict(metrics)})
        if self._wanted is not None and self._wanted.reached(self._wanted.value_in(metrics)):
            self._context.request_stop(f"{self._wanted} is reached")

    def end(self, step: int) -> None:
        self._write()

    def _write(self) -> None:
        told = {"losses": self._losses, "ends": self._ends, "evaluations": self._evaluations}
        self._path.write_text(json.dumps(told))


def make_hooks() -> Clock:
    """As a job file names it."""
    path = Path(os.environ[CLOCK])
    wanted = path.with_name(WANTED)
    return Clock(path, Wanted(**json.loads(wanted.read_text())) if wanted.is_file() else None)
