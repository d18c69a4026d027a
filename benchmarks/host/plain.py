"""One rank that trains a model with next to nothing to compute, by public names alone: any checkout can run it.

python -m host.plain --steps 4000 --out told.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hpc_train as ht

ROWS = 32
WARM_UP = 0.1
"""The part of the steps that are made before the clock starts."""


def empty_model(_: Any = None) -> keras.Model:
    """One weight."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    return model


def same_batch(_: Any = None) -> tf.data.Dataset:
    """One batch for ever."""
    batch = np.zeros((ROWS, 1), np.float32), np.zeros((ROWS, 1), np.float32)
    return tf.data.Dataset.from_tensors(batch).repeat()


class Marks(ht.Hook):
    """Notes the clocks at the first and the last step that count, and calls `restart` there."""

    needs_state = False

    def __init__(self, steps: int, restart: Callable[[], None] = lambda: None) -> None:
        self._at, self._restart = (int(steps * WARM_UP), steps - 1), restart
        self.counted = steps - 1 - int(steps * WARM_UP)
        self._wall: list[float] = []
        self._cpu: list[float] = []

    def after_step(self, step: int, loss: float) -> None:
        if step in self._at:
            self._restart()
            self._wall.append(time.perf_counter())
            self._cpu.append(time.thread_time())

    def told(self) -> dict[str, float]:
        """Microseconds of a step, by the wall's clock and by that of the training thread."""
        clocks = {"wall_us": self._wall, "thread_us": self._cpu}
        return {name: 1e6 * (end - begun) / self.counted for name, (begun, end) in clocks.items()}


def train(marks: Marks, steps: int, **config: Any) -> None:
    """Trains the empty model, and saves once."""
    with tempfile.TemporaryDirectory() as folder:
        run = ht.RunConfig(folder + "/job", save_checkpoints_steps=10**9, report=False, **config)
        spec = ht.TrainSpec(same_batch, max_steps=steps, hooks=(marks,))
        ht.train_and_evaluate(ht.Estimator(empty_model, run, {}), spec, ht.EvalSpec(same_batch, steps=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    marks = Marks(args.steps)
    train(marks, args.steps)
    args.out.write_text(json.dumps(marks.told()))


if __name__ == "__main__":
    main()
