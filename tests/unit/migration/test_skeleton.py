"""job.yaml and model.py of programs: valid, with the program's own settings and statements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpc_train.config.early_stopping import StopIfNoDecrease
from hpc_train.config.exporters import BestExporter, FinalExporter
from hpc_train.config.job import JobConfig, load_job
from hpc_train.migration.skeleton.job_file import job_file, name_of
from hpc_train.migration.skeleton.model_file import model_file, model_in
from hpc_train.migration.source import Source, read_source
from tests.unit.migration.support import NAMES, PROGRAMS, source_of


def skeleton(source: Source, folder: Path, name: str = "mine") -> tuple[JobConfig, str]:
    """The job and the text of model.py, which is valid."""
    model = model_in([source])
    text = model_file(model, source.program.path.name)
    compile(text, "model.py", "exec")
    assert max(map(len, text.splitlines())) <= 120
    (folder / "job.yaml").write_text(job_file([source], name, model))
    (folder / "model.py").write_text(text)
    return load_job(folder / "job.yaml"), text


@pytest.mark.parametrize("name", NAMES)
def test_the_skeleton_of_each_program_is_valid(tmp_path: Path, name: str) -> None:
    job, text = skeleton(read_source(PROGRAMS / f"{name}.py"), tmp_path, name)
    assert job.name == name and job.model == f"{tmp_path}/model.py:build_model"
    assert text.startswith(f'"""The model of {name}.py') and "def build_model(params):\n    import keras\n" in text
    for gone in ("hvd.", "tf.", "FLAGS", "args."):
        assert gone not in text.partition("\n")[2]
    assert text.endswith("    return model\n") and "model.compile" in text.replace("network.compile", "model.compile")


def test_a_model_function_becomes_a_compiled_model(tmp_path: Path) -> None:
    job, text = skeleton(read_source(PROGRAMS / "custom_mnist.py"), tmp_path)
    for line in (
        'features = {"image": keras.Input((28, 28, 1), name="image")}',
        "net = keras.layers.MaxPooling2D([2, 2], 2)(net)",
        'net = keras.layers.Dropout(params["dropout"])(net)',
        "logits = keras.layers.Dense(CLASSES)(net)",
        "model = keras.Model(features, logits)",
        'optimizer=keras.optimizers.Adam(params["learning_rate"]),',
        "loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),",
        'metrics=["accuracy"],',
    ):
        assert f"    {line}\n" in text
    assert "# TODO" not in text and "is_training" not in text
    assert job.params == {"learning_rate": 0.001, "dropout": 0.4}
    assert (job.run.save_checkpoints_steps, job.run.tf_random_seed) == (500, 7)
    assert (job.data.train.batch_size, job.data.train.features) == (100, {"image": "image"})
    assert job.train.max_steps == 20_000


def test_what_only_cells_may_have_is_named_in_a_stub(tmp_path: Path) -> None:
    for line in ("units = await ask()", "units = [n async for n in ask()][0]", "async with ask() as units: pass"):
        cell = f"import keras, horovod.keras as hvd\nhvd.init()\n{line}\n"
        cell += (
            "model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units)])\nmodel.compile('sgd', 'mse')\n"
        )
        cell += "model.fit([0], [0])"
        notebook = {"cells": [{"cell_type": "code", "source": cell}], "nbformat": 4}
        (tmp_path / "a.ipynb").write_text(json.dumps(notebook))
        source = read_source(tmp_path / "a.ipynb")
        assert source.findings
        _, text = skeleton(source, tmp_path)
        said = " ".join(text.replace("#", "").split())
        assert "TODO: no function can make the model: " in said and "write it here" in said, said
        assert "ask" not in text and "a.ipynb" in text


def test_blocks_of_a_mode_are_opened(tmp_path: Path) -> None:
    code = """
    import tensorflow.compat.v1 as tf
    Modes = tf.estimator.ModeKeys
    def model_fn(features, labels, mode, params):
        training = mode == Modes.TRAIN
        with tf.variable_scope("net"):
            net = tf.layers.dense(features["a"], 8)
            if training:
                net = tf.layers.dropout(net, 0.4)
            logits = tf.layers.dense(net, 2)
        if mode == Modes.PREDICT:
            logits = tf.nn.softmax(logits)
            return tf.estimator.EstimatorSpec(mode, predictions=logits)
        elif mode == Modes.TRAIN:
            loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
            rate = tf.train.exponential_decay(0.1, tf.train.get_global_step(), 100, 0.9)
            train_op = tf.train.AdamOptimizer(rate).minimize(loss, global_step=tf.train.get_global_step())
            return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)
        else:
            return tf.estimator.EstimatorSpec(mode, loss=loss)
    """
    _, text = skeleton(source_of(code, tmp_path), tmp_path)
    assert [line.strip() for line in text.partition("import keras\n")[2].split("\n") if line][:-1] == [
        "# TODO: the shape of a row of a: (1,) is a guess",
        'features = {"a": keras.Input((1,), name="a")}',
        'net = keras.layers.Dense(8)(features["a"])',
        "net = keras.layers.Dropout(0.4)(net)",
        "logits = keras.layers.Dense(2)(net)",
        "rate = keras.optimizers.schedules.ExponentialDecay(0.1, 100, 0.9)",
        "model = keras.Model(features, logits)",
        "model.compile(",
        "optimizer=keras.optimizers.Adam(rate),",
        "loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),",
        "metrics=[],",
        ")",
    ]


@pytest.mark.parametrize(
    ("choice", "kept"),
    [
        ("if mode == Modes.TRAIN: net = net * 2", "net = net * 2"),
        ("if mode != Modes.TRAIN: net = net * 3", None),
        ("if not mode == Modes.TRAIN: net = net * 3\n    else: net = net * 2", "net = net * 2"),
        ("if mode in (Modes.TRAIN, Modes.EVAL): net = net * 2\n    else: net = net * 3", "net = net * 2"),
    ],
)
def test_what_differs_by_the_mode_is_to_do(tmp_path: Path, choice: str, kept: str | None) -> None:
    code = f"""
import tensorflow as tf
Modes = tf.estimator.ModeKeys
def model_fn(features, labels, mode):
    net = tf.layers.dense(features["a"], 8)
    {choice}
    logits = tf.layers.dense(net, 2)
    return tf.estimator.EstimatorSpec(mode, loss=tf.losses.mean_squared_error(labels, logits))
"""
    _, text = skeleton(source_of(code, tmp_path), tmp_path)
    assert "# TODO: net depends on the mode in line 6 of the program; here it is as in training\n" in text
    assert "net * 3" not in text and (kept is None or f"    {kept}\n" in text)


def test_what_a_model_function_has_without_a_counterpart_is_to_do(tmp_path: Path) -> None:
    code = """
    import tensorflow.compat.v1 as tf
    def model_fn(features, labels, mode):
        net = tf.layers.dense(tf.reduce_mean(features["a"], axis=1), 8, activation=tf.nn.elu, reuse=True)
        with tf.contrib.slim.arg_scope([f], activation_fn=None):
            net = tf.contrib.layers.conv2d(net, 3, 5, normalizer_fn=tf.contrib.layers.batch_norm)
        logits = tf.nn.dropout(net, 0.9)
        loss = tf.losses.softmax_cross_entropy(labels, logits, weights=w, label_smoothing=0.1)
        metrics = {"auc": tf.metrics.auc(labels, logits, weights=w, curve="PR")}
        return tf.estimator.EstimatorSpec(mode, loss=tf.reduce_sum(loss), eval_metric_ops=metrics)
    """
    _, text = skeleton(source_of(code, tmp_path), tmp_path)
    remarks = [line.partition("# TODO: ")[2] for line in text.split("\n") if "# TODO: " in line]
    for begin in (
        "weights of tf.losses.softmax_cross_entropy: ",
        "weights of tf.metrics.auc: ",
        "keep_prob of tf.nn.dropout: the rate is 1 - keep_prob",
        "normalizer_fn of tf.contrib.layers.conv2d: ",
        "tf.reduce_mean: a tensor of Keras does not pass through it",
        "give each layer the arguments that arg_scope sets",
    ):
        assert [each for each in remarks if each.startswith(begin)], remarks
    assert not [each for each in remarks if "reduce_sum" in each or "reuse" in each]
    for part in ("Crossentropy(from_logits=True, label_smoothing=0.1)", 'AUC(curve="PR")', "Dropout(1 - 0.9)(net)"):
        assert part in text


def test_a_dropout_of_a_keras_model_has_a_rate(tmp_path: Path) -> None:
    code = """
    import tensorflow as tf
    import horovod.tensorflow as hvd
    inputs = tf.keras.Input((2,))
    model = tf.keras.Model(inputs, tf.nn.dropout(inputs, 0.1))
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD()), "mse")
    """
    assert "keras.layers.Dropout(0.1)(inputs)" in skeleton(source_of(code, tmp_path), tmp_path)[1]


def test_a_canned_estimator_becomes_layers(tmp_path: Path) -> None:
    job, text = skeleton(read_source(PROGRAMS / "wide_and_deep.py"), tmp_path)
    assert '"school": keras.Input((1,), dtype="string", name="school")' in text
    assert 'vocabulary=["none", "primary", "Universität"]' in text
    assert "keras.layers.Discretization([18, 25, 35, 50, 65]" in text
    assert "for units in [100, 50]:" in text
    assert job.eval.exporters == (BestExporter("best", exports_to_keep=2), FinalExporter())
    (rule,) = job.train.early_stopping
    assert rule == StopIfNoDecrease(metric_name="loss", max_steps_without_decrease=2000)
    assert (job.eval.steps, job.eval.start_delay_secs, job.eval.throttle_secs) == (None, 10, 60)
    assert (job.run.keep_checkpoint_max, job.data.train.batch_size) == (3, 40)


def test_boosted_trees_are_said_to_be_a_job_file(tmp_path: Path) -> None:
    _, text = skeleton(read_source(PROGRAMS / "boosted_trees.py"), tmp_path)
    assert "TODO: boosted trees are `model: {builtin: gbdt}` of a table's shards" in text
    assert '"width": keras.Input((1,), name="width")' in text


def test_a_program_by_horovod_keeps_its_statements(tmp_path: Path) -> None:
    job, text = skeleton(read_source(PROGRAMS / "horovod_keras.py"), tmp_path)
    assert "import hpc_train as ht\n" in text and "import tensorflow" not in text
    assert "opt = keras.optimizers.Adam(learning_rate=scaled_rate)\n" in text
    assert "scaled_rate = 0.001 * ht.launched_ranks()\n" in text
    assert "model.compile(loss=loss, optimizer=opt, metrics=" in text
    assert "load_data" not in text and "callbacks" not in text
    assert (job.run.compression, job.run.accumulate_steps) == ("fp16", 2)
    assert (job.data.train.epochs, job.data.train.batch_size, job.train.max_steps) == (8, 32, None)


def test_a_loop_becomes_a_compiled_model(tmp_path: Path) -> None:
    job, text = skeleton(read_source(PROGRAMS / "horovod_tape.py"), tmp_path)
    assert "    class Network(keras.Model):\n" in text
    assert '    network = Network(params["hidden"])\n' in text
    assert "    network.compile(optimizer=optimizer, loss=loss_object)\n    model = network\n" in text
    assert job.params == {"rate": 0.01, "hidden": 128}
    assert "# TODO: train.max_steps" in (tmp_path / "job.yaml").read_text()


def test_parameter_servers_and_a_warm_start(tmp_path: Path) -> None:
    job, text = skeleton(read_source(PROGRAMS / "distributed.py"), tmp_path)
    assert (job.run.strategy, job.run.save_checkpoints_steps, job.run.keep_checkpoint_max) == ("async", 250, 0)
    assert job.params == {"hidden": 16, "rate": 0.05, "batch": 64}
    assert job.warm_start_from is not None and str(job.warm_start_from.ckpt_to_initialize_from) == "/models/old"
    assert 'rate = keras.optimizers.schedules.ExponentialDecay(params["rate"], 1000, 0.9)\n' in text
    assert 'features = {"a": keras.Input((3,), name="a")}' in text


def test_arguments_of_the_function_around_are_parameters(tmp_path: Path) -> None:
    job, text = skeleton(read_source(PROGRAMS / "keras_to_estimator.py"), tmp_path)
    assert '    units = params["units"]\n' in text and job.params == {"units": 16, "rate": 0.01}
    assert "    model = network\n" in text


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        ("save_checkpoints_steps=0", "run.save_checkpoints_steps", None),
        ("save_checkpoints_steps=10, save_checkpoints_secs=5", "run.save_checkpoints_secs", 10),
        ("save_checkpoints_steps='many'", "run.save_checkpoints_steps", None),
    ],
)
def test_what_a_job_file_refuses_is_left_out_and_said(tmp_path: Path, code: str, message: str, expected: Any) -> None:
    source = source_of(f"import tensorflow as tf\ntf.estimator.RunConfig({code})\n", tmp_path)
    job, _ = skeleton(source, tmp_path)
    assert f"# TODO: {message} is not allowed here and was left out" in (tmp_path / "job.yaml").read_text()
    assert job.run.save_checkpoints_steps == expected


def test_a_program_that_shows_no_model_has_a_stub_with_what_is_to_do(tmp_path: Path) -> None:
    source = source_of("import tensorflow as tf\nc = tf.estimator.RunConfig('/tmp/x')\n", tmp_path)
    _, text = skeleton(source, tmp_path)
    assert "# TODO: no model was found in the program; write it here\n" in text


@pytest.mark.parametrize(
    ("arguments", "epochs", "max_steps", "is_to_do"),
    [
        ("epochs=3, steps_per_epoch=50", None, 150, False),
        ("epochs=3, steps_per_epoch=None", 3, None, False),
        ("epochs=3, steps_per_epoch=len(x) // 8", 3, None, True),
    ],
)
def test_the_end_of_fit(
    tmp_path: Path, arguments: str, epochs: int | None, max_steps: int | None, is_to_do: bool
) -> None:
    code = f"import tensorflow as tf\nimport horovod.keras as hvd\nmodel.fit(x, {arguments})\n"
    job, _ = skeleton(source_of(code, tmp_path), tmp_path)
    assert (job.data.train.epochs, job.train.max_steps) == (epochs, max_steps)
    assert ("# TODO: train.max_steps: " in (tmp_path / "job.yaml").read_text()) == is_to_do


def test_a_model_that_an_object_holds(tmp_path: Path) -> None:
    code = """
    import tensorflow as tf
    import horovod.keras as hvd
    class Trainer:
        def __init__(self, units):
            self.rate = 0.1
            self.model = tf.keras.Sequential([tf.keras.layers.Dense(units)])
            self.model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(self.rate)), "mse")
    """
    job, text = skeleton(source_of(code, tmp_path), tmp_path)
    body = text.partition("import keras\n")[2].split("\n")
    assert [line.strip() for line in body if line] == [
        'units = params["units"]',
        "rate = 0.1",
        "model = keras.Sequential([keras.layers.Dense(units)])",
        'model.compile(keras.optimizers.SGD(rate), "mse")',
        "return model",
    ]
    assert job.params == {"units": None}


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("DNNLinearCombinedRegressor(linear_feature_columns=[number], dnn_hidden_units=[3])", ["wide = features"]),
        ("DNNClassifier([8], [number], dropout=0.2)", ["deep = features", "keras.layers.Dropout(0.2)(deep)"]),
        ("LinearClassifier([number, word], n_classes=4)", ["Dense(4)(deep)", 'StringLookup(vocabulary=["a"]']),
        ("LinearRegressor([one, *many], label_dimension=2)", ["Dense(2)(deep)", "IntegerLookup(vocabulary=[1, 2]"]),
        ("LinearClassifier(other())", ["# TODO: the columns of other() are not known here", "no feature columns"]),
        ("DNNRegressor([8], [number], optimizer='Ftrl')", ['optimizer="Ftrl"', "MeanSquaredError()"]),
        ("DNNClassifier(**options)", ["for units in [4]:", "deep = features"]),
    ],
)
def test_canned_estimators_of_all_kinds(tmp_path: Path, code: str, lines: list[str]) -> None:
    preamble = """
    import tensorflow as tf
    fc = tf.feature_column
    number = fc.numeric_column("n", 3)
    word = fc.indicator_column(fc.categorical_column_with_vocabulary_list("w", ["a"]))
    one = fc.categorical_column_with_vocabulary_list("v", vocabulary_list=[1, 2])
    many = [fc.numeric_column(key) for key in ("p", "q")]
    options = {"hidden_units": [4], "feature_columns": [number]}
    """
    _, text = skeleton(source_of(f"{preamble}\n    tf.estimator.{code}\n", tmp_path), tmp_path)
    for line in lines:
        assert line in text, text


def test_embeddings_of_numbers_are_tables(tmp_path: Path) -> None:
    code = """
    import tensorflow as tf
    fc = tf.feature_column
    columns = [
        fc.embedding_column(fc.categorical_column_with_hash_bucket("h", 10**6), 4),
        fc.embedding_column(fc.categorical_column_with_identity("i", 9), 3),
        fc.embedding_column(fc.crossed_column(["h", "k"], 1000), 2),
    ]
    tf.estimator.DNNRegressor([8], columns)
    """
    _, text = skeleton(source_of(code, tmp_path), tmp_path)
    flat = "".join(text.split())
    for part in (
        'Embedding(10**6,4)(keras.layers.Hashing(10**6)(features["h"]))',
        'Embedding(9,3)(features["i"])',
        'Embedding(1000,2)(keras.layers.HashedCrossing(1000)((features["h"],features["k"]))',
    ):
        assert f"keras.layers.GlobalAveragePooling1D()(keras.layers.{part}" in flat, text
    assert "multi_hot" not in text and "one_hot" not in text and "# TODO" not in text


def test_arguments_that_layers_do_not_have_are_to_do(tmp_path: Path) -> None:
    code = """
    import tensorflow as tf
    fc = tf.feature_column
    word = fc.categorical_column_with_vocabulary_list("w", ["p"], num_oov_buckets=2)
    columns = [fc.numeric_column("n", normalizer_fn=f), fc.embedding_column(word, 3, combiner="sum")]
    tf.estimator.DNNClassifier([8], columns, weight_column="z", label_vocabulary=["l", "m"], batch_norm=True,
                               optimizer=tf.train.ProximalAdagradOptimizer(0.1))
    """
    _, text = skeleton(source_of(code, tmp_path), tmp_path)
    text = " ".join(text.replace("#   ", "").split())
    column = "fc.numeric_column('n', normalizer_fn=f)"
    assert (
        f"# TODO: normalizer_fn of {column}: not in this model; ht.feature_column.numeric_column, as the report writes "
        "it, takes it"
    ) in text
    for name in ("num_oov_buckets", "combiner", "weight_column", "label_vocabulary", "batch_norm"):
        assert f"# TODO: {name} of " in text
    assert "tf.train.ProximalAdagradOptimizer(0.1) is no optimizer of Keras" in text


def test_what_the_program_has_from_elsewhere_is_to_do(tmp_path: Path) -> None:
    code = """
    import tensorflow as tf
    import horovod.keras as hvd
    from mine import backbone
    model = tf.keras.Sequential([backbone(LAYERS), tf.keras.layers.Dense(1)])
    model.compile("sgd", my_loss)
    """
    _, text = skeleton(source_of(code, tmp_path), tmp_path)
    assert "    from mine import backbone\n" in text
    for name in ("LAYERS", "my_loss"):
        assert f"# TODO: define {name}, which the program has from elsewhere\n" in text


def test_no_code_of_a_program_is_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    code = f"""
    import tensorflow as tf
    open({str(trap)!r}, "w")
    class Trap:
        open({str(trap)!r}, "w")
    params = {{"a": open({str(trap)!r}, "w"), "b": 2 ** 10 ** 10, "c": 10 * 3 - 1, "d": "x" * 10**9}}
    tf.estimator.Estimator(open, params=params)
    """
    job, _ = skeleton(source_of(code, tmp_path), tmp_path)
    assert not trap.exists()
    assert job.params == {"a": None, "b": None, "c": 29, "d": None}


@pytest.mark.parametrize(
    ("text", "name"),
    [("my-train", "my_train"), ("ünï", "job"), ("3d", "job"), ("a" * 300, "a" * 64), ("", "job"), ("größe", "gr__e")],
)
def test_a_job_has_a_name_like_the_file(text: str, name: str) -> None:
    assert name_of(text) == name
