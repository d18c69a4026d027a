"""Ranks that train the same on the same batch; all but the chief may be slowed by a part of their own time of a step.

python -m slowness.program --slower 0.3 --steps 250 --record-steps 5 --job-dir FOLDER
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import keras
import numpy as np
import tensorflow as tf

import hpc_train as ht
from hpc_train.engine import train_step
from hpc_train.engine.step_report import Flags, StepReport, TrainStep, reporting

ROWS, UNITS = 2048, 4096
"""Of a batch; of the layer."""
RECENT = 5
"""Steps over which a rank's own time is measured, to be lengthened."""


def model_of(_: Any = None) -> keras.Model:
    """Whose steps are long enough to be judged."""
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(UNITS, activation="tanh"), keras.layers.Dense(4)])
    model.compile(keras.optimizers.SGD(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def same_batch(_: Any = None) -> tf.data.Dataset:
    """One batch for ever."""
    batch = np.ones((ROWS, 8), np.float32), np.zeros(ROWS, np.int64)
    return tf.data.Dataset.from_tensors(batch).repeat()


def slowed(step: TrainStep, slower: float, own: deque[float]) -> TrainStep:
    """`step`, which takes longer by the part `slower` of what the steps before took this rank without its waiting.

    Args:
        own: Is given these times.
    """

    def dispatch(batch: Any, flags: Flags) -> Callable[[], StepReport]:
        time.sleep(slower * median(own or [0.0]))
        wait = step(batch, flags)

        def report() -> StepReport:
            told = wait()
            own.append(max(0.0, told.done_at - told.begun_at - told.communication_secs))
            return told

        return report

    return dispatch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slower", type=float, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--record-steps", type=int, required=True)
    parser.add_argument("--job-dir", type=Path, required=True)
    args = parser.parse_args()
    run = ht.RunConfig(
        str(args.job_dir), save_checkpoints_steps=10**9, report=False, save_summary_steps=args.record_steps
    )
    slower = 0.0 if ht.is_chief() else args.slower
    own: deque[float] = deque(maxlen=RECENT)
    with patch.object(train_step, "reporting", lambda *given: slowed(reporting(*given), slower, own)):
        spec = ht.TrainSpec(same_batch, max_steps=args.steps)
        ht.train_and_evaluate(ht.Estimator(model_of, run, {}), spec, ht.EvalSpec(same_batch, steps=1))
    if not own:
        raise RuntimeError("training has made no step by way of train_step.reporting: nobody was slowed")


if __name__ == "__main__":
    main()
