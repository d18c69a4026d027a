"""Trains a job whose model, table and optimizer are divided among ranks, to a step and no further. A program.

python -m divided.restore_program JOB_DIR WIDTH DATA MODEL STEPS USED

Rows of the steps after the first USED have no numbers: such steps are left out, so that what a job restores is what it
saves at its end.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import hpc_train as ht

ROWS, LENGTH, WORDS = 8, 6, 4099


def build_model(params: dict[str, Any]) -> Any:
    """Of each kind of divided layer one, with a table in parts, and what is whole."""
    import keras

    p, layers, width = ht.parallel, keras.layers, params["width"]
    tokens = keras.Input((LENGTH,), dtype="int64")
    x = p.Embedding(WORDS, width)(tokens) + p.ShardedEmbedding(WORDS, width, name="table")(tokens)
    x = x + p.MultiHeadAttention(4, width // 4)(x, x, use_causal_mask=True)
    x = layers.BatchNormalization(synchronized=True)(x)
    x = x + p.RowDense(width)(p.ColumnDense(4 * width, "gelu")(layers.LayerNormalization()(x)))
    model = keras.Model(tokens, layers.Dense(1)(x))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def main(job_dir: Path, width: int, data: int, model: int, steps: int, used: int) -> None:
    def batches(context: Any) -> Any:
        import numpy as np
        import tensorflow as tf

        own, part = ROWS // context.num_input_pipelines, context.input_pipeline_id
        ids = np.random.default_rng(1).integers(0, WORDS, (steps, ROWS, LENGTH))
        y = np.where(np.arange(steps)[:, None, None, None] < used, ids[..., None] / WORDS, np.nan)
        ids, y = (rows[:, own * part : own * (part + 1)] for rows in (ids, y))
        return tf.data.Dataset.from_tensor_slices((ids, y))

    mesh = {"data": data, "model": model}
    config = ht.RunConfig(
        job_dir, mesh=mesh, shard_optimizer=True, allreduce="mpi", on_nan="skip", tf_random_seed=1, best_metric=None
    )
    train = ht.TrainSpec(batches, max_steps=steps)
    ht.train_and_evaluate(ht.Estimator(build_model, config, {"width": width}), train, ht.EvalSpec(batches, steps=1))


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    main(Path(name), *map(int, numbers))
