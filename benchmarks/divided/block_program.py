"""Trains Transformer blocks as a job, whole or divided among its ranks; counts what ranks exchange. A program.

python -m divided.block_program ROWS LENGTH WIDTH BLOCKS STEPS FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hpc_train as ht
from hpc_train.distributed.devices import peak_memory
from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.mpi import MpiCollectives
from hpc_train.distributed.startup import join_world
from hpc_train.planning.model_sizes import sizes_of

WARM_UP = 2
FORWARD, BACKWARD, OTHERS = "forward", "backward", "others"


def build_model(params: dict[str, Any]) -> keras.Model:
    """As docs/model_parallel.md shows a block."""
    p, layers, width = ht.parallel, keras.layers, params["width"]
    x = given = keras.Input((params["length"], width))
    for _ in range(params["blocks"]):
        y = layers.LayerNormalization()(x)
        x = x + p.MultiHeadAttention(8, width // 8)(y, y, use_causal_mask=True)
        y = p.ColumnDense(4 * width, "gelu")(layers.LayerNormalization()(x))
        x = x + p.RowDense(width)(y)
    model = keras.Model(given, layers.Dense(1)(x))
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    return model


def part_of_step(name: str) -> str:
    """Which part of a step an exchange of this name belongs to: the layers' sums, or what else ranks exchange."""
    if not name.endswith(".reduce"):
        return OTHERS
    return BACKWARD if ".enter." in name else FORWARD


def count_into(counts: Counter[str]) -> None:
    """From now on calls, bytes and seconds of what is handed to MPI are counted, and seconds until all ranks came."""
    call, agree = MpiCollectives._call, MpiCollectives._agree

    def counted_call(self: Any, name: str, exchange: Callable[..., None], *of_call: Any) -> Any:
        part = part_of_step(name)

        def run(given: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
            begun = time.perf_counter()
            exchange(given, results)
            counts[f"{part} secs"] += time.perf_counter() - begun
            counts[f"{part} bytes"] += sum(np.asarray(array).nbytes for array in given)
            counts[f"{part} calls"] += 1

        return call(self, name, run, *of_call)

    def timed_agree(self: Any, name: str, *of_call: Any) -> None:
        begun = time.perf_counter()
        agree(self, name, *of_call)
        counts[f"{part_of_step(name)} waiting"] += time.perf_counter() - begun

    MpiCollectives._call, MpiCollectives._agree = counted_call, timed_agree


class Seen(ht.Hook):
    """When each step was over, and what had been exchanged by then; no other step is in flight."""

    needs_state = False

    def __init__(self, counts: Counter[str]) -> None:
        self.counts, self.ends, self.before, self.after = counts, [], Counter(), Counter()

    def after_step(self, step: int, loss: float) -> None:
        self.ends.append(time.perf_counter())
        self.after = Counter(self.counts)
        if step == WARM_UP:
            self.before = Counter(self.counts)


def main(rows: int, length: int, width: int, blocks: int, steps: int, folder: Path) -> None:
    """Writes {"secs": of each step, "ranks": [{"counts": a step, "memory"}], "shares": by rank, "planned": bytes}."""
    world = join_world()
    counts: Counter[str] = Counter()
    count_into(counts)
    seen = Seen(counts)

    def batches(context: Any = None) -> Any:
        x, y = np.random.default_rng(1).normal(size=(2, rows, length, width)).astype(np.float32)
        return tf.data.Dataset.from_tensors((x, y[..., :1])).repeat()

    config = ht.RunConfig(
        folder / "job",
        mesh={"data": 1, "model": world.size} if world.size > 1 else None,
        allreduce="mpi",
        steps_in_flight=0,
        tf_random_seed=1,
        save_summary_steps=WARM_UP + steps,
    )
    estimator = ht.Estimator(build_model, config, {"length": length, "width": width, "blocks": blocks})
    train = ht.TrainSpec(batches, max_steps=WARM_UP + steps, hooks=(seen,))
    ht.train_and_evaluate(estimator, train, ht.EvalSpec(batches, steps=1))
    a_step = {name: (number - seen.before[name]) / steps for name, number in seen.after.items()}
    told = world.gather({"counts": a_step, **peak_memory()})
    if told is not None:
        lines = map(json.loads, (folder / "job" / "metrics.jsonl").read_text().splitlines())
        shares = next(line["by_rank"] for line in lines if line["kind"] == "train")
        planned = sizes_of(estimator, batches(), Mesh(1, world.size, 0))[0].calls
        found = {
            "secs": np.diff(seen.ends[WARM_UP - 1 :]).tolist(),
            "ranks": told,
            "shares": shares,
            "planned": sum(call.nbytes for call in planned if call.kind == "allreduce"),
        }
        (folder / "block.json").write_text(json.dumps(found))
    world.wait_asleep()


if __name__ == "__main__":
    *sizes, where = sys.argv[1:]
    main(*map(int, sizes), Path(where))
