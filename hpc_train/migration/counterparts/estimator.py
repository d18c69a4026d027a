"""Counterparts of tf.estimator, its hooks, feature columns and what belongs to them (TensorFlow 1.15 to 2.15)."""

from __future__ import annotations

from hpc_train.config.estimator_arguments import (
    BEST_EXPORTER,
    CANNED,
    EARLY_STOPPING,
    ESTIMATOR,
    EVAL_SPEC,
    EXPORTERS,
    FEATURE_COLUMN,
    METHODS,
    NAMES,
    RUN_CONFIG,
    TRAIN_SPEC,
)
from hpc_train.migration.counterparts.row import Counterpart, leave_out, missing, table, write

_CONFIG = (
    "model_dir? tf_random_seed? save_summary_steps? save_checkpoints_steps? save_checkpoints_secs? session_config? "
    "keep_checkpoint_max? keep_checkpoint_every_n_hours? log_step_count_steps? train_distribute? device_fn? protocol? "
    "eval_distribute? experimental_distribute? experimental_max_worker_delay_secs? session_creation_timeout_secs? "
    "checkpoint_save_graph_def?"
)
_RULE = "min_steps? run_every_secs? run_every_steps?"
_LINEAR = "weight_column? {label}optimizer? config? warm_start_from? loss_reduction? sparse_combiner?"
_DNN = "weight_column? {label}optimizer? activation_fn? dropout? config? warm_start_from? loss_reduction? batch_norm?"
_BOTH = (
    "model_dir? linear_feature_columns? linear_optimizer? dnn_feature_columns? dnn_optimizer? dnn_hidden_units? "
    "dnn_activation_fn? dnn_dropout? {units}? weight_column? {label}config? warm_start_from? loss_reduction? "
    "batch_norm? linear_sparse_combiner?"
)
_VOCABULARY = "label_vocabulary? "
_TREES = (
    "boosted trees are a built-in model of a table's shards, by XGBoost: `model: {builtin: gbdt, schema: schema.yaml}` "
    "in job.yaml, or `hpc-train fit TABLE --label COLUMN --model gbdt`. n_trees is train.max_steps, max_depth and "
    "learning_rate are called so, l1_regularization l1, l2_regularization l2, tree_complexity gamma"
)
_HEADS = "model_fn compiles the model with its loss and metrics, and that is all that a head did"
_BASELINE = (
    "a baseline is a Keras model without inputs that count: a Dense layer with kernel_initializer='zeros' and "
    "trainable bias alone; the means of labels are shown by `hpc-train stats`"
)
_SEQUENCES = (
    "sequences are rows of different lengths here (`pad` in job.yaml, docs/data_format.md), given to "
    "keras.layers.Embedding and recurrent layers in model.py"
)
_RECEIVER = (
    "the export takes what the model takes; preprocessing goes into `serving_fn`, a function of the model "
    "(docs/exports.md)"
)
_SESSION = "TensorFlow has no sessions any more; hpc_train sets threads and GPUs of each rank"
_STRATEGY = RUN_CONFIG["train_distribute"]
_MODEL_DIR = {"model_dir": ESTIMATOR["model_dir"]}
_TF_CONFIG = "the launcher says which ranks there are; TF_CONFIG is ignored"
_HOOK = "a subclass of ht.Hook: begin(context), before_step(step), after_step(step, loss), end(step); docs/hooks.md"
_ONE_CALL = (
    "training and evaluation are one call here; max_steps counts over all calls and restarts, where `steps` began anew "
    "each time"
)

_NO_DEFAULT = {
    "default_value": "all rows of shards have a value; write into them the one that missing ones are to have"
}

_ESTIMATORS = (
    write("tf.estimator.Estimator", "ht.Estimator(model_fn, config, *rest)",
          "model_fn model_dir? config=ht.RunConfig(model_dir) params? warm_start_from?",
          "model_fn(params) returns a compiled Keras model; docs/estimator.md", ESTIMATOR),
    write("tf.estimator.RunConfig", "ht.RunConfig(model_dir, *rest)", _CONFIG, gone=RUN_CONFIG),
    write("tf.estimator.TrainSpec", "ht.TrainSpec(input_fn, *rest)", "input_fn max_steps? hooks? saving_listeners?",
          gone=TRAIN_SPEC),
    write("tf.estimator.EvalSpec", "ht.EvalSpec(input_fn, *rest)",
          "input_fn steps? name? hooks? exporters? start_delay_secs? throttle_secs?", gone=EVAL_SPEC),
    write("tf.estimator.train_and_evaluate", "ht.train_and_evaluate(estimator, train_spec, eval_spec)",
          "estimator train_spec eval_spec", "on each rank; the result is (metrics, exports). Or `hpc-train "
          "train job.yaml`"),
    leave_out("tf.estimator.EstimatorSpec", f"{NAMES['EstimatorSpec']}: its loss, optimizer (train_op) and metrics "
              "(eval_metric_ops) are arguments of model.compile; predictions are what the model returns"),
    leave_out("tf.estimator.ModeKeys", f"{NAMES['ModeKeys']}: layers such as Dropout do by themselves"),
    leave_out("tf.estimator.add_metrics", "give the metrics to model.compile(metrics=[…]) in model_fn"),
    write("tf.estimator.WarmStartSettings", "ht.WarmStartSettings(ckpt_to_initialize_from, *rest)",
          "ckpt_to_initialize_from vars_to_warm_start? var_name_to_vocab_info? var_name_to_prev_var_name?",
          "names are paths of Keras variables; docs/warm_start.md",
          {"var_name_to_vocab_info": "vocabularies are not remapped: the new model needs the old one's vocabulary"}),
    missing("tf.estimator.VocabInfo", "vocabularies are not remapped: the new model needs the old one's vocabulary"),
    write("keras.estimator.model_to_estimator", "ht.Estimator(lambda: keras_model, config)",
          "keras_model=keras.models.load_model(keras_model_path) keras_model_path? custom_objects? model_dir? "
          "config=ht.RunConfig(model_dir) checkpoint_format?",
          "make the model within the function, which is called on each rank, and compile it with Keras 3",
          {**_MODEL_DIR, "keras_model_path": "return keras.models.load_model(PATH) from the function; a .keras file",
           "custom_objects": "give them to keras.models.load_model", "checkpoint_format": "there is one; leave it out",
           "metric_names_map": "name the metrics in model.compile", "export_outputs": _RECEIVER}),
    missing("tf.estimator.tpu.*", "hpc_train trains on GPUs and cores; TPUEstimator's program is an Estimator's beside "
            "that: input_fn(params) gives batches of params['batch_size'], which is `batch_size` of job.yaml"),
    write("tf.estimator.RunConfig.replace", "dataclasses.replace(self, *rest)", "",
          "a RunConfig cannot be changed; import dataclasses", RUN_CONFIG),
    missing("tf.estimator.*", "the package does not know this name of tf.estimator"),
)  # fmt: skip
_METHODS = (
    write("Estimator.fit",  # of tf.contrib.learn
          "ht.train_and_evaluate(self, ht.TrainSpec(input_fn, max_steps=max_steps), ht.EvalSpec(eval_input_fn))",
          "x? y? input_fn steps? max_steps=steps *", _ONE_CALL),
    write("Estimator.train",
          "ht.train_and_evaluate(self, ht.TrainSpec(input_fn, max_steps=max_steps, hooks=hooks, "
          "saving_listeners=saving_listeners), ht.EvalSpec(eval_input_fn))",
          "input_fn hooks? steps? max_steps=steps saving_listeners?",
          _ONE_CALL),
    write("Estimator.evaluate",
          "ht.EvalSpec(input_fn, steps=steps, name=name, hooks=hooks)", "input_fn steps? hooks? checkpoint_path? name?",
          f"{METHODS['evaluate']}; ht.train_and_evaluate returns the last metrics"),
    leave_out("Estimator.predict", f"{METHODS['predict']}; in Python keras.models.load_model of the export's "
              "model.keras, and model.predict"),
    leave_out("Estimator.export_saved_model", METHODS["export_saved_model"]),
    leave_out("Estimator.export_savedmodel", METHODS["export_savedmodel"]),
    leave_out("Estimator.experimental_export_all_saved_models", METHODS["experimental_export_all_saved_models"]),
    leave_out("Estimator.get_variable_names", METHODS["get_variable_names"]),
    leave_out("Estimator.get_variable_value", METHODS["get_variable_value"]),
    leave_out("Estimator.latest_checkpoint", METHODS["latest_checkpoint"]),
    leave_out("Estimator.eval_dir", METHODS["eval_dir"]),
    leave_out("Estimator.model_dir", METHODS["model_dir"]),
)  # fmt: skip
_EXPORTS = (
    write("tf.estimator.FinalExporter", "ht.FinalExporter(name, *rest)",
          "name? serving_input_receiver_fn? assets_extra? as_text?", gone=EXPORTERS),
    write("tf.estimator.LatestExporter", "ht.LatestExporter(name, *rest)",
          "name? serving_input_receiver_fn? assets_extra? as_text? exports_to_keep?", gone=EXPORTERS),
    write("tf.estimator.BestExporter", "ht.BestExporter(name, *rest)",
          "name? serving_input_receiver_fn? event_file_pattern? compare_fn? assets_extra? as_text? exports_to_keep?",
          "by default the smallest loss is the best; `metric` and `mode` choose another one", BEST_EXPORTER),
    leave_out("tf.estimator.export.ServingInputReceiver", _RECEIVER),
    leave_out("tf.estimator.export.TensorServingInputReceiver", _RECEIVER),
    leave_out("tf.estimator.export.build_raw_serving_input_receiver_fn", _RECEIVER),
    leave_out("tf.estimator.export.build_parsing_serving_input_receiver_fn",
              "write a serving_fn(model) whose tf.function parses tf.io.parse_example(serialized, feature_spec), and "
              "calls the model (docs/exports.md)"),
    leave_out("tf.estimator.export.*", "outputs of an export are named by the keys of the dict that the model or "
              "`serving_fn` returns (docs/exports.md)"),
    missing("tf.estimator.Exporter", "there are no exporters of one's own; a hook's after_evaluate may write "
            "what it wants"),
)  # fmt: skip
_STOPPING = tuple(
    write(f"tf.estimator.experimental.{name}_hook", f"ht.{name}(metric_name, {limit}, *rest)",
          f"estimator? metric_name {limit} eval_dir? {_RULE}", "give it to ht.TrainSpec(early_stopping=…), not to "
          "hooks; `train.early_stopping` of job.yaml", EARLY_STOPPING)
    for name, limit in (
        ("stop_if_no_decrease", "max_steps_without_decrease"),
        ("stop_if_no_increase", "max_steps_without_increase"),
        ("stop_if_lower", "threshold"),
        ("stop_if_higher", "threshold"),
    )
)  # fmt: skip
_EXPERIMENTAL = (
    *_STOPPING,
    leave_out("tf.estimator.experimental.make_early_stopping_hook",
              "a hook that calls context.request_stop(reason); docs/hooks.md"),
    leave_out("tf.estimator.experimental.make_stop_at_checkpoint_step_hook", NAMES["StopAtStepHook"]),
    leave_out("tf.estimator.experimental.InMemoryEvaluatorHook",
              "ht.train_and_evaluate evaluates during training (`throttle_secs`)"),
    leave_out("tf.estimator.experimental.build_raw_supervised_input_receiver_fn", _RECEIVER),
    write("tf.estimator.experimental.LinearSDCA", "keras.optimizers.Ftrl(learning_rate=0.1)", "*",
          "there is no SDCA; Ftrl is the optimizer that linear models had by default"),
    missing("tf.estimator.experimental.KMeans", "cluster by scikit-learn, as a job of its own program "
            "(`module:` in job.yaml); examples/scikit_learn"),
    missing("tf.estimator.experimental.RNN*", _SEQUENCES),
    missing("tf.estimator.experimental.Linear*", "build it of ht.feature_column and Keras layers in model_fn"),
    missing("tf.estimator.experimental.*", "the package does not know this name of tf.estimator.experimental"),
)  # fmt: skip
_CANNED = (
    write("tf.estimator.LinearClassifier", "ht.LinearClassifier(feature_columns, *rest)",
          "feature_columns model_dir? n_classes? " + _LINEAR.format(label=_VOCABULARY), gone=CANNED),
    write("tf.estimator.LinearRegressor", "ht.LinearRegressor(feature_columns, *rest)",
          "feature_columns model_dir? label_dimension? " + _LINEAR.format(label=""), gone=CANNED),
    write("tf.estimator.DNNClassifier", "ht.DNNClassifier(hidden_units, feature_columns, *rest)",
          "hidden_units feature_columns model_dir? n_classes? " + _DNN.format(label=_VOCABULARY), gone=CANNED),
    write("tf.estimator.DNNRegressor", "ht.DNNRegressor(hidden_units, feature_columns, *rest)",
          "hidden_units feature_columns model_dir? label_dimension? " + _DNN.format(label=""), gone=CANNED),
    write("tf.estimator.DNNLinearCombinedClassifier", "ht.DNNLinearCombinedClassifier(*rest)",
          _BOTH.format(units="n_classes", label=_VOCABULARY), gone=CANNED),
    write("tf.estimator.DNNLinearCombinedRegressor", "ht.DNNLinearCombinedRegressor(*rest)",
          _BOTH.format(units="label_dimension", label=""), gone=CANNED),
    missing("tf.estimator.LinearEstimator", f"take ht.LinearClassifier or ht.LinearRegressor: {_HEADS}"),
    missing("tf.estimator.DNNEstimator", f"take ht.DNNClassifier or ht.DNNRegressor: {_HEADS}"),
    missing("tf.estimator.DNNLinearCombinedEstimator",
            f"take ht.DNNLinearCombinedClassifier or -Regressor: {_HEADS}"),
    missing("tf.estimator.BoostedTrees*", _TREES),
    missing("tf.estimator.Baseline*", _BASELINE),
    write("tf.estimator.BinaryClassHead", "keras.losses.BinaryCrossentropy(from_logits=True)", "*", _HEADS),
    write("tf.estimator.MultiClassHead", "keras.losses.SparseCategoricalCrossentropy(from_logits=True)", "*", _HEADS),
    write("tf.estimator.MultiLabelHead", "keras.losses.BinaryCrossentropy(from_logits=True)", "*", _HEADS),
    write("tf.estimator.RegressionHead", "keras.losses.MeanSquaredError()", "*", _HEADS),
    write("tf.estimator.PoissonRegressionHead", "keras.losses.Poisson()", "*",
          f"{_HEADS}; the model's last layer is exp"),
    write("tf.estimator.LogisticRegressionHead", "keras.losses.BinaryCrossentropy(from_logits=True)", "*", _HEADS),
    leave_out("tf.estimator.MultiHead", "a model of several outputs: model.compile(loss={output: loss}, "
              "loss_weights={output: weight})"),
    write("tf.estimator.multi_class_head", "keras.losses.SparseCategoricalCrossentropy(from_logits=True)", "*", _HEADS),
    write("tf.estimator.binary_classification_head", "keras.losses.BinaryCrossentropy(from_logits=True)", "*", _HEADS),
    write("tf.estimator.regression_head", "keras.losses.MeanSquaredError()", "*", _HEADS),
    leave_out("tf.estimator.classifier_parse_example_spec", "`hpc-train shard` reads TFRecord files; docs/shards.md"),
    leave_out("tf.estimator.regressor_parse_example_spec", "`hpc-train shard` reads TFRecord files; docs/shards.md"),
)  # fmt: skip
_COLUMNS = (
    *(
        write(f"tf.feature_column.{name}", f"ht.feature_column.{name}({needed}, *rest)", signature,
              gone=FEATURE_COLUMN | (_NO_DEFAULT if name == "numeric_column" else {}),
              renamed={"dimension": "shape"} if name == "numeric_column" else {})
        for name, needed, signature in (
            ("numeric_column", "key", "key shape? default_value? dtype? normalizer_fn?"),
            ("bucketized_column", "source_column, boundaries", "source_column boundaries"),
            ("categorical_column_with_vocabulary_list", "key, vocabulary_list",
             "key vocabulary_list dtype? default_value? num_oov_buckets?"),
            ("categorical_column_with_vocabulary_file", "key, vocabulary_file",
             "key vocabulary_file vocabulary_size? dtype? default_value? num_oov_buckets? file_format?"),
            ("categorical_column_with_hash_bucket", "key, hash_bucket_size", "key hash_bucket_size dtype?"),
            ("categorical_column_with_identity", "key, num_buckets", "key num_buckets default_value?"),
            ("crossed_column", "keys, hash_bucket_size", "keys hash_bucket_size hash_key?"),
            ("indicator_column", "categorical_column", "categorical_column"),
            ("embedding_column", "categorical_column, dimension",
             "categorical_column dimension combiner? initializer? ckpt_to_load_from? tensor_name_in_ckpt? max_norm? "
             "trainable? use_safe_embedding_lookup?"),
        )
    ),
    missing("tf.feature_column.shared_embeddings",
            "share one keras.layers.Embedding in a model_fn of one's own; ht.feature_column gives each column its own"),
    missing("tf.feature_column.shared_embedding_columns",
            "share one keras.layers.Embedding in a model_fn of one's own; ht.feature_column gives each column its own"),
    missing("tf.feature_column.sequence_*", _SEQUENCES),
    missing("tf.feature_column.weighted_categorical_column",
            "multiply embeddings by weights in a model_fn of one's own, as keras.layers.CategoryEncoding does by "
            "its count_weights"),
    missing("tf.feature_column.input_layer", "columns are given to ht.DNNClassifier and the like; a model_fn of one's "
            "own takes the features by name, as keras.Input, and keras.layers"),
    missing("tf.feature_column.linear_model", "take ht.LinearClassifier or ht.LinearRegressor"),
    leave_out("tf.feature_column.make_parse_example_spec", "`hpc-train shard` reads TFRecord files; docs/shards.md"),
    missing("tf.feature_column.*", "the package does not know this feature column"),
    missing("keras.layers.DenseFeatures", "Keras 3 has none: give the columns to ht.DNNClassifier and the like, or "
            "take the features by name, as keras.Input, and keras.layers"),
)  # fmt: skip
_INPUTS = (
    write("tf.estimator.inputs.numpy_input_fn",
          "lambda: tf.data.Dataset.from_tensor_slices((x, y)).shuffle(queue_capacity).repeat(num_epochs)"
          ".batch(batch_size)",
          "x y=None batch_size=128 num_epochs=1 shuffle? queue_capacity=1000 num_threads?",
          "or save the arrays by numpy.savez, and `hpc-train shard` them: ht.HDF5Input then shuffles and deals rows",
          {"num_threads": "leave it out", "shuffle": "False is a dataset without .shuffle()"}),
    write("tf.estimator.inputs.pandas_input_fn",
          "lambda: tf.data.Dataset.from_tensor_slices((dict(x), y)).shuffle(queue_capacity).repeat(num_epochs)"
          ".batch(batch_size)",
          "x y=None batch_size=128 num_epochs=1 shuffle? queue_capacity=1000 num_threads? target_column?",
          "or `hpc-train shard` the table itself (CSV, Parquet; docs/shards.md)",
          {"num_threads": "leave it out", "target_column": "it is the label; name the columns of y",
           "shuffle": "False is a dataset without .shuffle()"}),
    missing("tf.estimator.inputs.*", "write a tf.data.Dataset, or `hpc-train shard` the data"),
)  # fmt: skip
_HOOKS = (
    write("tf.train.SessionRunHook", "ht.Hook", why=_HOOK),
    leave_out("tf.train.SessionRunArgs", "after_step(step, loss) has the loss, and context.model all variables; no "
              "tensor is fetched"),
    leave_out("tf.train.SessionRunContext", "context.request_stop(reason) of begin(context) ends training"),
    leave_out("tf.train.SessionRunValues", "after_step(step, loss) has the loss"),
    write("tf.train.CheckpointSaverListener", "ht.SavingListener", why="before_save(step), after_save(step, path)"),
    *(
        leave_out(f"tf.train.{name}", why)
        for name, why in (
            ("CheckpointSaverHook", NAMES["CheckpointSaverHook"]),
            ("StopAtStepHook", NAMES["StopAtStepHook"]),
            ("LoggingTensorHook", NAMES["LoggingTensorHook"]),
            ("SummarySaverHook", f"{NAMES['SummarySaverHook']}; `run.save_histograms_steps`"),
            ("StepCounterHook", "steps and examples a second are logged and in metrics.jsonl"),
            ("NanTensorHook", 'RunConfig\'s `on_nan`: "halt" (the default), "skip" or "rollback"'),
            ("ProfilerHook", "RunConfig's profile_steps"),
            ("FeedFnHook", "input_fn gives the data; nothing is fed"),
            ("FinalOpsHook", "a hook's end(step)"),
            ("GlobalStepWaiterHook", "ranks start together"),
            ("SecondOrStepTimer", "count steps in after_step(step, loss)"),
            ("MonitoredTrainingSession", "ht.train_and_evaluate restores, saves and ends"),
            ("MonitoredSession", "ht.train_and_evaluate restores, saves and ends"),
            ("Scaffold", "Keras initialises variables; `warm_start_from` takes them from a checkpoint"),
            ("Saver", "checkpoints hold all variables, and are kept by keep_checkpoint_max"),
            ("get_or_create_global_step", "optimizer.iterations, which the job counts and restores"),
            ("get_global_step", "optimizer.iterations, which the job counts and restores"),
            ("create_global_step", "optimizer.iterations, which the job counts and restores"),
            ("init_from_checkpoint", "`warm_start_from` of ht.Estimator or job.yaml; docs/warm_start.md"),
            ("Server", _TF_CONFIG),
            ("ClusterSpec", _TF_CONFIG),
            ("replica_device_setter", '`strategy` "async" has parameter servers'),
            ("SyncReplicasOptimizer", '`strategy` "sync" averages the gradients of all ranks'),
        )
    ),
)  # fmt: skip
_DISTRIBUTION = (
    leave_out("tf.distribute.experimental.ParameterServerStrategy", f'RunConfig\'s `strategy` "async"; {_TF_CONFIG}'),
    leave_out("tf.distribute.ParameterServerStrategy", f'RunConfig\'s `strategy` "async"; {_TF_CONFIG}'),
    write("tf.distribute.InputContext", "ht.InputContext", why="the argument of an input_fn, with input_pipeline_id "
          "and num_input_pipelines"),
    leave_out("tf.distribute.*", _STRATEGY),
    leave_out("tf.ConfigProto", _SESSION),
    leave_out("tf.GPUOptions", "each rank gets a GPU of its own, and memory as it needs it with "
              "TF_FORCE_GPU_ALLOW_GROWTH=true"),
    leave_out("tf.Session", _SESSION),
    leave_out("tf.InteractiveSession", _SESSION),
    missing("tf.placeholder", "input_fn gives the data, and the model takes keras.Input"),
    leave_out("tf.disable_v2_behavior", "Keras 3 runs with TensorFlow 2's behaviour alone"),
    leave_out("tf.disable_eager_execution", "Keras 3 runs with TensorFlow 2's behaviour alone"),
    leave_out("tf.enable_eager_execution", "TensorFlow 2 does so by itself"),
    leave_out("tf.set_random_seed", "RunConfig's tf_random_seed"),
    leave_out("tf.app.run", "call main() by itself; absl.app.run works as before"),
    *(
        write(f"tf.logging.{name}", f"logging.{code}", why="import logging; tf.logging is gone since TensorFlow 2.0")
        for name, code in (
            ("debug", "debug"), ("info", "info"), ("warn", "warning"), ("warning", "warning"), ("error", "error"),
            ("fatal", "critical"), ("log", "log"), ("DEBUG", "DEBUG"), ("INFO", "INFO"), ("WARN", "WARNING"),
            ("ERROR", "ERROR"), ("FATAL", "CRITICAL"),
        )
    ),
    leave_out("tf.logging.set_verbosity", "`hpc-train --log-level` says how much is logged"),
    missing("tf.logging.*", "take Python's logging; tf.logging is gone since TensorFlow 2.0"),
)  # fmt: skip

ESTIMATOR_TABLE: dict[str, Counterpart] = table(
    (*_ESTIMATORS, *_METHODS, *_EXPORTS, *_EXPERIMENTAL, *_CANNED, *_COLUMNS, *_INPUTS, *_HOOKS, *_DISTRIBUTION)
)
"""By full name (hpc_train.migration.names)."""
