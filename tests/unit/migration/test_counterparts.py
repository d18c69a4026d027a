"""The table of counterparts: its rows are code, and name what there is; no name of Estimator is forgotten."""

from __future__ import annotations

import ast
import inspect
import re
from operator import attrgetter

import pytest

import hpc_train as ht
from hpc_train.horovod.names import KERAS, NOT_OFFERED, TENSORFLOW
from hpc_train.migration.counterparts.contrib import CONTRIB_TABLE, out_of_contrib
from hpc_train.migration.counterparts.estimator import ESTIMATOR_TABLE
from hpc_train.migration.counterparts.horovod import HOROVOD_TABLE
from hpc_train.migration.counterparts.keras import KERAS_TABLE, OPERATIONS_TABLE
from hpc_train.migration.counterparts.row import Counterpart, Tables, Verdict, table, write
from hpc_train.migration.counterparts.tables import row_of
from tests.support import REPOSITORY

ROWS = [
    *ESTIMATOR_TABLE.values(),
    *CONTRIB_TABLE.values(),
    *KERAS_TABLE.values(),
    *OPERATIONS_TABLE.values(),
    *HOROVOD_TABLE.values(),
]
ESTIMATOR = """
BaselineClassifier BaselineEstimator BaselineRegressor BestExporter BinaryClassHead BoostedTreesClassifier
BoostedTreesEstimator BoostedTreesRegressor CheckpointSaverHook CheckpointSaverListener DNNClassifier DNNEstimator
DNNLinearCombinedClassifier DNNLinearCombinedEstimator DNNLinearCombinedRegressor DNNRegressor Estimator
EstimatorSpec EvalSpec Exporter FeedFnHook FinalExporter FinalOpsHook GlobalStepWaiterHook LatestExporter
LinearClassifier LinearEstimator LinearRegressor LoggingTensorHook LogisticRegressionHead ModeKeys MultiClassHead
MultiHead MultiLabelHead NanTensorHook PoissonRegressionHead ProfilerHook RegressionHead RunConfig SecondOrStepTimer
SessionRunArgs SessionRunContext SessionRunHook SessionRunValues StepCounterHook StopAtStepHook SummarySaverHook
TrainSpec VocabInfo WarmStartSettings add_metrics classifier_parse_example_spec regressor_parse_example_spec
train_and_evaluate experimental.InMemoryEvaluatorHook experimental.LinearSDCA experimental.RNNClassifier
experimental.RNNEstimator experimental.build_raw_supervised_input_receiver_fn experimental.make_early_stopping_hook
experimental.make_stop_at_checkpoint_step_hook experimental.stop_if_higher_hook experimental.stop_if_lower_hook
experimental.stop_if_no_decrease_hook experimental.stop_if_no_increase_hook experimental.KMeans
export.ClassificationOutput export.EvalOutput export.ExportOutput export.PredictOutput export.RegressionOutput
export.ServingInputReceiver export.TensorServingInputReceiver export.build_parsing_serving_input_receiver_fn
export.build_raw_serving_input_receiver_fn inputs.numpy_input_fn inputs.pandas_input_fn tpu.TPUEstimator
tpu.RunConfig
"""
"""Names of tf.estimator in TensorFlow 1.15 to 2.15."""
COLUMNS = """
bucketized_column categorical_column_with_hash_bucket categorical_column_with_identity
categorical_column_with_vocabulary_file categorical_column_with_vocabulary_list crossed_column embedding_column
indicator_column make_parse_example_spec numeric_column sequence_categorical_column_with_hash_bucket
sequence_categorical_column_with_identity sequence_categorical_column_with_vocabulary_file
sequence_categorical_column_with_vocabulary_list sequence_numeric_column shared_embeddings shared_embedding_columns
weighted_categorical_column input_layer linear_model
"""
_UNKNOWN = "does not know"


def parameters(row: Counterpart) -> list[str]:
    return [re.split(r"[?=]", token)[0] for token in row.signature.split()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_row_is_complete(row: Counterpart) -> None:
    assert row.code or row.why, "either says what to write or why not"
    assert bool(row.code) <= (row.verdict is not Verdict.MISSING)
    assert not (row.verdict is Verdict.REPLACED and not row.code)
    if row.code:
        used = {node.id for node in ast.walk(ast.parse(row.code)) if isinstance(node, ast.Name)}
        used -= {
            "ht",
            "keras",
            "tf",
            "dataclasses",
            "logging",
            "rest",
            "self",
            "dict",
            "eval_input_fn",
            "train_spec",
            "eval_spec",
        }
        assert used <= set(parameters(row)), "names of its code are arguments"
    for text in (row.why, *row.gone.values()):
        assert not text.endswith("."), "a report puts no sentence after it"
        for page, anchor in re.findall(r"docs/(\w+\.md)(#[\w-]+)?", text):
            assert (REPOSITORY / "docs" / page).exists()
            headings = re.findall(r"^#+ (.*)$", (REPOSITORY / "docs" / page).read_text(), re.MULTILINE)
            slugs = {"#" + re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert not anchor or anchor in slugs
        for example in re.findall(r"examples/(\w+)", text):
            assert (REPOSITORY / "examples" / example).is_dir()


def test_names_of_this_package_are_public() -> None:
    texts = [text for row in ROWS for text in (row.code, row.why, *row.gone.values())]
    named = {name for text in texts for name in re.findall(r"\bht\.(\w+)", text)}
    assert named <= set(ht.__all__)
    assert {"Estimator", "RunConfig", "train_and_evaluate", "WarmUp", "launched_ranks"} <= named


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "*rest" in row.code and row.code.startswith("ht.")], ids=lambda row: row.name
)
def test_arguments_are_those_of_this_package(row: Counterpart) -> None:
    called = attrgetter(row.code.partition("(")[0].removeprefix("ht."))(ht)
    offered = set(inspect.signature(called).parameters)
    kept = {row.renamed.get(name, name) for name in parameters(row) if name not in row.gone} - {"*"}
    assert kept <= offered
    refused = {"default_value"} if row.name == "tf.feature_column.numeric_column" else set()  # what is not None
    assert offered & row.gone.keys() == refused, "no argument that there is counts as gone"


@pytest.mark.parametrize("name", ESTIMATOR.split())
def test_no_name_of_estimator_is_forgotten(name: str) -> None:
    full = f"tf.train.{name}" if re.search(r"^\w+Hook$|^SessionRun|Listener$|Timer$", name) else f"tf.estimator.{name}"
    row = row_of(full)
    assert row is not None and _UNKNOWN not in row.why


@pytest.mark.parametrize("name", COLUMNS.split())
def test_no_feature_column_is_forgotten(name: str) -> None:
    row = row_of(f"tf.feature_column.{name}")
    assert row is not None and _UNKNOWN not in row.why


def test_all_of_horovod_is_known() -> None:
    for name in {*KERAS, *TENSORFLOW} - {"callbacks"}:
        row = row_of(f"hvd.{name}")
        assert row is not None and row.verdict is Verdict.KEPT
    for name in NOT_OFFERED.keys() - {*KERAS, *TENSORFLOW}:
        row = row_of(f"hvd.{name}")
        assert row is not None and (row.verdict, row.why) == (Verdict.MISSING, NOT_OFFERED[name])
    row = row_of("hvd.elastic.TensorFlowKerasState")
    assert row is not None and "--max-restarts" in row.why


def test_the_longest_beginning_counts_and_names_are_not_cut_in_two() -> None:
    tables = Tables(table([write("a.b*", "1"), write("a.b.c*", "2"), write("a.b.c", "3")]))
    names = {"a.b.c": "3", "a.b.c.d": "3", "a.b.ccc": "2", "a.bc": "1"}
    for name, code in names.items():
        row = tables.find(name)
        assert row is not None and row.code == code
    assert tables.find("a.a") is None
    with pytest.raises(ValueError, match=r"a\.b has two rows"):
        table([write("a.b", "1"), write("a.b", "2")])


def test_what_was_in_contrib_is_found_where_it_went() -> None:
    tables = Tables(ESTIMATOR_TABLE, CONTRIB_TABLE, KERAS_TABLE)
    assert out_of_contrib("tf.contrib.learn.RunConfig", tables) == "tf.estimator.RunConfig"
    stop = "stop_if_no_decrease_hook"
    assert out_of_contrib(f"tf.contrib.estimator.{stop}", tables) == f"tf.estimator.experimental.{stop}"
    assert out_of_contrib("tf.contrib.slim.convolution2d", tables) == "tf.contrib.layers.conv2d"
    assert out_of_contrib("tf.contrib.layers.dense", tables) == "tf.contrib.layers.dense"
    assert out_of_contrib("tf.contrib.crf.decode", tables) == "tf.contrib.crf.decode"
