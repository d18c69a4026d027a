"""One rank of a plain Horovod loop, as its documentation has it: what this package's training is compared with.

    mpirun -np 2 python -m parameter_servers.plain_horovod --folder JOB --examples 100000 --warm-up-secs 2 --out FILE

Nothing of hpc_train runs here, and neither Horovod's nor MPI's settings are touched. Batches are cut beforehand and
wait in memory.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import h5py
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from parameter_servers.settings import BATCH, LEARNING_RATE


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="with model.py and data/train-*.h5")
    parser.add_argument("--examples", type=int, required=True, help="of all ranks together")
    parser.add_argument("--warm-up-secs", type=float, required=True, help="that are not counted")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def load_model(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("model", folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build_model({"learning_rate": LEARNING_RATE * hvd.size()})


def load_batches(folder: Path) -> tf.data.Dataset:
    """This rank's share of the rows, over and over in the same order."""
    parts = []
    for path in sorted(folder.glob("data/train-*.h5"))[hvd.rank() :: hvd.size()]:
        with h5py.File(path) as file:
            parts.append((file["x"][()], file["y"][()]))
    x, y = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    batches = len(x) // BATCH
    x, y = (rows[: batches * BATCH].reshape(batches, BATCH, *rows.shape[1:]) for rows in (x, y))
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().prefetch(2)


def main() -> None:
    args = arguments()
    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    model = load_model(args.folder)
    model.optimizer.build(model.trainable_variables)
    hvd.broadcast_variables([v.value for v in model.variables], root_rank=0)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
        gradients = hvd.grouped_allreduce(tape.gradient(loss, model.trainable_variables), op=hvd.Average)
        model.optimizer.apply(gradients, model.trainable_variables)
        return loss

    steps = args.examples // (BATCH * hvd.size())
    begun: tuple[int, float] | None = None
    first = float("inf")
    loss = None
    for number, (x, y) in enumerate(load_batches(args.folder).take(steps), start=1):
        loss = step(x, y)
        first = min(first, time.perf_counter())
        if begun is None and time.perf_counter() - first >= args.warm_up_secs:
            begun = number, time.perf_counter()
    assert loss is not None
    last = float(loss)
    if begun is None or begun[0] == steps:
        raise RuntimeError(f"{steps} steps were over before the warm-up was")
    if hvd.rank() == 0:
        rate = (steps - begun[0]) * BATCH * hvd.size() / (time.perf_counter() - begun[1])
        args.out.write_text(json.dumps({"examples_per_sec": rate, "loss": last}))
    hvd.shutdown()


if __name__ == "__main__":
    main()
