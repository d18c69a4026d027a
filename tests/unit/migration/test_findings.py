"""What of programs changes, where, and what is written instead."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hpc_train.migration.counterparts.row import Verdict
from hpc_train.migration.finding import Finding
from hpc_train.migration.source import read_source
from tests.unit.migration.support import NAMES, PROGRAMS, source_of

PREAMBLE = """
import tensorflow as tf
import horovod.tensorflow as hvd
est = tf.estimator
"""
FIRST = len(PREAMBLE.splitlines()) + 1


def finding_of(code: str, folder: Path) -> Finding:
    """The first finding of code after the preamble."""
    source = source_of(PREAMBLE + code, folder)
    return next(finding for finding in source.findings if finding.line >= FIRST)


def flat(code: str) -> str:
    """Code in one line."""
    return ast.unparse(ast.parse(code))


@pytest.mark.parametrize(
    ("code", "written", "notes"),
    [
        (
            "est.RunConfig('/m', 7, save_checkpoints_secs=60, device_fn=d)",
            "ht.RunConfig('/m', tf_random_seed=7, save_checkpoints_secs=60)",
            ["device_fn: each rank computes on its own GPU"],
        ),
        ("tf.compat.v1.estimator.RunConfig(**options)", "ht.RunConfig(**options)", ["what ** holds is not known here"]),
        ("est.Estimator(f, '/m')", "ht.Estimator(f, ht.RunConfig('/m'))", ["model_dir: it is the RunConfig's"]),
        ("est.Estimator(model_fn=f, config=c, params=p)", "ht.Estimator(f, c, params=p)", []),
        ("est.Estimator(f)", "ht.Estimator(f, ht.RunConfig())", []),
        ("est.Estimator(f, '/m', config=None)", "ht.Estimator(f, ht.RunConfig('/m'))", []),
        (
            "est.TrainSpec(input_fn=lambda: read(1), max_steps=FLAGS.steps, hooks=[h])",
            "ht.TrainSpec(lambda: read(1), max_steps=FLAGS.steps, hooks=[h])",
            [],
        ),
        (
            "est.EvalSpec(f, None, exporters=est.LatestExporter('l', r, exports_to_keep=3))",
            "ht.EvalSpec(f, steps=None, exporters=ht.LatestExporter('l', exports_to_keep=3))",
            [],
        ),
        (
            "rule = tf.estimator.experimental.stop_if_lower_hook(e, 'loss', 1)\nx = est.TrainSpec(f, hooks=[h, "
            "tf.train.LoggingTensorHook({}), rule])",
            "ht.stop_if_lower('loss', 1)",
            [],
        ),
        (
            "est.TrainSpec(f, hooks=[h, tf.train.LoggingTensorHook({}, 9), tf.estimator.experimental."
            "stop_if_lower_hook(e, 'loss', 1)])",
            "ht.TrainSpec(f, hooks=[h], early_stopping=[ht.stop_if_lower('loss', 1)])",
            [],
        ),
        (
            "est.TrainSpec(f, hooks=[tf.estimator.experimental.stop_if_lower_hook(e, 'loss', 1)])",
            "ht.TrainSpec(f, early_stopping=[ht.stop_if_lower('loss', 1)])",
            [],
        ),
        ("est.BestExporter()", "ht.BestExporter()", ["by default the smallest loss"]),
        (
            "tf.estimator.experimental.stop_if_higher_hook(e, 'auc', 0.9, min_steps=5)",
            "ht.stop_if_higher('auc', 0.9, min_steps=5)",
            ["train.early_stopping", "estimator: the rule belongs to the TrainSpec"],
        ),
        (
            "est.WarmStartSettings('/old', vars_to_warm_start='dense')",
            "ht.WarmStartSettings('/old', vars_to_warm_start='dense')",
            ["docs/warm_start.md"],
        ),
        (
            "est.DNNClassifier([8], [tf.feature_column.numeric_column('a')], n_classes=3, optimizer="
            "tf.compat.v1.train.AdamOptimizer(0.1, beta1=0.5))",
            "ht.DNNClassifier([8], [ht.feature_column.numeric_column('a')], n_classes=3, "
            "optimizer=keras.optimizers.Adam(0.1, beta_1=0.5))",
            [],
        ),
        ("est.LinearRegressor(feature_columns=c)", "ht.LinearRegressor(c)", []),
        (
            "est.LinearClassifier(c, partitioner=p, loss_reduction=tf.losses.Reduction.SUM)",
            "ht.LinearClassifier(c, loss_reduction='sum')",
            ["partitioner: with `strategy`"],
        ),
        (
            "tf.feature_column.embedding_column(tf.feature_column.categorical_column_with_identity('a', 9), 3)",
            "ht.feature_column.embedding_column(ht.feature_column.categorical_column_with_identity('a', 9), 3)",
            [],
        ),
        (
            "est.inputs.numpy_input_fn({'x': x}, y, batch_size=9, shuffle=True)",
            "lambda: tf.data.Dataset.from_tensor_slices(({'x': x}, y)).shuffle(1000).repeat(1).batch(9)",
            ["numpy.savez", "shuffle: False is a dataset without .shuffle()"],
        ),
        (
            "est.inputs.pandas_input_fn(x, y, 9, shuffle=False)",
            "lambda: tf.data.Dataset.from_tensor_slices((dict(x), y)).repeat(1).batch(9)",
            [],
        ),
        (
            "est.Estimator(f, '/m', config=est.RunConfig(None, 7))",
            "ht.Estimator(f, ht.RunConfig('/m', tf_random_seed=7))",
            [],
        ),
        ("est.Estimator(f, '/m', est.RunConfig())", "ht.Estimator(f, ht.RunConfig('/m'))", []),
        ("est.Estimator(f, '/m', c)", "ht.Estimator(f, c)", ["model_dir: it is the RunConfig's"]),
        (
            "tf.feature_column.numeric_column('a', default_value=0.0)",
            "ht.feature_column.numeric_column('a')",
            ["default_value: all rows of shards have a value"],
        ),
        ("tf.truncated_normal_initializer(stddev=0.1)", "keras.initializers.TruncatedNormal(0.0, 0.1)", []),
        ("tf.initializers.random_uniform(-1, 1, seed=3)", "keras.initializers.RandomUniform(-1, 1, seed=3)", []),
        ("x = tf.zeros_initializer", "keras.initializers.Zeros", []),
        ("tf.keras.estimator.model_to_estimator(m)", "ht.Estimator(lambda: m, ht.RunConfig())", ["compile it"]),
        (
            "tf.keras.estimator.model_to_estimator(keras_model_path='a.h5', model_dir='/m')",
            "ht.Estimator(lambda: keras.models.load_model('a.h5'), ht.RunConfig('/m'))",
            ["keras_model_path", "model_dir"],
        ),
        ("dataset.shard(hvd.size(), hvd.rank())", None, ["HDF5Input deals rows to ranks"]),
        ("dataset.shard(num_shards=num_workers, index=worker_index)", None, ["ht.InputContext"]),
        ("x = tf.keras.optimizers.Adam(lr=0.1)", "keras.optimizers.Adam(learning_rate=0.1)", ["learning_rate"]),
        ("if hvd.rank() == 0: pass", "ht.is_chief()", ["nothing that ranks do together may be below it"]),
        ("tf.logging.info('%d', 3)", "logging.info('%d', 3)", ["import logging"]),
        ("x = tf.logging.INFO", "logging.INFO", []),
        ("o = tf.keras.optimizers.Adam()\nx = o.variables()", "o.variables", ["no method"]),
        (
            "x = tf.keras.optimizers.legacy.Adam(0.1, decay=1e-3)",
            "keras.optimizers.Adam(keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 1e-3))",
            ["one optimizer of each name"],
        ),
        (
            "x = tf.keras.optimizers.SGD(lr=0.1, decay=d)",
            "keras.optimizers.SGD(learning_rate=keras.optimizers.schedules.InverseTimeDecay(0.1, 1, d))",
            ["learning_rate"],
        ),
        ("x = tf.keras.optimizers.SGD(decay=0.0)", "keras.optimizers.SGD()", ["schedule"]),
        ("ok = hvd.rank() != 0", "not ht.is_chief()", []),
    ],
)
def test_calls_are_written_with_the_users_arguments(
    tmp_path: Path, code: str, written: str | None, notes: list[str]
) -> None:
    finding = finding_of(code, tmp_path)
    assert finding.verdict is Verdict.REPLACED
    shard = "dataset.shard(context.num_input_pipelines, context.input_pipeline_id)"
    assert flat(finding.code) == flat(written or shard)
    for note in notes:
        assert note in " ".join(finding.notes), finding.notes


@pytest.mark.parametrize(
    ("code", "verdict", "note"),
    [
        ("est.EstimatorSpec(mode, loss=loss)", Verdict.DROPPED, "arguments of model.compile"),
        ("x = est.ModeKeys.TRAIN", Verdict.DROPPED, "layers such as Dropout do by themselves"),
        ("est.add_metrics(e, f)", Verdict.DROPPED, "model.compile(metrics=[…])"),
        ("est.BoostedTreesRegressor(c, 1)", Verdict.MISSING, "hpc-train fit TABLE --label COLUMN --model gbdt"),
        ("est.BaselineClassifier()", Verdict.MISSING, "hpc-train stats"),
        ("tf.feature_column.sequence_numeric_column('a')", Verdict.MISSING, "`pad` in job.yaml"),
        ("tf.feature_column.weighted_categorical_column(c, 'w')", Verdict.MISSING, "count_weights"),
        ("est.experimental.KMeans(3)", Verdict.MISSING, "scikit-learn"),
        ("tf.distribute.MirroredStrategy()", Verdict.DROPPED, "ranks are what the launcher starts"),
        ("tf.train.ProximalAdagradOptimizer(0.1)", Verdict.MISSING, "Adagrad or Ftrl"),
        ("tf.train.ProfilerHook(5)", Verdict.DROPPED, "profile_steps"),
        ("tf.compat.v1.train.NanTensorHook(loss)", Verdict.DROPPED, "on_nan"),
        ("tf.contrib.layers.batch_norm(x)", Verdict.MISSING, "defaults of their own"),
        ("tf.contrib.slim.separable_conv2d(x, 3)", Verdict.MISSING, "defaults of their own"),
        ("tf.contrib.estimator.clip_gradients_by_norm(o, 1.0)", Verdict.MISSING, "global_clipnorm"),
        ("tf.contrib.crf.decode(x)", Verdict.MISSING, "gone since TensorFlow 2.0"),
        ("x = os.environ['TF_CONFIG']", Verdict.DROPPED, "hpc_train ignores TF_CONFIG"),
        ("os.environ.get('TF_CONFIG', '{}')", Verdict.DROPPED, "hpc_train ignores TF_CONFIG"),
        ("getattr(est, name)()", Verdict.MISSING, "getattr looks up is not followed"),
        ("from tensorflow.estimator import *", Verdict.MISSING, "are not followed"),
        ("import horovod.torch as hvd", Verdict.MISSING, "PyTorch"),
        ("from horovod.torch import elastic", Verdict.MISSING, "PyTorch"),
        ("import horovod.spark", Verdict.MISSING, "not by Spark or Ray"),
        ("hvd.init()", Verdict.KEPT, "ranks are joined before model_fn is called"),
        ("hvd.alltoall(x)", Verdict.KEPT, "there is none in a model"),
        ("hvd.DistributedOptimizer(o, device_dense='/cpu:0')", Verdict.KEPT, "`run.compression`"),
        ("hvd.broadcast_variables(v, 0)", Verdict.KEPT, "rank 0's variables"),
        ("hvd.callbacks.LearningRateWarmupCallback(0.1)", Verdict.KEPT, "ht.WarmUp(rate, warmup_steps)"),
        ("hvd.BroadcastGlobalVariablesHook(0)", Verdict.MISSING, "hvd.broadcast_variables"),
        ("@hvd.elastic.run\ndef f(): pass", Verdict.MISSING, "--max-restarts"),
        ("hvd.run(f, np=4)", Verdict.MISSING, "mpirun -np N"),
        ("tf.config.set_visible_devices(gpus[hvd.local_rank()], 'GPU')", Verdict.DROPPED, "leave the statement out"),
        ("config.gpu_options.visible_device_list = str(hvd.local_rank())", Verdict.DROPPED, "leave the statement out"),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = str(hvd.local_rank())", Verdict.DROPPED, "leave the statement out"),
        ("def input_fn(): return d", Verdict.KEPT, "tf.data works as before"),
        ("def train_input_fn(): return d.make_one_shot_iterator().get_next()", Verdict.KEPT, "without an iterator"),
    ],
)  # fmt: skip
def test_what_is_kept_left_out_or_missing_says_why(tmp_path: Path, code: str, verdict: Verdict, note: str) -> None:
    finding = finding_of(code, tmp_path)
    assert (finding.verdict, note in " ".join(finding.notes)) == (verdict, True), finding


@pytest.mark.parametrize(
    ("code", "written"),
    [
        ("import horovod.keras as h", "import hpc_train.horovod.keras as h"),
        ("import horovod.tensorflow.keras", "import hpc_train.horovod.tensorflow.keras"),
        ("from horovod.tensorflow import allreduce as a", "from hpc_train.horovod.tensorflow import allreduce as a"),
        ("from horovod import keras as h", "from hpc_train.horovod import keras as h"),
        ("class A(tf.train.SessionRunHook):\n    def end(self, session): pass",
         "class A(ht.Hook):\n    def end(self, step): ..."),
        ("class B(tf.estimator.CheckpointSaverListener):\n    def before_save(self, session, step): pass",
         "class B(ht.SavingListener):\n    def before_save(self, step): ..."),
        ("def f(features, labels, mode, params): pass",
         "def f(params):\n    ...\n    model.compile(optimizer, loss, metrics)\n    return model"),
        ("def f(features, labels, mode): pass",
         "def f():\n    ...\n    model.compile(optimizer, loss, metrics)\n    return model"),
        ("def input_fn(params): return d", "lambda: input_fn(params)"),
        ("def input_fn(path, mode='train', epochs=1): return d", "lambda: input_fn(path)"),
    ],
)  # fmt: skip
def test_imports_classes_and_functions_are_written_anew(tmp_path: Path, code: str, written: str) -> None:
    assert finding_of(code, tmp_path).code == written


@pytest.mark.parametrize(
    ("code", "name", "written", "note"),
    [
        ("tf.compat.v1.app.flags.DEFINE_float('rate', 1e-3, '')", "rate", 'params["rate"]', "its default is 0.001"),
        ("parser.add_argument('-u', '--hidden-units', default=3)", "hidden_units", 'params["hidden_units"]', "is 3"),
        ("parser.add_argument('--name')", "name", 'params["name"]', "`params:`"),
        ("parser.add_argument('--train-steps', default=9)", "train_steps", "train.max_steps", "--set train.max_steps"),
        ("parser.add_argument('--model_dir')", "model_dir", "", "--job-dir"),
        ("parser.add_argument('--task-index')", "task_index", "", "the launcher says"),
    ],
)
def test_settings_go_into_the_job_file(tmp_path: Path, code: str, name: str, written: str, note: str) -> None:
    finding = finding_of(f"{code}\nest.RunConfig()", tmp_path)
    assert (finding.name, finding.code) == (f"setting {name}", written)
    assert note in " ".join(finding.notes)


@pytest.mark.parametrize("config", ["c", "est.RunConfig('/m')", "d"])
def test_a_copy_of_a_run_config(tmp_path: Path, config: str) -> None:
    code = f"c = est.RunConfig()\nd = c.replace(model_dir='/m')\n{config}.replace(session_config=s, tf_random_seed=7)\n"
    found = [each for each in source_of(PREAMBLE + code, tmp_path).findings if each.name.endswith(".replace")]
    assert found[0].code == 'dataclasses.replace(c, model_dir="/m")'
    assert flat(found[1].code).endswith(", tf_random_seed=7)") and "session_config: " in " ".join(found[1].notes)


def test_operations_change_in_model_functions_alone(tmp_path: Path) -> None:
    code = """
    import tensorflow as tf
    def parse(row): return tf.cast(tf.reshape(row, [2]), tf.float32)
    def means(row): return tf.reduce_mean(row), tf.nn.elu(row)
    def model_fn(features, labels, mode): return tf.reshape(tf.math.erf(features), [2])
    """
    names = {(finding.line, finding.name) for finding in source_of(code, tmp_path).findings}
    assert names == {(5, "model_fn"), (5, "tf.reshape"), (5, "tf.math.erf")}


@pytest.mark.parametrize(
    ("code", "written"),
    [
        ("tf.nn.dropout(x, 0.8)", "keras.layers.Dropout(1 - 0.8)(x)"),
        ("tf.nn.dropout(x, keep_prob=FLAGS.keep, seed=1)", "keras.layers.Dropout(1 - FLAGS.keep, seed=1)(x)"),
        ("tf.contrib.layers.fully_connected(x, 3)", "keras.layers.Dense(3, activation='relu')(x)"),
        (
            "tf.contrib.layers.fully_connected(x, 3, activation_fn=None, scope='a', weights_regularizer=r)",
            "keras.layers.Dense(3, activation=None, name='a', kernel_regularizer=r)(x)",
        ),
        (
            "tf.contrib.slim.conv2d(x, 3, 5, 2)",
            "keras.layers.Conv2D(3, 5, strides=2, padding='same', activation='relu')(x)",
        ),
        (
            "tf.contrib.layers.max_pool2d(x, [2, 2], padding='SAME')",
            "keras.layers.MaxPooling2D([2, 2], strides=2, padding='SAME')(x)",
        ),
        ("tf.contrib.layers.dropout(x, 0.9, is_training=t)", "keras.layers.Dropout(1 - 0.9)(x)"),
        ("tf.contrib.layers.l2_regularizer(0.1)", "keras.regularizers.L2(0.1 / 2)"),
        ("tf.nn.dropout(x, rate=0.2)", "keras.layers.Dropout(0.2)(x)"),
        (
            "tf.nn.dropout(x, None, None, None, 'd', 0.2)",
            "keras.layers.Dropout(0.2, noise_shape=None, seed=None, name='d')(x)",
        ),
    ],
)
def test_operations_and_layers_of_a_model_function(tmp_path: Path, code: str, written: str) -> None:
    found = source_of(f"{PREAMBLE}def f(features, labels, mode):\n    {code}\n", tmp_path).findings
    assert flat(found[-1].code) == flat(written)


@pytest.mark.parametrize(
    "code",
    [
        "",
        "print(1)",
        "import argparse\nargparse.ArgumentParser().add_argument('--rate')\ndef make_dataset(x): return x",
        "import tensorflow as tf\nd = tf.data.Dataset.range(3).shard(2, rank)\nm = tf.keras.Sequential()",
        "import estimator\nestimator.RunConfig()",
        "tf = object()\ntf.estimator.RunConfig()",
    ],
)
def test_programs_without_estimator_and_horovod_have_no_findings(tmp_path: Path, code: str) -> None:
    assert source_of(code, tmp_path).findings == ()


@pytest.mark.parametrize("name", NAMES)
def test_each_use_in_a_program_is_found_once(name: str) -> None:
    source = read_source(PROGRAMS / f"{name}.py")
    assert [finding.line for finding in source.findings] == sorted(finding.line for finding in source.findings)
    for finding in source.findings:
        assert finding.code or finding.notes or finding.verdict is Verdict.REPLACED
        if finding.verdict is Verdict.REPLACED and not finding.name.startswith("setting"):
            ast.parse(finding.code)
    # Whatever a line of the program names of the two libraries, that line has a finding.
    lines = {finding.line for finding in source.findings}
    for node in ast.walk(source.program.tree):
        full = source.names.called(node) or ""
        if full.startswith(("tf.estimator.", "tf.feature_column.", "hvd.", "Estimator.")) and "importances" not in full:
            assert node.lineno in lines, ast.unparse(node)  # type: ignore[attr-defined]


def test_a_program_by_tf_config_with_hooks() -> None:
    source = read_source(PROGRAMS / "distributed.py")
    found = {finding.name: finding for finding in source.findings}
    lines = (PROGRAMS / "distributed.py").read_text().splitlines()
    assert found["tf.train.SessionRunHook"].code.splitlines() == [
        "class StopOnTarget(ht.Hook):",
        "    def begin(self, context): ...",
        "    def before_step(self, step): ...",
        "    def after_step(self, step, loss): ...",
    ]
    told = [finding.line for finding in source.findings if finding.name == "TF_CONFIG"]
    assert told == [number for number, line in enumerate(lines, 1) if '["TF_CONFIG"]' in line] and len(told) == 2
    assert "shard(\n    context.num_input_pipelines" in found["Dataset.shard"].code
    config = found["tf.estimator.RunConfig"]
    assert "save_checkpoints_steps=FLAGS.save_checkpoints_steps" in config.code
    assert config.notes[0].startswith("train_distribute: ranks are what the launcher starts")
    assert lines[config.line - 1] == "    config = Config("
    strategy = found["tf.distribute.experimental.ParameterServerStrategy"]
    assert '`strategy` "async"' in strategy.notes[0]
    assert found["tf.estimator.EvalSpec"].code == 'ht.EvalSpec(train_input_fn, name="holdout")'
