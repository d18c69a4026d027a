"""Jobs of this package: `hpc-train train job.yaml` on so many ranks, measured by a hook."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from support.launch import Launch, here

from peers.hooks import PLAN, TOLD, Plan
from peers.measurement import Measurement, read_measurements
from peers.models import data_folder
from peers.settings import BATCH, Settings

MAX_STEPS = 10**7
"""The hook ends the job long before."""
SHUFFLE = "none"
"""The rivals take their batches in the order in which they lie, too."""
TURN_BLOCKS = 8


def job_file(model: str, run: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A job that trains `model`, with `run` changed; what is not named here is as a job has it by default."""
    rows = {"features": "x", "label": "y", "batch_size": BATCH}
    folder = data_folder(model)
    return {
        "name": "benchmark",
        "model": "peers.models:build_model",
        "params": {"model": model},
        "data": {
            "train": {**rows, "shards": f"{folder}/train-*.h5", "shuffle": SHUFFLE},
            "eval": {**rows, "shards": f"{folder}/test-*.h5"},
        },
        "run": {"tf_random_seed": 1, **(run or {})},
        "train": {"max_steps": MAX_STEPS, "hooks": ["peers.hooks:make_hooks"]},
        "eval": {"steps": 1},
    }


def run_job(
    folder: Path,
    ranks: int,
    plan: Plan,
    limit_secs: float,
    run: Mapping[str, Any] | None = None,
    launch: Launch | None = None,
) -> list[Measurement]:
    """Trains from the shards in `folder`; returns what ours reached, then the rival. See MeasuringHook.

    run: of the job file. launch: `here()` where it is not given.

    Writes the job file and the job-dir into `folder`.

    Raises:
        RuntimeError: The job failed, or took longer than `limit_secs`.
    """
    out, job_dir = folder / TOLD, folder / "run"
    (folder / PLAN).write_text(json.dumps(asdict(plan)))
    (folder / "job.yaml").write_text(yaml.safe_dump(job_file(plan.model, run)))
    out.unlink(missing_ok=True)
    shutil.rmtree(job_dir, ignore_errors=True)
    start = launch or here()
    start(ranks, ["-m", "hpc_train", "train", "job.yaml", "--job-dir", str(job_dir)], folder, limit_secs)
    return read_measurements(out)


def run_alone(
    folder: Path,
    model: str,
    ranks: int,
    settings: Settings,
    run: Mapping[str, Any] | None = None,
    launch: Launch | None = None,
) -> Measurement:
    """Trains for `turn_secs` in a job of its own, without a rival."""
    secs = settings.turn_secs / TURN_BLOCKS
    plan = Plan(model, None, TURN_BLOCKS, secs, settings.first_steps, settings.first_secs)
    return run_job(folder, ranks, plan, settings.limit_secs, run, launch)[0]
