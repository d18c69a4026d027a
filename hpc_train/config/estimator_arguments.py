"""Arguments of TensorFlow's Estimator (tf.estimator of TensorFlow 2.15) that are none here, and what replaces each."""

from __future__ import annotations

_STRATEGY = "ranks are what the launcher starts (mpirun -np, hpc-train launch -n), and `strategy` says how they train"
_NETWORK = "ranks speak MPI, whose network is set by the environment (OMPI_MCA_…); leave it out"
_WAITING = "ranks start together, and `stall_timeout_secs` ends a job whose ranks do not move; leave it out"

ESTIMATOR = {
    "model_dir": "it is the RunConfig's: config=ht.RunConfig(model_dir)",
    "keras_model": "give model_fn, a function that makes and compiles the model",
}
RUN_CONFIG = {
    "session_config": "TensorFlow has no sessions any more; OMP_NUM_THREADS sets the threads of a rank, and each rank "
    "gets a GPU of its own; leave it out",
    "train_distribute": _STRATEGY,
    "eval_distribute": f'all ranks evaluate, or with `chief` "dedicated" the chief; {_STRATEGY}',
    "experimental_distribute": _STRATEGY,
    "device_fn": "each rank computes on its own GPU, or on its cores; place layers by tf.device in model_fn",
    "protocol": _NETWORK,
    "session_creation_timeout_secs": _WAITING,
    "experimental_max_worker_delay_secs": _WAITING,
    "checkpoint_save_graph_def": "checkpoints hold variables alone; exporters write graphs; leave it out",
    "master": f"TF_CONFIG and its servers are gone: {_STRATEGY}",
    "evaluation_master": f"TF_CONFIG and its servers are gone: {_STRATEGY}",
    "num_ps_replicas": 'it is `parameter_servers`, with `strategy` "async"',
    "num_worker_replicas": _STRATEGY,
    "gpu_memory_fraction": "TensorFlow takes memory as it needs it with TF_FORCE_GPU_ALLOW_GROWTH=true",
}
TRAIN_SPEC = {
    "steps": "it is `max_steps`, which counts over all restarts",
}
EVAL_SPEC = {
    "checkpoint_path": "`hpc-train evaluate JOBDIR` evaluates checkpoints that are there",
}
_SERVING = "it is `serving_fn`, a function of the model that returns a tf.function; see docs/exports.md"
EXPORTERS = {
    "serving_input_receiver_fn": _SERVING,
    "serving_input_fn": _SERVING,
    "export_input_fn": _SERVING,
    "assets_extra": "it is `assets`, a list of files",
    "as_text": "a SavedModel is written in binary form alone; leave it out",
    "strip_default_attrs": "Keras decides; leave it out",
}
BEST_EXPORTER = EXPORTERS | {
    "event_file_pattern": "the best evaluation is kept in metrics.jsonl, over restarts, too; leave it out",
}
EARLY_STOPPING = {
    "estimator": "the rule belongs to the TrainSpec that it is given to; leave it out",
    "eval_dir": "it is `eval_name`, the name of the EvalSpec",
}
HDF5_INPUT = {
    "num_epochs": "it is `epochs`",
}
CANNED = {
    "input_layer_partitioner": 'with `strategy` "async" large tables are cut among parameter servers by themselves',
    "partitioner": 'with `strategy` "async" large tables are cut among parameter servers by themselves',
    "head": "the head is that of the class; for another one give ht.Estimator a model_fn",
}
FEATURE_COLUMN = {
    "sparse_combiner": "it is the estimator's `sparse_combiner`",
    "shared_embedding_collection_name": "embeddings are not shared; give each column its own",
}
METHODS = {
    "train": "call ht.train_and_evaluate(estimator, train_spec, eval_spec)",
    "evaluate": "call ht.train_and_evaluate, or run `hpc-train evaluate JOBDIR`",
    "predict": "run `hpc-train predict EXPORT --shards …`",
    "export_saved_model": "give the EvalSpec exporters, or run `hpc-train export JOBDIR`",
    "export_savedmodel": "give the EvalSpec exporters, or run `hpc-train export JOBDIR`",
    "experimental_export_all_saved_models": "give the EvalSpec exporters, or run `hpc-train export JOBDIR`",
    "get_variable_names": "run `hpc-train checkpoints JOBDIR`; state.h5 of a checkpoint has all variables by name",
    "get_variable_value": "state.h5 of a checkpoint has all variables by name, for h5py",
    "latest_checkpoint": "run `hpc-train checkpoints JOBDIR`",
    "eval_dir": "results are in config.model_dir / eval, or eval_<name>",
    "model_dir": "it is config.model_dir",
}
"""Methods and properties of tf.estimator.Estimator."""
NAMES = {
    "EstimatorSpec": "model_fn returns a compiled Keras model",
    "ModeKeys": "model_fn returns a compiled Keras model, which knows whether it trains",
    "SessionRunHook": "derive from ht.Hook",
    "CheckpointSaverListener": "derive from ht.SavingListener",
    "CheckpointSaverHook": "RunConfig's save_checkpoints_steps and save_checkpoints_secs",
    "StopAtStepHook": "TrainSpec's max_steps",
    "LoggingTensorHook": "losses and metrics are logged; see RunConfig's log_step_count_steps",
    "SummarySaverHook": "RunConfig's save_summary_steps",
    "BaselineClassifier": "ht.LinearClassifier reports accuracy_baseline",
    "BaselineRegressor": "ht.LinearRegressor reports label/mean",
    "BoostedTreesClassifier": "train trees with a library of their own, such as ydf",
    "BoostedTreesRegressor": "train trees with a library of their own, such as ydf",
    "DNNEstimator": "ht.DNNClassifier or ht.DNNRegressor, or ht.Estimator with a model_fn for a head of your own",
    "LinearEstimator": "ht.LinearClassifier or ht.LinearRegressor, or ht.Estimator with a model_fn",
    "DNNLinearCombinedEstimator": "ht.DNNLinearCombinedClassifier or its Regressor, or ht.Estimator with a model_fn",
    "stop_if_no_decrease_hook": "ht.stop_if_no_decrease",
    "stop_if_no_increase_hook": "ht.stop_if_no_increase",
    "stop_if_lower_hook": "ht.stop_if_lower",
    "stop_if_higher_hook": "ht.stop_if_higher",
}
"""Names of tf.estimator and tf.estimator.experimental."""
FEATURE_COLUMNS = {
    "weighted_categorical_column": "rows count by the estimator's `weight_column`, values of a row count alike",
    "shared_embeddings": "give each column an embedding_column of its own, or write a model_fn with one Embedding",
    "make_parse_example_spec": "rows are datasets of shards; `hpc-train shard` writes them from tf.Example files",
}
"""Names of tf.feature_column; those of sequences have one answer."""
FEATURE_COLUMNS |= dict.fromkeys(
    (
        "sequence_numeric_column",
        "sequence_categorical_column_with_identity",
        "sequence_categorical_column_with_hash_bucket",
        "sequence_categorical_column_with_vocabulary_list",
        "sequence_categorical_column_with_vocabulary_file",
    ),
    "canned estimators take no sequences; write a model_fn, whose layers are recurrent",
)
