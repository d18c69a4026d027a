"""Starts ranks that train jobs one after the other in the same processes, see program.py, and reads what they wrote."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from acceptance.settings import Site
from hpc_train.checkpoint.format import Snapshot, read_snapshot

WARM_UP = 0.2
"""The part of a job's steps whose times are not counted: the first ones build the graph, and fill caches."""


@dataclass(frozen=True)
class Job:
    """A job of program.py.

    Attributes:
        model: Of peers/models.py. batch: rows a rank and step.
        stops: Steps after which a run ends, and the next one goes on.
        dropout: Before the last layer; 0: none. run: of `run:`.
        by_the_step: Batches are not copied to the device ahead of the step that takes them.
    """

    name: str
    model: str
    batch: int
    stops: tuple[int, ...]
    dropout: float = 0.0
    run: Mapping[str, Any] = field(default_factory=dict)
    by_the_step: bool = False


@dataclass(frozen=True)
class Trained:
    """What a job wrote; of one with several stops, its last run.

    Attributes:
        losses, ends: Of each step, and when it was over (s). places: devices of the batches.
        before: Trainable weights before the first step. state: The last checkpoint.
    """

    losses: Sequence[float]
    ends: Sequence[float]
    places: Sequence[str]
    device: str
    before: Mapping[str, np.ndarray]
    state: Snapshot

    @property
    def step_secs(self) -> float:
        """The median step after the warm-up."""
        ends = self.ends[int(WARM_UP * len(self.ends)) :]
        return median(np.diff(ends).tolist())


def train_in_turn(
    site: Site, ranks: int, jobs: Sequence[Job], deterministic: bool = False, stand_in: bool = False
) -> dict[str, Trained]:
    """Trains jobs one after the other on so many ranks, from the rows in `site.folder`; by name what each gave.

    Args:
        deterministic: With deterministic operations, and float32 products that are not rounded to TF32.
        stand_in: A second device of the processor takes the place of a GPU for the input.

    Raises:
        RuntimeError: One failed; with what its ranks printed last.
    """
    out = site.folder / "rounds"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    plan: dict[str, Any] = {"deterministic": deterministic, "stand_in": stand_in, "jobs": [asdict(job) for job in jobs]}
    path = out / "jobs.json"
    path.write_text(json.dumps({**plan, "data": str(site.folder), "out": str(out)}))
    limit_secs = site.settings.limit_secs * len(jobs)
    site.launcher()(ranks, ["-m", "acceptance.program", str(path)], site.folder, limit_secs)
    found = {job.name: read_trained(out, job) for job in jobs}
    shutil.rmtree(out)
    return found


def read_trained(out: Path, job: Job) -> Trained:
    """What a job of program.py has left in `out`."""
    told = json.loads((out / f"{job.name}.json").read_text())
    with np.load(out / f"{job.name}.npz") as arrays:
        before = {name: arrays[name] for name in arrays.files}
    state = read_snapshot(out / job.name / "checkpoints" / f"step-{job.stops[-1]:08d}")
    return Trained(**told, before=before, state=state)
