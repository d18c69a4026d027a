"""Counterparts in Keras 3 of what model functions of TensorFlow 1 are made of: layers, losses, metrics, optimizers."""

from __future__ import annotations

from hpc_train.migration.counterparts.row import Counterpart, leave_out, missing, table, write

_LAYER = "activation? use_bias? kernel_initializer? bias_initializer? kernel_regularizer? bias_regularizer? " \
    "activity_regularizer? kernel_constraint? bias_constraint? trainable? name? reuse?"  # fmt: skip
_GONE = {"reuse": "call one layer twice to share its variables; leave it out"}
_LOSS = "a loss of model.compile, which averages it over the batch of all ranks"
_LOST = {
    "weights": "they are the third part of a batch, (x, y, sample_weight); weights of classes are train.class_weight "
    "of job.yaml",
    "reduction": "it is reduction of the loss: 'sum' or 'sum_over_batch_size'",
}
_METRIC = "a metric of model.compile"
_UNWEIGHTED = {
    "weights": "they are the third part of a batch, (x, y, sample_weight), and the metric is one of weighted_metrics "
    "of model.compile",
}
_OPTIMIZER = "the optimizer of model.compile; nothing else applies gradients"
_LOCKS = {"use_locking": "leave it out"}
_SUMMARY = "losses, rates and metrics are in metrics.jsonl and TensorBoard by themselves; docs/tensorboard.md"

_LAYERS = (
    write("tf.layers.dense", "keras.layers.Dense(units, *rest)(inputs)", f"inputs units {_LAYER}", gone=_GONE),
    write("tf.layers.conv2d", "keras.layers.Conv2D(filters, kernel_size, *rest)(inputs)",
          f"inputs filters kernel_size strides? padding? data_format? dilation_rate? {_LAYER}", gone=_GONE),
    write("tf.layers.conv1d", "keras.layers.Conv1D(filters, kernel_size, *rest)(inputs)",
          f"inputs filters kernel_size strides? padding? data_format? dilation_rate? {_LAYER}", gone=_GONE),
    write("tf.layers.max_pooling2d", "keras.layers.MaxPooling2D(pool_size, strides, *rest)(inputs)",
          "inputs pool_size strides padding? data_format? name?"),
    write("tf.layers.average_pooling2d", "keras.layers.AveragePooling2D(pool_size, strides, *rest)(inputs)",
          "inputs pool_size strides padding? data_format? name?"),
    write("tf.layers.max_pooling1d", "keras.layers.MaxPooling1D(pool_size, strides, *rest)(inputs)",
          "inputs pool_size strides padding? data_format? name?"),
    write("tf.layers.flatten", "keras.layers.Flatten(*rest)(inputs)", "inputs name? data_format?"),
    write("tf.layers.dropout", "keras.layers.Dropout(rate, *rest)(inputs)",
          "inputs rate=0.5 noise_shape? seed? training? name?", gone={"training": "Keras says whether it trains"}),
    write("tf.layers.batch_normalization", "keras.layers.BatchNormalization(*rest)(inputs)",
          "inputs axis? momentum? epsilon? center? scale? training?",
          "averages are updated by Keras; UPDATE_OPS are none", {"training": "Keras says whether it trains", **_GONE}),
    missing("tf.layers.*", "take the layer of the same kind in keras.layers"),
)  # fmt: skip
_LOSSES = (
    *(
        write(f"tf.losses.{name}", code, f"labels {outputs} weights? {more} *", _LOSS, _LOST)
        for name, code, outputs, more in (
            ("sparse_softmax_cross_entropy", "keras.losses.SparseCategoricalCrossentropy(from_logits=True)", "logits",
             "scope?"),
            ("softmax_cross_entropy",
             "keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=label_smoothing)", "logits",
             "label_smoothing?"),
            ("sigmoid_cross_entropy",
             "keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=label_smoothing)", "logits",
             "label_smoothing?"),
            ("mean_squared_error", "keras.losses.MeanSquaredError()", "predictions", "scope?"),
            ("absolute_difference", "keras.losses.MeanAbsoluteError()", "predictions", "scope?"),
            ("huber_loss", "keras.losses.Huber(delta)", "predictions", "delta?"),
            ("log_loss", "keras.losses.BinaryCrossentropy()", "predictions", "epsilon?"),
        )
    ),
    *(
        write(f"tf.nn.{name}_cross_entropy_with_logits{version}", f"keras.losses.{made}Crossentropy(from_logits=True)",
              "*", _LOSS)
        for name, version, made in (
            ("sparse_softmax", "", "SparseCategorical"),
            ("softmax", "", "Categorical"),
            ("softmax", "_v2", "Categorical"),
            ("sigmoid", "", "Binary"),
        )
    ),
    write("keras.losses.Reduction.SUM", "'sum'"),
    write("keras.losses.Reduction.SUM_OVER_BATCH_SIZE", "'sum_over_batch_size'"),
    leave_out("tf.losses.get_regularization_loss", "Keras adds the layers' regularisation to the loss"),
    leave_out("tf.losses.get_total_loss", "Keras adds the layers' regularisation to the loss"),
    missing("tf.losses.*", "take the loss of the same kind in keras.losses"),
)  # fmt: skip
_METRICS = (
    *(
        write(f"tf.metrics.{name}", code, "labels predictions weights? *", _METRIC, _UNWEIGHTED)
        for name, code in (
            ("accuracy", "'accuracy'"),
            ("precision", "keras.metrics.Precision()"),
            ("recall", "keras.metrics.Recall()"),
            ("mean_squared_error", "keras.metrics.MeanSquaredError()"),
            ("root_mean_squared_error", "keras.metrics.RootMeanSquaredError()"),
            ("mean_absolute_error", "keras.metrics.MeanAbsoluteError()"),
        )
    ),
    write("tf.metrics.auc", "keras.metrics.AUC(num_thresholds=num_thresholds, curve=curve)",
          "labels predictions weights? num_thresholds? metrics_collections? updates_collections? curve? *", _METRIC,
          _UNWEIGHTED),
    missing("tf.metrics.*", "take the metric of the same kind in keras.metrics"),
)  # fmt: skip
_RATE = "global_step is the optimizer's own"
_OPTIMIZERS = (
    write("tf.train.AdamOptimizer", "keras.optimizers.Adam(learning_rate, *rest)",
          "learning_rate=0.001 beta1? beta2? epsilon? use_locking? name?", _OPTIMIZER, _LOCKS,
          {"beta1": "beta_1", "beta2": "beta_2"}),
    write("tf.train.GradientDescentOptimizer", "keras.optimizers.SGD(learning_rate, *rest)",
          "learning_rate use_locking? name?", _OPTIMIZER, _LOCKS),
    write("tf.train.MomentumOptimizer", "keras.optimizers.SGD(learning_rate, momentum=momentum, *rest)",
          "learning_rate momentum use_locking? name? use_nesterov?", _OPTIMIZER, _LOCKS, {"use_nesterov": "nesterov"}),
    write("tf.train.AdagradOptimizer", "keras.optimizers.Adagrad(learning_rate, *rest)",
          "learning_rate initial_accumulator_value? use_locking? name?", _OPTIMIZER, _LOCKS),
    write("tf.train.FtrlOptimizer", "keras.optimizers.Ftrl(learning_rate, *rest)",
          "learning_rate learning_rate_power? initial_accumulator_value? l1_regularization_strength? "
          "l2_regularization_strength? use_locking? name?", _OPTIMIZER, _LOCKS),
    write("tf.train.RMSPropOptimizer", "keras.optimizers.RMSprop(learning_rate, *rest)",
          "learning_rate decay? momentum? epsilon? use_locking? centered? name?", _OPTIMIZER, _LOCKS, {"decay": "rho"}),
    write("tf.train.AdadeltaOptimizer", "keras.optimizers.Adadelta(learning_rate, *rest)",
          "learning_rate=0.001 rho? epsilon? use_locking? name?", _OPTIMIZER, _LOCKS),
    *(
        missing(f"tf.train.{name}Optimizer", "take keras.optimizers.Adagrad or Ftrl, whose arguments are others; "
                "regularize by kernel_regularizer of the layers, or Ftrl's l1_regularization_strength")
        for name in ("ProximalAdagrad", "ProximalGradientDescent", "AdagradDA")
    ),
    write("tf.train.exponential_decay",
          "keras.optimizers.schedules.ExponentialDecay(learning_rate, decay_steps, decay_rate, *rest)",
          "learning_rate global_step? decay_steps decay_rate staircase? name?", gone={"global_step": _RATE}),
    write("tf.train.piecewise_constant", "keras.optimizers.schedules.PiecewiseConstantDecay(boundaries, values)",
          "x? boundaries values name?", _RATE),
    write("tf.train.polynomial_decay",
          "keras.optimizers.schedules.PolynomialDecay(learning_rate, decay_steps, *rest)",
          "learning_rate global_step? decay_steps end_learning_rate? power? cycle? name?", gone={"global_step": _RATE}),
    write("tf.train.cosine_decay", "keras.optimizers.schedules.CosineDecay(learning_rate, decay_steps, *rest)",
          "learning_rate global_step? decay_steps alpha? name?", gone={"global_step": _RATE}),
)  # fmt: skip
_INITIALIZERS = tuple(
    write(f"tf.{name}", f"keras.initializers.{code}", f"{signature} dtype?")
    for old, code, signature in (
        ("truncated_normal", "TruncatedNormal(mean, stddev, *rest)", "mean=0.0 stddev=1.0 seed?"),
        ("random_normal", "RandomNormal(mean, stddev, *rest)", "mean=0.0 stddev=1.0 seed?"),
        ("random_uniform", "RandomUniform(minval, maxval, *rest)", "minval=0.0 maxval=1.0 seed?"),
        ("constant", "Constant(value)", "value=0.0"),
        ("zeros", "Zeros()", ""),
        ("ones", "Ones()", ""),
        ("glorot_uniform", "GlorotUniform(*rest)", "seed?"),
        ("glorot_normal", "GlorotNormal(*rest)", "seed?"),
        ("orthogonal", "Orthogonal(gain, *rest)", "gain=1.0 seed?"),
        ("variance_scaling", "VarianceScaling(*rest)", "scale? mode? distribution? seed?"),
        ("he_normal", "HeNormal(*rest)", "seed?"),
        ("he_uniform", "HeUniform(*rest)", "seed?"),
        ("lecun_normal", "LecunNormal(*rest)", "seed?"),
        ("lecun_uniform", "LecunUniform(*rest)", "seed?"),
    )
    for name in (f"{old}_initializer", f"initializers.{old}")
)
"""With the defaults of TensorFlow 1."""
_COLLECTIONS = (
    leave_out("tf.variable_scope", "layers have names; leave it out"),
    missing("tf.get_variable", "a variable belongs to a layer: self.add_weight in a keras.layers.Layer of one's own"),
    leave_out("tf.get_collection", "layers know their updates and regularisation losses; there are no collections"),
)
_NO_TENSOR = "a tensor of Keras does not pass through it: take keras.ops, or a keras.layers.Lambda; around a loss, " \
    "which Keras averages, leave it out"  # fmt: skip
_OF_TENSORS = (
    "abs add add_n broadcast_to clip_by_value cumsum divide einsum equal exp expand_dims gather gather_nd "
    "greater identity less  log logical_and logical_not matmul maximum minimum multiply not_equal one_hot "
    "ones_like pad pow reduce_all reduce_any reduce_logsumexp reduce_max reduce_mean reduce_min reduce_prod "
    "reduce_sum reverse round scatter_nd sign slice split sqrt square squared_difference stack stop_gradient "
    "strided_slice subtract tensordot tile to_float to_int32 to_int64 transpose unstack where while_loop zeros_like"
)
"""Functions of TensorFlow that programs call of the tensors of a model."""
_OPERATIONS = (
    write("tf.reshape", "keras.ops.reshape(tensor, shape)", "tensor shape name?"),
    write("tf.concat", "keras.ops.concatenate(values, axis=axis)", "values axis name?"),
    write("tf.cast", "keras.ops.cast(x, dtype)", "x dtype name?"),
    write("tf.squeeze", "keras.ops.squeeze(input, axis=axis)", "input axis? name?"),
    write("tf.nn.relu", "keras.activations.relu(features)", "features name?"),
    write("tf.nn.softmax", "keras.activations.softmax(logits)", "logits name?"),
    write("tf.nn.sigmoid", "keras.activations.sigmoid(x)", "x name?"),
    write("tf.nn.tanh", "keras.activations.tanh(x)", "x name?"),
    write("tf.tanh", "keras.activations.tanh(x)", "x name?"),
    write("tf.sigmoid", "keras.activations.sigmoid(x)", "x name?"),
    *(
        write(f"tf.nn.{name}", f"keras.activations.{name}(features)", "features name?")
        for name in ("elu", "selu", "relu6", "softplus", "softsign", "silu", "swish")
    ),
    write("tf.nn.leaky_relu", "keras.activations.leaky_relu(features, negative_slope=alpha)",
          "features alpha? name?"),
    *(missing(f"tf.{name}", _NO_TENSOR) for name in (*_OF_TENSORS.split(), "nn.*", "math.*", "linalg.*", "image.*")),
    write("tf.nn.dropout", "keras.layers.Dropout(rate, *rest)(x)",
          "x keep_prob=... noise_shape? seed? name? rate=1-keep_prob",
          gone={"keep_prob": "the rate is 1 - keep_prob, as in TensorFlow 1; if the second argument is a rate, as in "
                "TensorFlow 2, write it as it is"}),
    leave_out("tf.summary.*", _SUMMARY),
    leave_out("tf.name_scope", "layers have names; leave it out"),
    leave_out("tf.control_dependencies", "TensorFlow 2 runs a function's operations in their order"),
)  # fmt: skip

KERAS_TABLE: dict[str, Counterpart] = table(
    (*_LAYERS, *_LOSSES, *_METRICS, *_OPTIMIZERS, *_INITIALIZERS, *_COLLECTIONS)
)
"""By full name (hpc_train.migration.names)."""
OPERATIONS_TABLE: dict[str, Counterpart] = table(_OPERATIONS)
"""The same of what a model function has, and only there is replaced: elsewhere, as in tf.data, it works as before."""
