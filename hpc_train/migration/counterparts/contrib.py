"""tf.contrib, gone since TensorFlow 2.0: what its names became, and its layers, whose defaults are its own. Pure."""

from __future__ import annotations

from hpc_train.config.estimator_arguments import RUN_CONFIG
from hpc_train.migration.counterparts.row import Counterpart, Tables, leave_out, missing, table, write

_GONE = "tf.contrib is gone since TensorFlow 2.0"
_HOMES = (
    "tf.estimator", "tf.estimator.experimental", "tf.estimator.inputs", "tf.feature_column", "tf.train",
    "tf.contrib.layers",
)  # fmt: skip
_RENAMED = {
    "real_valued_column": "tf.feature_column.numeric_column",
    "sparse_column_with_keys": "tf.feature_column.categorical_column_with_vocabulary_list",
    "sparse_column_with_hash_bucket": "tf.feature_column.categorical_column_with_hash_bucket",
    "sparse_column_with_integerized_feature": "tf.feature_column.categorical_column_with_identity",
    "one_hot_column": "tf.feature_column.indicator_column",
    "convolution2d": "tf.contrib.layers.conv2d",
}
_LOST = {
    "normalizer_fn": "a keras.layers.BatchNormalization after a layer with use_bias=False and no activation, then a "
    "keras.layers.Activation",
    "normalizer_params": "arguments of keras.layers.BatchNormalization",
    "biases_initializer": "it is bias_initializer; None is use_bias=False",
    "reuse": "call one layer twice to share its variables; leave it out",
    "variables_collections": "there are no collections; leave it out",
    "outputs_collections": "there are no collections; leave it out",
    "data_format": "it is 'channels_last' or 'channels_first', for NHWC and NCHW",
    "is_training": "Keras says whether it trains; leave it out",
}
_LATER = {
    "weights_initializer": "kernel_initializer", "weights_regularizer": "kernel_regularizer",
    "biases_regularizer": "bias_regularizer", "scope": "name",
}  # fmt: skip
_WEIGHTS = (
    "activation_fn='relu' normalizer_fn? normalizer_params? weights_initializer? weights_regularizer? "
    "biases_initializer? biases_regularizer? reuse? variables_collections? outputs_collections? trainable? scope?"
)
_DEFAULTS = "defaults of tf.contrib are written out; add what an arg_scope sets"
_OTHER = "its layers have defaults of their own (activation relu, padding SAME); take the layer of the same kind in " \
    f"keras.layers, with these written out; {_GONE}"  # fmt: skip
_LAYERS = (
    write("tf.contrib.layers.fully_connected", "keras.layers.Dense(num_outputs, activation=activation_fn, *rest)"
          "(inputs)", f"inputs num_outputs {_WEIGHTS}", _DEFAULTS, _LOST, _LATER),
    write("tf.contrib.layers.conv2d",
          "keras.layers.Conv2D(num_outputs, kernel_size, strides=stride, padding=padding, dilation_rate=rate, "
          "activation=activation_fn, *rest)(inputs)",
          f"inputs num_outputs kernel_size stride? padding='same' data_format? rate? {_WEIGHTS}", _DEFAULTS, _LOST,
          _LATER),
    write("tf.contrib.layers.max_pool2d",
          "keras.layers.MaxPooling2D(kernel_size, strides=stride, padding=padding, *rest)(inputs)",
          "inputs kernel_size stride=2 padding='valid' data_format? outputs_collections? scope?", _DEFAULTS, _LOST,
          _LATER),
    write("tf.contrib.layers.dropout", "keras.layers.Dropout(1 - keep_prob, *rest)(inputs)",
          "inputs keep_prob=0.5 noise_shape? is_training? outputs_collections? scope? seed?", _DEFAULTS, _LOST, _LATER),
    write("tf.contrib.layers.flatten", "keras.layers.Flatten(*rest)(inputs)", "inputs outputs_collections? scope?",
          gone=_LOST, renamed=_LATER),
    write("tf.contrib.layers.l1_regularizer", "keras.regularizers.L1(scale)", "scale scope?"),
    write("tf.contrib.layers.l2_regularizer", "keras.regularizers.L2(scale / 2)", "scale scope?",
          "TensorFlow 1 took half the sum of squares, Keras takes all of it"),
    write("tf.contrib.layers.l1_l2_regularizer", "keras.regularizers.L1L2(scale_l1, scale_l2 / 2)",
          "scale_l1=1.0 scale_l2=1.0 scope?", "TensorFlow 1 took half the sum of squares, Keras takes all of it"),
    write("tf.contrib.layers.xavier_initializer", "keras.initializers.GlorotUniform(seed)", "uniform? seed? dtype?",
          gone={"uniform": "with uniform=False it is keras.initializers.GlorotNormal"}),
)  # fmt: skip
_OTHERS = (
    missing("tf.contrib.layers.*", _OTHER),
    missing("tf.contrib.slim.arg_scope", "give each layer the arguments that it sets"),
    missing("tf.contrib.slim.*", _OTHER),
    missing("tf.contrib.estimator.clip_gradients_by_norm", "give the optimizer itself global_clipnorm=CLIP_NORM"),
    leave_out("tf.contrib.distribute.*", f"{_GONE}: {RUN_CONFIG['train_distribute']}"),
    write("tf.contrib.training.HParams", "dict(*rest)", why="hyper-parameters are `params:` of job.yaml"),
    write("tf.contrib.learn.Experiment", "ht.train_and_evaluate(estimator, train_spec, eval_spec)", "estimator *",
          "its input functions and steps are those of ht.TrainSpec and ht.EvalSpec"),
    missing("tf.contrib.*", _GONE),
)  # fmt: skip
CONTRIB_TABLE: dict[str, Counterpart] = table((*_LAYERS, *_OTHERS))
"""By full name (hpc_train.migration.names); layers of slim have those of tf.contrib.layers."""


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
