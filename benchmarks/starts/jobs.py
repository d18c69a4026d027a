"""The jobs that start.py runs: how long each takes to its first step, and back to one after a rank was killed."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from support.launch import REPOSITORY, Started, environment

POLL_SECS = 0.02
LIMIT_SECS = 180.0
CODE = '''"""A small convolutional network for grey images."""

import keras
from keras import layers


def build_model(params):
    """Images uint8 [B, 28, 28] to logits [B, 10]."""
    hidden = [layers.Conv2D(24, 3, use_bias=False), layers.BatchNormalization(), layers.ReLU(), layers.MaxPooling2D()]
    top = [layers.Flatten(), layers.Dropout(0.25), layers.Dense(128, activation="relu"), layers.Dense(10)]
    images = keras.Input((28, 28), dtype="uint8")
    model = keras.Sequential([images, layers.Rescaling(1 / 255), layers.Reshape((28, 28, 1)), *hidden, *top])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    return model
'''
FIT = """import sys, time

import h5py
import keras
from model import build_model


class FirstStep(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 0:
            print(time.time(), file=open("first", "w"))


with h5py.File("train-0.h5") as file:
    x, y = file["x"][:256], file["y"][:256]
build_model({}).fit(x, y, batch_size=64, epochs=1, verbose=0, callbacks=[FirstStep()])
"""
JOB = """name: start
model: model.py:build_model
data:
  train: {shards: train-*.h5, features: x, label: y, batch_size: 64, seed: 1}
  eval: {shards: train-0.h5, features: x, label: y, batch_size: 64}
run: {save_summary_steps: 1, save_checkpoints_steps: 20}
train: {max_steps: 1000000}
eval: {steps: 1, start_delay_secs: 100000}
"""


@dataclass(frozen=True)
class Checkout:
    """Where the package is that is measured."""

    folder: Path = REPOSITORY

    def launched(self, folder: Path, ranks: int, *more: str) -> Started:
        """`hpc-train launch` of the job in `folder`, whose job-dir is `job` there; to be entered."""
        words = ["launch", "-n", str(ranks), "job.yaml", "--job-dir", "job", *more]
        env = environment({"PYTHONPATH": str(self.folder), "HPC_TRAIN_PROGRESS": "lines"})
        return Started("launch", [sys.executable, "-m", "hpc_train", *words], folder, env, folder / "launch.log")


def write_job(folder: Path) -> None:
    """Writes job file, model and shards."""
    import h5py

    random = np.random.default_rng(1)
    for shard in range(4):
        with h5py.File(folder / f"train-{shard}.h5", "w") as file:
            file["x"] = random.integers(0, 256, (2048, 28, 28), np.uint8)
            file["y"] = random.integers(0, 10, 2048)
    (folder / "model.py").write_text(CODE)
    (folder / "fit.py").write_text(FIT)
    (folder / "job.yaml").write_text(JOB)


def fit(parent: Path) -> dict[str, Any]:
    """Seconds from the start of a program to the end of its first step by Keras's `fit`, alone in one process."""
    with _job(parent) as folder:
        begun = time.time()
        env = environment()
        with Started("fit", [sys.executable, "fit.py"], folder, env, folder / "fit.log") as program:
            program.wait(LIMIT_SECS)
        return {"secs": float((folder / "first").read_text()) - begun}


def start(checkout: Checkout, ranks: int, parent: Path) -> dict[str, Any]:
    """Seconds from `hpc-train launch` to the end of the first step, and of each phase where they are recorded."""
    with _job(parent) as folder:
        begun = time.time()
        with checkout.launched(folder, ranks, "--set", "train.max_steps=2") as launched:
            launched.wait(LIMIT_SECS)
        records = list(records_in(folder))
    phases = next((record["phases"] for record in records if record["kind"] == "first_step"), {})
    return {"secs": first_step(records)["time"] - begun, "phases": phases}


def restart(checkout: Checkout, ranks: int, parent: Path) -> dict[str, Any]:
    """Seconds from SIGKILL to the last rank to the end of the next step that is made; after a checkpoint."""
    with _job(parent) as folder, checkout.launched(folder, ranks, "--max-restarts", "1") as launched:
        _wait_for(lambda: any(r["kind"] == "checkpoint" for r in records_in(folder)), launched)
        killed = _last_rank(launched)
        begun = time.time()
        killed.kill()
        again: list[dict[str, Any]] = []

        def goes_on() -> bool:
            records = list(records_in(folder))
            starts = [place for place, record in enumerate(records) if record["kind"] == "start"]
            again[:] = records[starts[1] :] if len(starts) > 1 else []
            return any(record["kind"] == "train" for record in again)

        _wait_for(goes_on, launched)
        return {"secs": first_step(again)["time"] - begun}


def first_step(records: list[dict[str, Any]]) -> dict[str, Any]:
    """The first record of a step."""
    return next(record for record in records if record["kind"] == "train")


def records_in(folder: Path) -> Iterator[dict[str, Any]]:
    """Of metrics.jsonl, as far as it has been written."""
    path = folder / "job" / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    whole, _, _ = text.rpartition("\n")
    return map(json.loads, whole.splitlines())


def _last_rank(launched: Started) -> psutil.Process:
    """The process of the rank that was started last.

    Raises:
        RuntimeError: There is none.
    """
    found = []
    for process in psutil.Process(launched.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found += [process] if "train" in process.cmdline()[:4] else []
    if not found:
        raise launched.failure("no rank was found to be killed")
    return max(found, key=lambda process: process.pid)


def _wait_for(condition: Callable[[], bool], launched: Started) -> None:
    """Waits for it.

    Raises:
        RuntimeError: It has not come true for LIMIT_SECS, or the job has ended.
    """
    end = time.monotonic() + LIMIT_SECS
    while not condition():
        if not launched.running or time.monotonic() > end:
            raise launched.failure("the job has ended" if not launched.running else f"nothing for {LIMIT_SECS:.0f} s")
        time.sleep(POLL_SECS)


@contextmanager
def _job(parent: Path) -> Iterator[Path]:
    """A folder with a job in it."""
    with tempfile.TemporaryDirectory(dir=parent, prefix="job-") as name:
        write_job(Path(name))
        yield Path(name)
