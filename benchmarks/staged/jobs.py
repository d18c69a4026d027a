"""The jobs that staging.py runs: three passes over shards on a slow source, with `stage: node` and without."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
from support.launch import Ranks
from support.page_cache import drop
from support.usage import tell

from staged.source import Source

SIDE, SHARDS, PASSES, RECORDS = 128, 8, 3, 8
"""Rows are bytes [SIDE, SIDE]; so many records of metrics.jsonl are of each pass."""
LIMIT_SECS, FORGOTTEN_SECS = 240.0, 0.2
CODE = '''"""A small model of grey images."""

import keras
from keras import layers


def build_model(params):
    """Images uint8 [B, {side}, {side}] to a number [B, 1]."""
    images = keras.Input(({side}, {side}), dtype="uint8")
    model = keras.Sequential([images, layers.Rescaling(1 / 255), layers.GlobalAveragePooling1D(), layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    return model
'''


@dataclass(frozen=True)
class Settings:
    """How much is measured: a source of so many MB read at MB/s, a step of so many ms of so many rows of each rank."""

    ranks: int = 2
    megabytes: float = 320.0
    megabytes_per_sec: float = 20.0
    step_ms: int = 80
    batch_rows: int = 128
    passes: int = 2
    quick: bool = False

    @property
    def steps(self) -> int:
        """Of a pass."""
        return int(self.megabytes * 1e6 / SIDE**2 / (self.batch_rows * self.ranks)) // RECORDS * RECORDS


def write_shards(folder: Path, settings: Settings) -> None:
    """Rows in chunks, which are read and not mapped: the kernel can forget them."""
    import h5py

    rows, rng = settings.steps * settings.ranks * settings.batch_rows, np.random.default_rng(1)
    for number in range(SHARDS):
        count = rows * (number + 1) // SHARDS - rows * number // SHARDS
        with h5py.File(folder / f"train-{number}.h5", "w") as file:
            images = rng.integers(0, 256, (count, SIDE, SIDE), dtype=np.uint8)
            file.create_dataset("x", data=images, chunks=(min(64, count), SIDE, SIDE))
            file["y"] = rng.random((count, 1), np.float32)


def run(staged: bool, source: Source | None, shards: Path, settings: Settings, folder: Path) -> list[dict[str, Any]]:
    """One job: its records of training, from each rank's `input`, the part of the time that it waited for rows.

    Raises:
        RuntimeError: It failed, or took too long.
    """
    steps, pattern = settings.steps, str(shards / "train-*.h5")
    (folder / "model.py").write_text(CODE.format(side=SIDE))
    data = {"shards": pattern, "features": "x", "label": "y"}
    train = {**data, "batch_size": settings.batch_rows, "shuffle": "block", "seed": 1}
    job = {
        "name": "staging",
        "model": "model.py:build_model",
        "data": {
            "train": {**train, **({"stage": "node", "stage_dir": "/dev/shm"} if staged else {})},
            "eval": {**data, "shards": str(shards / "train-0.h5"), "batch_size": settings.batch_rows},
        },
        "run": {"save_summary_steps": steps // RECORDS, "report": False, "save_checkpoints_steps": PASSES * steps},
        "train": {"max_steps": PASSES * steps},
        "eval": {"steps": 1},
    }
    (folder / "job.yaml").write_text(json.dumps(job))
    shutil.rmtree(folder / "job", ignore_errors=True)
    delays = [word for rank in range(settings.ranks) for word in ("--debug-delay", f"{rank}:{settings.step_ms}")]
    words = ["-m", "hpc_train", "train", "job.yaml", "--job-dir", "job", *delays]
    prefix = source.prefix if source is not None else ()
    with forgotten(shards), Ranks(settings.ranks, words, folder, prefix=prefix) as started:
        started.wait(LIMIT_SECS)
    lines = (folder / "job" / "metrics.jsonl").read_text().splitlines()
    found = [record for line in lines if (record := json.loads(line))["kind"] == "train"]
    for line in (folder / "ranks.log").read_text(errors="replace").splitlines():
        if "stage:" in line:
            tell(line)
    return [{"step": one["step"], "time": one["time"], "input": one["by_rank"]["input"]} for one in found]


@contextmanager
def forgotten(shards: Path) -> Iterator[None]:
    """Meanwhile the kernel forgets what is read of the shards, as on a node whose memory does not hold them."""
    stop, paths = Event(), sorted(shards.glob("train-*.h5"))
    with ExitStack() as stack:
        descriptors = [os.open(path, os.O_RDONLY) for path in paths]
        for descriptor in descriptors:
            stack.callback(os.close, descriptor)

        def forget() -> None:
            while not stop.wait(FORGOTTEN_SECS):
                for descriptor in descriptors:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

        drop(map(str, paths))
        thread = Thread(target=forget)
        thread.start()
        stack.callback(thread.join)
        stack.callback(stop.set)
        yield


def waits(records: Sequence[Mapping[str, Any]], steps: int) -> list[float]:
    """The part of each pass in which its ranks waited for rows, that of the rank which waited most. Pure."""
    begins = [None, *(one["time"] for one in records)]
    found = []
    for number in range(PASSES):
        secs, waited = 0.0, np.zeros(len(records[0]["input"]))
        for begin, one in zip(begins, records, strict=False):  # the first has the first step, which is not counted
            if begin is not None and number * steps < one["step"] <= (number + 1) * steps:
                secs += one["time"] - begin
                waited += (one["time"] - begin) * np.array(one["input"])
        found.append(float(waited.max()) / secs)
    return found
