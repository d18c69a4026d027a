"""One rank that trains jobs one after the other: `python -m acceptance.program JOBS.json`, under mpirun or alone.

JOBS.json has `jobs` (see `Job` in rounds.py), `deterministic`, `stand_in` (whether a second device of the processor is
to be taken for a GPU), `data` and `out`, a folder: `<job>.json` has losses, times and places, `<job>.npz` the weights
before the first step, and `<job>/` is its job-dir.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import keras
import numpy as np
import tensorflow as tf
from peers import models
from support.second_device import second_device

import hpc_train as ht
from hpc_train.data.loading.feed import Feed

ADAM_RATE = 1e-3


class Log(ht.Hook):
    """Writes the first weights, the loss and the end of each step, and where its batches lay."""

    chief_only = True
    needs_state = False

    def __init__(self, path: Path, places: list[str]) -> None:
        self._path, self._places = path, places
        self._losses: list[float] = []
        self._ends: list[float] = []

    def begin(self, context: ht.HookContext) -> None:
        if context.first_step == 0:
            weights = {variable.path: variable.numpy() for variable in context.model.trainable_variables}
            np.savez(self._path.with_suffix(".npz"), **weights)

    def after_step(self, step: int, loss: float) -> None:
        self._losses.append(loss)
        self._ends.append(time.perf_counter())

    def end(self, step: int) -> None:
        gpus = tf.config.list_physical_devices("GPU")
        device = tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU") if gpus else "CPU"
        told = {"losses": self._losses, "ends": self._ends, "places": self._places, "device": device}
        self._path.with_suffix(".json").write_text(json.dumps(told))


def build_model(params: Mapping[str, Any]) -> keras.Model:
    """The model called `params["model"]`; with `dropout` before its last layer, and Adam, where there is any."""
    model = models.build_model(params)
    if not params["dropout"]:
        return model
    *body, head = model.layers
    shape = models.row_shape(params["model"])
    noisy = keras.Sequential([keras.Input(shape), *body, keras.layers.Dropout(params["dropout"]), head])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    noisy.compile(keras.optimizers.Adam(ADAM_RATE), loss)
    return noisy


@contextmanager
def noting_places(places: list[str]) -> Iterator[None]:
    """Notes the device on which each batch lies when the loop takes it."""
    take = Feed.__next__

    def noting(feed: Feed) -> Any:
        batch = take(feed)
        places.append(str(tf.nest.flatten(batch)[0].device).rpartition("device:")[2])
        return batch

    with patch.object(Feed, "__next__", noting):
        yield


@contextmanager
def copied_by_the_step() -> Iterator[None]:
    """Batches stay in the host's memory until a step asks for them."""

    def not_ahead(device: str, buffer_size: int | None = None) -> Any:
        return lambda dataset: dataset

    with patch.object(tf.data.experimental, "prefetch_to_device", not_ahead):
        yield


def train(job: Mapping[str, Any], data: Path, out: Path) -> None:
    """Trains one job, to each of its stops by a run of its own that goes on from the one before."""
    rows = {"batch_size": job["batch"], "features": "x", "label": "y"}
    folder = data / models.data_folder(job["model"])
    params = {"model": job["model"], "dropout": job["dropout"]}
    for stop in job["stops"]:
        places: list[str] = []
        config = ht.RunConfig(
            model_dir=out / job["name"], tf_random_seed=1, save_checkpoints_steps=10**9, best_metric=None,
            report=False, **job["run"],
        )  # fmt: skip
        source = ht.HDF5Input(str(folder / "train-*.h5"), shuffle="global", seed=1, **rows)
        spec = ht.TrainSpec(source, max_steps=stop, hooks=(Log(out / job["name"], places),))
        evaluation = ht.EvalSpec(ht.HDF5Input(str(folder / "test-*.h5"), **rows), steps=1)
        keras.utils.clear_session()
        with noting_places(places):
            ht.train_and_evaluate(ht.Estimator(build_model, config, params), spec, evaluation)


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    if plan["deterministic"]:
        tf.config.experimental.enable_op_determinism()
        tf.config.experimental.enable_tensor_float_32_execution(False)
    out, data = Path(plan["out"]), Path(plan["data"])
    with second_device() if plan["stand_in"] else nullcontext():
        for job in plan["jobs"]:
            with copied_by_the_step() if job["by_the_step"] else nullcontext():
                train(job, data, out)


if __name__ == "__main__":
    main()
