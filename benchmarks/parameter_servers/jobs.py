"""Jobs of the package that train the MLP of overhead.py, and what they report."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from peers.jobs import job_file as peers_job
from peers.models import MLP
from support.launch import Ranks, here, process_secs

from parameter_servers.settings import BATCH, LEARNING_RATE, WORKERS, Jobs

RECORD_EXAMPLES = 20 * BATCH * WORKERS
"""Between two records in metrics.jsonl."""
LIMIT_SECS, START_SECS = 300.0, 60.0


@dataclass(frozen=True)
class Job:
    """A way to train.

    Attributes:
        run: Of the job file. batches_a_step: that one update is made of. delays: milliseconds that a rank
            sleeps after each step, by rank.
    """

    way: str
    ranks: int
    run: Mapping[str, object]
    batches_a_step: int
    delays: Mapping[int, int] = field(default_factory=dict)


def job_file(job: Job, examples: int) -> dict[str, Any]:
    """The job file for training on so many examples."""
    of_a_step = BATCH * job.batches_a_step
    every = max(1, min(RECORD_EXAMPLES, examples // 4) // of_a_step)
    found = peers_job(MLP, {"save_summary_steps": every, **job.run})
    found["params"]["learning_rate"] = LEARNING_RATE * job.batches_a_step
    found["train"] = {"max_steps": examples // of_a_step}
    return found


def arguments(folder: Path, job: Job, examples: int) -> tuple[list[str], Path]:
    """Writes the job file; returns what Python is to run, and the job-dir, which is empty."""
    (folder / "job.yaml").write_text(yaml.safe_dump(job_file(job, examples)))
    job_dir = folder / "run"
    shutil.rmtree(job_dir, ignore_errors=True)
    delays = [word for rank, millis in job.delays.items() for word in ("--debug-delay", f"{rank}:{millis}")]
    return ["-m", "hpc_train", "train", "job.yaml", "--job-dir", str(job_dir), *delays], job_dir


def run_job(folder: Path, job: Job, examples: int, how: Jobs) -> dict[str, Any]:
    """Trains on so many examples; what `read_metrics` gives."""
    program, job_dir = arguments(folder, job, examples)
    here()(job.ranks, program, folder, LIMIT_SECS)
    records = [json.loads(line) for line in (job_dir / "metrics.jsonl").read_text().splitlines()]
    return read_metrics(records, BATCH * job.batches_a_step, how.warm_up_secs, how.loss)


def read_metrics(
    records: Sequence[Mapping[str, Any]], examples: int, warm_up_secs: float, loss: float
) -> dict[str, Any]:
    """From the records of metrics.jsonl of a job whose steps have so many `examples`. Pure.

    Returns:
        `rate`: examples a second, from the first record after the warm-up to the last. `secs_to_loss`: when the mean
        of three records' losses first fell below `loss`, from the first record on; None: never. `staleness`:
        gradients by staleness.

    Raises:
        RuntimeError: Training was over before the warm-up was.
    """
    train = [record for record in records if record["kind"] == "train"]
    secs = [record["time"] - train[0]["time"] for record in train]
    first = next((i for i, since in enumerate(secs) if since >= warm_up_secs), len(secs))
    if first >= len(secs) - 1:
        raise RuntimeError(f"{secs[-1]:.1f} s of training are too short for {warm_up_secs} s of warm-up")
    rate = examples * (train[-1]["step"] - train[first]["step"]) / (secs[-1] - secs[first])
    below = np.flatnonzero(np.convolve([record["loss"] for record in train], np.full(3, 1 / 3), "valid") < loss)
    reached = secs[int(below[0]) + 2] if below.size else None
    return {"rate": rate, "secs_to_loss": reached, "staleness": train[-1].get("staleness", {})}


def watch_server(folder: Path, job: Job, secs: float, env: Mapping[str, str]) -> float:
    """The share of a core that rank 0 takes once the job has begun to train, for so long."""
    program, job_dir = arguments(folder, job, 10**6)
    status = job_dir / "status.json"
    with Ranks(job.ranks, program, folder, env) as started:
        end = time.monotonic() + START_SECS
        while not status.exists() or not json.loads(status.read_text()).get("step"):
            if not started.running:
                started.wait(0)
                raise RuntimeError("a job that was to be watched has ended")
            if time.monotonic() > end:
                raise RuntimeError(f"a job that was to be watched has not begun to train after {START_SECS:.0f} s")
            time.sleep(0.1)
        pid = json.loads(status.read_text())["pid"]
        time.sleep(1.0)
        cpu, wall = process_secs(pid), time.perf_counter()
        time.sleep(secs)
        return (process_secs(pid) - cpu) / (time.perf_counter() - wall)
