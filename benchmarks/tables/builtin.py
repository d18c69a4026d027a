"""Built-in models of Keras, trained on rows of a table by the schema that `hpc-train schema` finds of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import keras
import numpy as np
import tensorflow as tf

from hpc_train.config.builtin_model import model_from
from hpc_train.config.table import Table
from hpc_train.config.table_schema import TableSchema
from hpc_train.distributed.world import World
from hpc_train.models.function import BuiltinModelFunction
from hpc_train.tabular.inference import infer_schema
from tables.data_sets import LABEL, DataSet

BATCH, SEED = 64, 0


def predicted(kind: str, train: DataSet, test: DataSet, steps: int, most_values: int) -> np.ndarray:
    """What a model, as it is by default, says of the rows of `test`, with so many values of a vocabulary at most.

    float32 `[rows]`: numbers, or probabilities of the second of two classes; of more `[rows, classes]`.
    """
    keras.utils.set_random_seed(SEED)
    schema = schema_of(train, most_values)
    model = BuiltinModelFunction(model_from({"builtin": kind, "schema": schema}))()
    rows = tf.data.Dataset.from_tensor_slices((_tensors(train, schema), train.label))
    batches = rows.shuffle(len(train.label), seed=SEED).repeat().batch(BATCH, drop_remainder=True)
    model.fit(batches, steps_per_epoch=steps, verbose=0)
    found: np.ndarray = np.asarray(model(_tensors(test, schema)))
    return found[:, 0] if found.shape[1] == 1 else found


def schema_of(rows: DataSet, most_values: int) -> TableSchema:
    """What `hpc-train schema` finds."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        rows.write(path)
        return infer_schema(World.alone(), Table(files=str(path)), LABEL, rows.task, most_values=most_values)


def _tensors(rows: DataSet, schema: TableSchema) -> Mapping[str, tf.Tensor]:
    return {name: tf.constant(rows.columns[name]) for name in schema.features}
