"""One process of tf.estimator with an asynchronous parameter server, as TensorFlow 1 and 2.15 document it.

    TF_CONFIG=… python -m peers.estimator_program --model "MLP 1.9 M" --folder DIR --warm-up 100 --steps 1000 --out DIR

Runs in an environment of its own, of TensorFlow 2.15 (see clusters.py), the last one that has tf.estimator. The
servers, and the workers other than the chief, do not end by themselves.
"""

from __future__ import annotations

import json
import os
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from peers.measurement import LAST_LOSSES, Measurement, Took, rival_parser, write_measurements
from peers.models import CLASSES, CNN, LEARNING_RATES, UNITS, load_batches, row_shape
from peers.settings import BATCH, MOMENTUM

NEVER = 10**9


def logits_of(model: str, x: Any) -> Any:
    """The layers of models.build_model, by Keras 2."""
    layers = tf.keras.layers
    if model == CNN:
        for filters in (16, 32):
            x = layers.MaxPooling2D()(layers.Conv2D(filters, 3, padding="same", activation="relu")(x))
        x = layers.Dense(448, activation="relu")(layers.Flatten()(x))
    else:
        for _ in range(2):
            x = layers.Dense(UNITS[model], activation="relu")(x)
    return layers.Dense(CLASSES)(x)


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits_of(params["model"], features))
    optimizer = tf.compat.v1.train.MomentumOptimizer(LEARNING_RATES[params["model"]], MOMENTUM)
    train_op = optimizer.minimize(loss, global_step=tf.compat.v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


class Clock(tf.estimator.SessionRunHook):
    """Measures on the chief, once all workers have made their first steps, how fast the global step grows."""

    def __init__(self, warm_up: int, steps: int, workers: int, out: Path) -> None:
        self._warm_up, self._steps, self._workers, self._out = warm_up, steps * workers, workers, out
        self._own = self._begun_at = 0
        self._first: float | None = None
        self._begun: Took | None = None
        self._last: deque[float] = deque(maxlen=LAST_LOSSES)

    def begin(self) -> None:
        graph = tf.compat.v1.get_default_graph()
        self._fetched = [tf.compat.v1.train.get_global_step(), graph.get_collection(tf.compat.v1.GraphKeys.LOSSES)[0]]

    def before_run(self, run_context: Any) -> Any:
        return tf.estimator.SessionRunArgs(self._fetched)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        step, loss = run_values.results
        self._own += 1
        self._first = float(loss) if self._first is None else self._first
        self._last.append(float(loss))
        others = int(step) - self._own
        if self._begun is None:
            if self._own >= self._warm_up and others >= self._warm_up * (self._workers - 1):
                self._begun, self._begun_at = Took.now(), int(step)
        elif int(step) - self._begun_at >= self._steps:
            took = Took.now().since(self._begun)
            losses = self._first, float(np.mean(self._last))
            made = int(step) - self._begun_at
            write_measurements(self._out, [Measurement.of(made, [took], losses, BATCH)])
            run_context.request_stop()


def main() -> None:
    args = rival_parser(__doc__).parse_args()
    cluster = json.loads(os.environ["TF_CONFIG"])
    workers = 1 + len(cluster["cluster"].get("worker", ()))
    kind = cluster["task"]["type"]
    number = 0 if kind == "chief" else 1 + cluster["task"]["index"]
    # The pool that runs operations side by side stays as TensorFlow makes it; the report says so.
    session = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=int(os.environ["OMP_NUM_THREADS"]))
    config = tf.estimator.RunConfig(model_dir=str(args.folder / "estimator"), session_config=session)
    estimator = tf.estimator.Estimator(model_fn, params={"model": args.model}, config=config)

    def input_fn() -> tf.data.Dataset:
        x, y = load_batches(args.folder, args.model, number, workers, BATCH)
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().prefetch(2)
        return dataset.map(lambda rows, labels: (tf.ensure_shape(rows, [BATCH, *row_shape(args.model)]), labels))

    hooks = [Clock(args.warm_up, args.steps, workers, args.out / "rank-0.json")] if kind == "chief" else []
    tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(input_fn, max_steps=NEVER, hooks=hooks),
        tf.estimator.EvalSpec(input_fn, steps=1),
    )


if __name__ == "__main__":
    main()
