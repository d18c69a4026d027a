"""Trains a table in parts as a job, which saves it at its end. A program.

python -m divided.bounded_program ROWS IDS STEPS JOB_DIR
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import hpc_train as ht

WIDTH = 64


def build_model(params: dict[str, Any]) -> Any:
    """Ids to a number."""
    import keras

    given = keras.Input((), dtype="int64")
    row = ht.parallel.ShardedEmbedding(params["rows"], WIDTH, name="table")(given)
    model = keras.Model(given, keras.layers.Dense(1)(row))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def main(rows: int, ids: int, steps: int, job_dir: Path) -> None:
    def batches(context: Any) -> Any:
        import tensorflow as tf

        random = tf.random.Generator.from_seed(context.input_pipeline_id)
        given = random.uniform([8, ids], 0, rows, tf.int64)
        return tf.data.Dataset.from_tensor_slices((given, tf.ones([8, ids, 1]))).repeat()

    config = ht.RunConfig(job_dir, allreduce="mpi", tf_random_seed=1, save_summary_steps=1)
    train = ht.TrainSpec(batches, max_steps=steps)
    ht.train_and_evaluate(ht.Estimator(build_model, config, {"rows": rows}), train, ht.EvalSpec(batches, steps=1))


if __name__ == "__main__":
    *counts, folder = sys.argv[1:]
    main(*map(int, counts), Path(folder))
