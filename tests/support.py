"""What tests share: tiny jobs, waits, and processes that never outlive their time limit."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np
import pytest
import yaml

from hpc_train.telemetry.logs import LineFormatter
from tests.forks import forked
from tests.stacks import PRINTED_SECS, print_stacks

REPOSITORY = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
SITE = REPOSITORY / "tests" / "site"
LIMIT_SECS = 600.0
"""What nothing takes, on however busy a machine: a longer wait is for what never comes."""

SOAK = int(os.environ.get("SOAK", "1"))
"""How many times as many examples random tests try as in CI."""
IN_SOAK = [pytest.mark.random, pytest.mark.skipif(SOAK == 1, reason="make soak: computes for long, and is like others")]
"""Marks of what CI has no time for."""

FINAL = {"exporters": {"final": {}}}
"""What `eval:` of a job with an export holds."""

T = TypeVar("T")

MODEL = """
import keras
from keras import layers

def build_model(params):
    model = keras.Sequential([
        keras.Input((8,)),
        layers.Dense(16, activation="tanh", kernel_regularizer=keras.regularizers.L2(1e-3)),
        layers.Dense(4),
    ])
    model.compile(
        optimizer=keras.optimizers.Adam(params.get("learning_rate", 0.01)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    return model
"""

STATEFUL_MODEL = """
import keras
from keras import layers

def build_model(params):
    model = keras.Sequential([
        keras.Input((8,)),
        layers.Dense(16, activation="relu"),
        layers.BatchNormalization(),
        layers.Dropout(0.3),
        layers.Dense(4),
    ])
    model.compile(
        optimizer=keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.01, 40)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model
"""


@dataclass(frozen=True)
class Job:
    """A tiny job in a folder of its own: 8 numbers to 4 classes."""

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "job.yaml"

    @property
    def job_dir(self) -> Path:
        return self.folder / "run"


def write_rows(path: Path, rows: int, seed: int, **more: np.ndarray) -> None:
    """A plain HDF5 file, as one that this package did not write: `x` float32 [rows, 8], `y` int64 [rows]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 8)).astype(np.float32)
    with h5py.File(path, "w") as file:
        file["x"] = x
        file["y"] = (x[:, :4].argmax(axis=1)).astype(np.int64)
        for name, array in more.items():
            file[name] = array


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, mappings key by key."""
    merged = dict(base)
    for key, value in changes.items():
        merged[key] = (
            merge(merged[key], value) if isinstance(value, dict) and isinstance(merged.get(key), dict) else value
        )
    return merged


def make_job_in(
    parent: Path,
    name: str = "job",
    train_rows: Sequence[int] = (96, 96),
    test_rows: Sequence[int] = (50,),
    model: str = MODEL,
    **changes: Any,
) -> Job:
    """Writes a job into the new folder `parent/name`; `changes` are laid over its job file.

    Without a report and an export, which together take a third of the time that the job takes.
    """
    folder = parent / name
    for part, counts in (("train", train_rows), ("test", test_rows)):
        for i, rows in enumerate(counts):
            write_rows(folder / "data" / f"{part}-{i}.h5", rows, seed=100 * (part == "test") + i)
    (folder / "model.py").write_text(model)
    job = {
        "name": "tiny",
        "model": "model.py:build_model",
        "data": {
            "train": {"shards": "data/train-*.h5", "features": "x", "label": "y", "batch_size": 16, "seed": 1},
            "eval": {"shards": "data/test-*.h5", "features": "x", "label": "y", "batch_size": 16},
        },
        "run": {"save_checkpoints_steps": 10, "tf_random_seed": 1, "report": False},
        "train": {"max_steps": 20},
        "eval": {"steps": None, "start_delay_secs": 0, "throttle_secs": 0, "exporters": {}},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(merge(job, changes))), sort_keys=False))
    return Job(folder)


def environment(**more: str) -> dict[str, str]:
    """The environment for a process of a test: the programs of this Python first, and mpirun as root."""
    path = os.pathsep.join([str(BIN), os.environ.get("PATH", "")])
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**os.environ, "PATH": path, "PYTHONPATH": f"{SITE}{os.pathsep}{REPOSITORY}", **root, **more}


def mpirun(ranks: int) -> list[str]:
    """The words before those of a program that is to run on so many ranks; 0 ranks: alone."""
    return ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)] if ranks else []


def run_ranks(
    ranks: int, program: Sequence[object], cwd: Path, timeout: float = LIMIT_SECS, anew: bool = False, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs `python program…` on `ranks` ranks under mpirun; 0 ranks: alone. A hang is a failure.

    `anew`: in processes of their own from the start, see tests/forks.py.
    """
    python = [sys.executable, *map(str, program)] if anew else forked(program, environment())
    return run_program([*mpirun(ranks), *python], cwd, timeout, **env)


def run_program(
    command: Sequence[str], cwd: Path, timeout: float = LIMIT_SECS, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command with a time limit; on its expiry all print their stacks, and the whole process group is ended."""
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=environment(**env),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            print_stacks(process.pid)
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=PRINTED_SECS)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            out, err = process.communicate(timeout=60)
            pytest.fail(f"still running after {timeout} s: {command}\n{out}\n{err}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def examples(count: int) -> int:
    """How many examples a random test tries that tries `count` in CI."""
    return count * SOAK


def wait_for(
    condition: Callable[[], T], what: str | Callable[[], object], limit: float = LIMIT_SECS, every: float = 0.05
) -> T:
    """Waits until `condition()` is true, and returns what it is; it is asked `every` so many seconds.

    AssertionError, with `what`, after `limit` seconds.
    """
    end = time.monotonic() + limit
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit:.0f} s: {what() if callable(what) else what}")
        time.sleep(every)
    return found


def interrupt(process: subprocess.Popen[Any]) -> None:
    """Ctrl-C until `process` ends: two signals that come at one moment are one."""
    end = time.monotonic() + LIMIT_SECS
    while process.poll() is None:
        assert time.monotonic() < end, "interrupting does not end it"
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)


def is_gone(pid: int) -> bool:
    """Whether a process has ended, all its threads with it; its parent may not have asked for it yet.

    Its files and so its locks are held until the last thread has ended, which the first one need not be.
    """
    process = Path("/proc", str(pid))
    try:
        ended = process.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return ended and len(list(process.joinpath("task").iterdir())) == 1
    except OSError:
        return True


def records_of(job_dir: Path, *kinds: str) -> list[dict[str, Any]]:
    """What metrics.jsonl holds until now of these kinds (without any: of all), but for a line that is being written."""
    path = job_dir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return [record for record in records if not kinds or record["kind"] in kinds]


def variables(job_dir: Path, step: int) -> dict[str, np.ndarray]:
    """All variables in a checkpoint, read with h5py alone."""
    found: dict[str, np.ndarray] = {}
    with h5py.File(job_dir / "checkpoints" / f"step-{step:08d}" / "state.h5") as file:
        for group in ("model", "optimizer"):
            for name, dataset in file[group].items():
                found[f"{group}/{name}"] = dataset[()]
    return found


def largest_staleness(workers: int, bound: int, prefetch: bool = False, depth: int = 0) -> int:
    """The staleness that stale synchronous parallel allows at most, in updates.

    Each other worker was at most `bound` behind when the parameters were pulled, and is at most `bound` + 1 ahead
    when the gradient is applied. Parameters that are pulled ahead are older by a clock of each worker, one's own too.
    With `depth` steps in flight they lack so many of one's own, for which the bound holds as well.
    """
    others = (workers - 1) * (2 * bound + 1)
    return others + (workers if prefetch else min(depth, bound))


def collect_log() -> tuple[list[str], logging.Handler]:
    """The lines that the package logs from here on, as the chief shows them, and the handler that collects them."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler, logger = Lines(), logging.getLogger("hpc_train")
    handler.setFormatter(LineFormatter())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return lines, handler
