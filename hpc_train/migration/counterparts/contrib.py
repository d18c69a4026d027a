"""tf.contrib, gone since TensorFlow 2.0: what its names became. Pure."""

from __future__ import annotations

from hpc_train.migration.counterparts.row import Tables

_HOMES = (
    "tf.estimator", "tf.estimator.experimental", "tf.estimator.inputs", "tf.feature_column", "tf.layers", "tf.train",
)  # fmt: skip
_RENAMED = {
    "real_valued_column": "tf.feature_column.numeric_column",
    "sparse_column_with_keys": "tf.feature_column.categorical_column_with_vocabulary_list",
    "sparse_column_with_hash_bucket": "tf.feature_column.categorical_column_with_hash_bucket",
    "sparse_column_with_integerized_feature": "tf.feature_column.categorical_column_with_identity",
    "one_hot_column": "tf.feature_column.indicator_column",
    "fully_connected": "tf.layers.dense",
    "convolution2d": "tf.layers.conv2d",
    "max_pool2d": "tf.layers.max_pooling2d",
}


def out_of_contrib(name: str, tables: Tables) -> str:
    """The later full name of what `name`, of tf.contrib, was; itself where it had none.

    Args:
        tables: The rows that there are.
    """
    last = name.rpartition(".")[2]
    for later in (_RENAMED.get(last), *(f"{home}.{last}" for home in _HOMES)):
        row = tables.find(later) if later else None
        if later and row is not None and row.name == later:
            return later
    return name
