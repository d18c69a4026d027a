"""Tiny jobs for slurm/train.sh on a test cluster: written, submitted, and watched through what they leave."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any, NoReturn

import h5py
import numpy as np
import pytest
import yaml

from tests.forks import forks
from tests.slurm.cluster import JobResult, SlurmCluster
from tests.support import REPOSITORY, environment, records_of, wait_for

TRAIN_SH = str(REPOSITORY / "slurm/train.sh")

MODEL = """\
import os
import time
from pathlib import Path

import keras
import tensorflow as tf

STEP_SECS = Path(__file__).with_name("step_secs")


class Slow(keras.layers.Layer):
    \"\"\"Makes a training step take as long as the file step_secs says, now; 0 s without it.\"\"\"

    def call(self, x, training=False):
        if training:
            tf.py_function(self.wait, [], [])
        return x

    def wait(self):
        begin = time.monotonic()
        while (left := begin + step_secs() - time.monotonic()) > 0:
            time.sleep(min(left, 0.5))  # the file may say less meanwhile


def step_secs():
    return float(STEP_SECS.read_text()) if STEP_SECS.exists() else 0.0


def build_model(params):
    model = keras.Sequential(
        [keras.Input((8,)), Slow(), keras.layers.Dense(params["units"], activation="tanh"), keras.layers.Dense(2)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    return model
"""


def not_here(reason: str) -> NoReturn:
    """Skips; fails in CI, where everything is installed and a skip would hide that these tests never ran."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def job_environment(cluster: SlurmCluster, anew: bool = False) -> dict[str, str]:
    """What a job needs to find the hpc-train and mpirun of this Python. Skips where there are none.

    `anew`: its ranks are processes of their own from the start, see tests/forks.py.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), cluster.env["PATH"]])
    for program in ("hpc-train", "mpirun"):
        if shutil.which(program, path=path) is None:
            not_here(f"{program} is not beside {sys.executable}: run make setup first")
    # mpirun prints which rank is on which node. The loopback interface is for machines that have no other.
    found = {"PATH": path, "OMPI_MCA_rmaps_base_display_map": "1", "OMPI_MCA_btl_tcp_if_include": "lo"}
    return found if anew else {**found, **forks(environment())}


def make_folder(folder: Path) -> Path:
    """A folder as a user has it, made here: a model, shards, and job.yaml for 20 steps."""
    (folder / "data").mkdir(parents=True)
    (folder / "model.py").write_text(MODEL)
    generator = np.random.default_rng(0)
    for name, rows in (("train-0", 96), ("train-1", 160), ("test-0", 40)):
        x = generator.normal(size=(rows, 8)).astype(np.float32)
        with h5py.File(folder / f"data/{name}.h5", "w") as file:
            file["x"] = x
            file["y"] = (x.sum(axis=1) > 0).astype(np.int64)
    write_job(folder, max_steps=20, save_checkpoints_steps=10)
    return folder


def write_job(folder: Path, max_steps: int, save_checkpoints_steps: int, **more: Any) -> None:
    """Writes `folder/job.yaml`; `more` are further top-level keys."""
    shards = {"shards": "data/train-*.h5", "features": "x", "label": "y", "batch_size": 8}
    job = {
        "name": "tiny",
        "model": "model.py:build_model",
        "params": {"units": 8},
        "data": {
            "train": {**shards, "shuffle": "global", "seed": 1},
            "eval": {**shards, "shards": "data/test-*.h5"},
        },
        "run": {"save_checkpoints_steps": save_checkpoints_steps, "tf_random_seed": 1, "report": False},
        "train": {"max_steps": max_steps},
        "eval": {"throttle_secs": 0, "exporters": {"final": {}}},
        **more,
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))


def set_step_secs(folder: Path, secs: float) -> None:
    """From now on a training step of the job in `folder` takes about so long, also of one that runs."""
    temporary = folder / "step_secs.new"
    temporary.write_text(str(secs))
    temporary.replace(folder / "step_secs")


def log(folder: Path) -> str:
    path = folder / "job.out"
    return path.read_text(errors="replace") if path.exists() else ""


def status(job_dir: Path) -> dict[str, Any]:
    return dict(json.loads((job_dir / "status.json").read_text()))


def newest_step(job_dir: Path) -> int:
    """The step of the newest checkpoint; -1 where there is none."""
    names = [path.name for path in job_dir.glob("checkpoints/step-*") if re.fullmatch(r"step-\d{8}", path.name)]
    return max((int(name.removeprefix("step-")) for name in names), default=-1)


def wait_for_checkpoint(job_dir: Path) -> int:
    """Waits until the job has saved, and returns the newest step saved."""
    wait_for(lambda: newest_step(job_dir) >= 0, f"a checkpoint in {job_dir}")
    return newest_step(job_dir)


def starts(job_dir: Path) -> list[int]:
    """The steps that the runs of the job began at, from metrics.jsonl."""
    return [record["step"] for record in records_of(job_dir, "start")]


def ended_as(result: JobResult) -> tuple[str, int, int]:
    """Slurm's state of a job, its exit code, and how often it was started again."""
    return result.state, result.exit_code, result.restarts
