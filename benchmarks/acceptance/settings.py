"""What is measured at a site, by name, and how much of it; and where it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import peers.settings
import scale.jobs
from scale.jobs import plan_variable
from support.launch import Launch, here
from support.results import Results

from acceptance.own_job import clock_variable

BENCHMARK = "gpu"
STAND_IN = "On cores, no GPU: "
"""How a part begins that has run without one; then follows what stands in for it."""


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    Attributes:
        steps: Of the jobs that are interrupted after so many, and then make as many more.
        batch: Rows a rank and step, where nothing else is said; rows: of the training data.
        timed_steps: Of each job that is timed step by step. passes: there and back so many times.
        sample_steps: Of your own job on a GPU and on cores.
        evaluations: Of a job on its way to a metric, at most.
        scale, peers: Of scaling.py and overhead.py, whose jobs take part.
        limit_secs: For one start of ranks.
    """

    steps: int
    batch: int
    rows: int
    timed_steps: int
    passes: int
    sample_steps: int
    evaluations: int
    scale: scale.jobs.Settings
    peers: peers.settings.Settings
    limit_secs: float


@dataclass(frozen=True)
class Site:
    """Where and with what all parts run.

    Attributes:
        gpus: Of this node, that are used; 0: all runs on cores.
        ranks: Numbers of ranks, smallest first. here: ranks of this node, at most.
        folder: For data and job-dirs, of each part its own. env: of all ranks, beside the launcher's own.
        allocation: Whether ranks may run wherever Slurm gave this job nodes, and see GPUs.
    """

    gpus: int
    ranks: tuple[int, ...]
    here: int
    folder: Path
    env: Mapping[str, str]
    allocation: bool
    settings: Settings
    results: Results

    def of_part(self, name: str) -> Site:
        """The same with a folder of that name, which is made."""
        folder = self.folder / name
        folder.mkdir()
        return replace(self, folder=folder)

    def launcher(self, more: Mapping[str, str] | None = None) -> Launch:
        """Starts ranks whose jobs are in `folder`, with `more` in their environment."""
        own = {**plan_variable(self.folder), **clock_variable(self.folder)}
        return here({**self.env, **own, **(more or {})}, self.allocation)

    @property
    def most(self) -> int:
        """Ranks."""
        return self.ranks[-1]
