"""Jobs of the package that train the MLP 784-1024-1024-10, and what they tell."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from support.launch import Ranks, here, process_secs

from hpc_train.data.writing.writer import write_shards
from parameter_servers.settings import BATCH, LEARNING_RATE, MOMENTUM, WORKERS

FEATURES, CLASSES, UNITS = 784, 10, 1024
HIDDEN, NOISE = 16, 0.1
SHARDS, TEST_ROWS = 4, 256
RECORD_EXAMPLES = 20 * BATCH * WORKERS
"""Between two records in metrics.jsonl."""
LIMIT_SECS, START_SECS = 300.0, 60.0

MODEL = f"""\
import keras


def build_model(params):
    hidden = [keras.layers.Dense({UNITS}, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input(({FEATURES},)), *hidden, keras.layers.Dense({CLASSES})])
    optimizer = keras.optimizers.SGD(params["learning_rate"], momentum={MOMENTUM})
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""


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


@dataclass(frozen=True)
class Told:
    """What a job told in metrics.jsonl.

    Attributes:
        steps, secs, losses: Of its records; seconds since the first one.
        staleness: Gradients by staleness.
    """

    steps: tuple[int, ...]
    secs: tuple[float, ...]
    losses: tuple[float, ...]
    staleness: Counter[int]

    def rate(self, warm_up_secs: float) -> float:
        """Steps a second, from the first record after the warm-up to the last."""
        first = next((i for i, secs in enumerate(self.secs) if secs >= warm_up_secs), len(self.secs))
        if first >= len(self.secs) - 1:
            raise RuntimeError(f"{self.secs[-1]:.1f} s of training are too short for {warm_up_secs} s of warm-up")
        return (self.steps[-1] - self.steps[first]) / (self.secs[-1] - self.secs[first])

    def secs_to(self, loss: float) -> float | None:
        """When the mean of three records' losses first fell below `loss`; None: never."""
        smooth = np.convolve(self.losses, np.full(3, 1 / 3), "valid")
        below = np.flatnonzero(smooth < loss)
        return self.secs[int(below[0]) + 2] if below.size else None


def write_folder(folder: Path, rows: int) -> None:
    """The model and its data: rows `x` that a few hidden numbers decide on, as does a random network on the class."""
    random = np.random.default_rng(1)
    shown = random.normal(size=(HIDDEN, FEATURES)).astype(np.float32) / HIDDEN**0.5
    into, out = random.normal(size=(HIDDEN, 64)) / 2, random.normal(size=(64, CLASSES))
    for name, count in (("train", rows), ("test", TEST_ROWS)):
        hidden = random.normal(size=(count, HIDDEN)).astype(np.float32)
        x = hidden @ shown + NOISE * random.standard_normal((count, FEATURES), np.float32)
        y = (np.tanh(hidden @ into) @ out).argmax(axis=1)
        write_shards(folder / "data" / name, {"x": x, "y": y.astype(np.int64)}, shards=SHARDS)
    (folder / "model.py").write_text(MODEL)


def job_file(job: Job, examples: int) -> dict[str, Any]:
    """The job file for training on so many examples."""
    rows = {"features": "x", "label": "y", "batch_size": BATCH}
    of_a_step = BATCH * job.batches_a_step
    every = max(1, min(RECORD_EXAMPLES, examples // 4) // of_a_step)
    return {
        "name": "benchmark",
        "model": "model.py:build_model",
        "params": {"learning_rate": LEARNING_RATE * job.batches_a_step},
        "data": {
            "train": {**rows, "shards": "data/train-*.h5", "seed": 1},
            "eval": {**rows, "shards": "data/test-*.h5"},
        },
        "run": {"tf_random_seed": 1, "save_summary_steps": every, **job.run},
        "train": {"max_steps": examples // of_a_step},
        "eval": {"steps": 1},
    }


def arguments(folder: Path, job: Job, examples: int) -> tuple[list[str], Path]:
    """Writes the job file; returns what Python is to run, and the job-dir, which is empty."""
    (folder / "job.yaml").write_text(yaml.safe_dump(job_file(job, examples)))
    job_dir = folder / "run"
    shutil.rmtree(job_dir, ignore_errors=True)
    delays = [word for rank, millis in job.delays.items() for word in ("--debug-delay", f"{rank}:{millis}")]
    return ["-m", "hpc_train", "train", "job.yaml", "--job-dir", str(job_dir), *delays], job_dir


def run_job(folder: Path, job: Job, examples: int) -> Told:
    """Trains on so many examples."""
    program, job_dir = arguments(folder, job, examples)
    here()(job.ranks, program, folder, LIMIT_SECS)
    return read_told([json.loads(line) for line in (job_dir / "metrics.jsonl").read_text().splitlines()])


def read_told(records: Sequence[Mapping[str, Any]]) -> Told:
    """From the records of metrics.jsonl."""
    train = [record for record in records if record["kind"] == "train"]
    staleness = train[-1].get("staleness", {})
    return Told(
        tuple(record["step"] for record in train),
        tuple(record["time"] - train[0]["time"] for record in train),
        tuple(record["loss"] for record in train),
        Counter({int(number): int(count) for number, count in staleness.items()}),
    )


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
