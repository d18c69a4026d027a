"""Measures a job from within: a hook on each rank that trains, which ends the job once it has seen enough."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_train import Hook, HookContext

if TYPE_CHECKING:
    import keras


PERIOD_MS = 500
END_SECS = 5.0


class GpuUse:
    """Asks nvidia-smi for one GPU's utilisation from its making until `stop`; local.

    Without nvidia-smi it knows nothing. Utilisation: the part of
    the time during which at least one kernel ran, as nvidia-smi defines it.
    """

    def __init__(self, gpu: str) -> None:
        query = ["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        self._process: subprocess.Popen[str] | None = None
        with suppress(OSError):
            self._process = subprocess.Popen(
                ["nvidia-smi", *query, f"--id={gpu}", f"--loop-ms={PERIOD_MS}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )

    def stop(self) -> float | None:
        """The mean, 0 to 1; None where nothing is known."""
        if self._process is None:
            return None
        self._process.terminate()
        try:
            printed, _ = self._process.communicate(timeout=END_SECS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            printed, _ = self._process.communicate()
        return mean_use(printed)


def visible_gpu() -> str:
    """What nvidia-smi calls the first GPU that this process may use."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"


def mean_use(printed: str) -> float | None:
    """Of what nvidia-smi printed, a line each time; what is not a number (an unsupported GPU) is left out. Pure."""
    percents = [float(line) for line in printed.split() if line.replace(".", "", 1).isdecimal()]
    return sum(percents) / len(percents) / 100 if percents else None


PLAN = "HPC_BENCHMARK_PLAN"
"""Names the file that says how long to measure; set for the ranks of a job."""
ENOUGH = "enough-"
LOOK_SECS = 0.05
MOST_STEPS = 20_000
"""Whose times are kept."""


class StepTimes(Hook):
    """Writes `rank-<n>.json` beside the plan: when each step after the warm-up ended, and what this rank has.

    Args:
        plan: `warm_up_steps` and `warm_up_secs`, which both have to be over; `secs` and `least_steps`, which are to be
            measured; `ranks` that train at a pace of their own: the job goes on until so many have measured
            for long enough. Ranks that train in step have seen enough all at once.
    """

    needs_state = False

    def __init__(self, folder: Path, plan: Mapping[str, Any]) -> None:
        self._folder, self._plan = folder, plan
        self._taken, self._first, self._looked, self._asked = 0, 0.0, 0.0, False
        self._ends: list[float] = []
        self._gpu_use: GpuUse | None = None

    def begin(self, context: HookContext) -> None:
        self._context = context
        if emulated := sys.modules.get("scale.emulated"):
            emulated.DEVICE.begin()
        self._about = {"rank": context.rank, **_about_model(context.model), **_about_device()}

    def after_step(self, step: int, loss: float) -> None:
        now, plan = time.perf_counter(), self._plan
        self._taken += 1
        self._first = self._first or now
        if self._taken <= plan["warm_up_steps"] or now - self._first < plan["warm_up_secs"]:
            return
        if not self._ends and self._about["device"] != "CPU":
            self._gpu_use = GpuUse(visible_gpu())
        if len(self._ends) < MOST_STEPS:
            self._ends.append(now)
        enough = len(self._ends) > plan["least_steps"] and now - self._ends[0] >= plan["secs"]
        if enough and not self._asked and now - self._looked >= LOOK_SECS:
            self._looked = now
            (self._folder / f"{ENOUGH}{self._context.rank}").touch()
            self._asked = plan["ranks"] <= 1 or len(list(self._folder.glob(f"{ENOUGH}*"))) >= plan["ranks"]
            if self._asked:
                self._context.request_stop("measured for long enough")

    def end(self, step: int) -> None:
        gpu_use = self._gpu_use.stop() if self._gpu_use is not None else None
        clocks = {"ends": self._ends, "wall": time.time() - time.perf_counter()}
        measured = {**self._about, **_gpu_memory(), "gpu_use": gpu_use, "busy": _busy(len(self._ends)), **clocks}
        path = self._folder / f"rank-{self._context.rank}.json"
        path.with_suffix(".part").write_text(json.dumps(measured))
        path.with_suffix(".part").replace(path)


def make_hooks() -> StepTimes:
    """As a job file, or program.py, names it."""
    path = Path(os.environ[PLAN])
    return StepTimes(path.parent, json.loads(path.read_text()))


def _about_model(model: keras.Model) -> dict[str, Any]:
    import numpy as np
    import tensorflow as tf

    nbytes = [tf.as_dtype(v.dtype).size * int(np.prod(v.shape)) for v in model.trainable_variables]
    return {"gradient_bytes": sum(nbytes)}


def _about_device() -> dict[str, Any]:
    """What this rank trains on, and whether Horovod, if it is there, has NCCL."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    name = tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU") if gpus else "CPU"
    horovod = sys.modules.get("horovod.tensorflow")
    return {"device": name, "nccl": bool(gpus and horovod and horovod.nccl_built())}


def _busy(steps: int) -> float | None:
    """Of an emulated device in the last so many steps; None where there is none."""
    emulated = sys.modules.get("scale.emulated")
    busy: float | None = emulated.DEVICE.busy(steps) if emulated else None
    return busy


def _gpu_memory() -> dict[str, Any]:
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        return {}
    return {"gpu_memory_bytes": tf.config.experimental.get_memory_info("GPU:0")["peak"]}
