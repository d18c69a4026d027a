"""What the public names do with arguments: all of them, functions of the user, and those of tf.estimator."""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import hpc_train as ht
from hpc_train.config.functions import CONTEXT, PARAMS, call
from hpc_train.data.loading.tf_dataset import open_evaluation, open_training
from hpc_train.data.sampling.sampler import DataProgress
from hpc_train.model.job_model import JobModel
from tests.support import LIMIT_SECS, REPOSITORY, make_job_in
from tests.unit import hostile_arguments

MODULES = ("feature_column", "parallel", "reducers")
PUBLIC = sorted({*ht.__all__, *(f"{m}.{name}" for m in MODULES for name in getattr(ht, m).__all__)} - {*MODULES})
IMPORTING = {"LARS", "WarmUp", "adapt", *(f"parallel.{name}" for name in ht.parallel.__all__)}
"""Keras objects: TensorFlow starts with them."""
NOT_CALLED = {"Hook", "reducers.Reducer", "SavingListener", "UserError", "RankError", "JobEndedError", "SchedulerError"}
"""Bases of the user's own classes, and exceptions."""


def test_no_public_name_takes_what_it_should_not_or_answers_in_foreign_words_or_starts_tensorflow(
    tmp_path: Path,
) -> None:
    names = sorted(set(PUBLIC) - IMPORTING - NOT_CALLED)
    program = [sys.executable, hostile_arguments.__file__, *names]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_SECS)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
    assert not list(tmp_path.iterdir()), "nothing was written"


@pytest.mark.parametrize("name", sorted(IMPORTING))
def test_those_that_are_keras_objects_answer_alike(name: str) -> None:
    assert not list(hostile_arguments.problems(name))


OF_ESTIMATOR = {
    "Estimator": "model_fn model_dir config params warm_start_from",
    "RunConfig": "model_dir tf_random_seed save_summary_steps save_checkpoints_steps save_checkpoints_secs "
    "session_config keep_checkpoint_max "
    "keep_checkpoint_every_n_hours log_step_count_steps train_distribute device_fn protocol "
    "eval_distribute experimental_distribute experimental_max_worker_delay_secs session_creation_timeout_secs "
    "checkpoint_save_graph_def",
    "TrainSpec": "input_fn max_steps hooks saving_listeners",
    "EvalSpec": "input_fn steps name hooks exporters start_delay_secs throttle_secs",
    "FinalExporter": "name serving_input_receiver_fn assets_extra as_text",
    "LatestExporter": "name serving_input_receiver_fn assets_extra as_text exports_to_keep",
    "BestExporter": "name serving_input_receiver_fn event_file_pattern compare_fn assets_extra as_text exports_to_keep",
    "WarmStartSettings": "ckpt_to_initialize_from vars_to_warm_start var_name_to_prev_var_name",
    "LinearClassifier": "feature_columns model_dir n_classes weight_column label_vocabulary optimizer config "
    "warm_start_from loss_reduction sparse_combiner partitioner",
    "LinearRegressor": "feature_columns model_dir label_dimension weight_column optimizer config warm_start_from "
    "loss_reduction sparse_combiner partitioner",
    "DNNClassifier": "hidden_units feature_columns model_dir n_classes weight_column label_vocabulary optimizer "
    "activation_fn dropout config warm_start_from loss_reduction batch_norm input_layer_partitioner",
    "DNNRegressor": "hidden_units feature_columns model_dir label_dimension weight_column optimizer activation_fn "
    "dropout config warm_start_from loss_reduction batch_norm input_layer_partitioner",
    "DNNLinearCombinedClassifier": "model_dir linear_feature_columns linear_optimizer dnn_feature_columns "
    "dnn_optimizer dnn_hidden_units dnn_activation_fn dnn_dropout n_classes weight_column label_vocabulary config "
    "warm_start_from loss_reduction batch_norm linear_sparse_combiner input_layer_partitioner",
    "DNNLinearCombinedRegressor": "model_dir linear_feature_columns linear_optimizer dnn_feature_columns dnn_optimizer "
    "dnn_hidden_units dnn_activation_fn dnn_dropout label_dimension weight_column config warm_start_from "
    "loss_reduction batch_norm linear_sparse_combiner input_layer_partitioner",
    "feature_column.numeric_column": "key shape default_value dtype normalizer_fn",
    "feature_column.bucketized_column": "source_column boundaries",
    "feature_column.categorical_column_with_vocabulary_list": "key vocabulary_list dtype default_value num_oov_buckets",
    "feature_column.categorical_column_with_vocabulary_file": "key vocabulary_file vocabulary_size dtype default_value "
    "num_oov_buckets file_format",
    "feature_column.categorical_column_with_hash_bucket": "key hash_bucket_size dtype",
    "feature_column.categorical_column_with_identity": "key num_buckets default_value",
    "feature_column.crossed_column": "keys hash_bucket_size hash_key",
    "feature_column.indicator_column": "categorical_column",
    "feature_column.embedding_column": "categorical_column dimension combiner initializer ckpt_to_load_from "
    "tensor_name_in_ckpt max_norm trainable use_safe_embedding_lookup",
    "stop_if_no_decrease": "estimator metric_name max_steps_without_decrease eval_dir min_steps run_every_secs "
    "run_every_steps",
    "stop_if_lower": "estimator metric_name threshold eval_dir min_steps run_every_secs run_every_steps",
}
"""The arguments that each had in TensorFlow 2.15."""


@pytest.mark.parametrize("name", OF_ESTIMATOR)
def test_every_argument_of_estimator_is_taken_or_refused_with_what_replaces_it(name: str) -> None:
    for argument in OF_ESTIMATOR[name].split():
        with pytest.raises(ht.UserError) as caught:
            attrgetter(name)(ht)(no_such=1, **{argument: 1})
        lines = [line.partition(": ")[::2] for line in str(caught.value).splitlines()]
        (about,) = [": ".join(line) for line in lines if f"{argument}: " in line[1]] or [""]
        assert "unknown" not in about, about
        if about:
            own = name.rpartition(".")[2]
            assert about.startswith(f"{own}: {argument}: ") and len(about) > len(f"{own}: {argument}: ") + 10


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: ht.RunConfig("x", session_config=3, keep_checkpoints_max=3),
            "RunConfig: session_config: TensorFlow has no sessions any more; OMP_NUM_THREADS sets the threads",
        ),
        (
            lambda: ht.RunConfig("x", keep_checkpoints_max=3),
            "RunConfig: keep_checkpoints_max: unknown argument; "
            "did you mean `keep_checkpoint_max`? allowed: model_dir, strategy, ",
        ),
        (
            lambda: ht.RunConfig("x", 100),
            "RunConfig: 100 is given by position; only model_dir may be; give the others by name: strategy, ",
        ),
        (lambda: ht.RunConfig("x", model_dir="y"), "RunConfig: model_dir: given twice, by its position and by"),
        (lambda: ht.RunConfig(""), "RunConfig: model_dir: '' is not allowed; allowed: a folder, or None for a "),
        (
            lambda: ht.RunConfig("x", keep_checkpoint_max="five"),
            "RunConfig: keep_checkpoint_max: 'five' is not allowed; it should be a whole number",
        ),
        (
            lambda: ht.RunConfig("x", keep_checkpoint_max=-1, best_mode="mx"),
            "RunConfig: keep_checkpoint_max: -1 is not allowed; it should be greater than or equal to 0\n"
            "RunConfig: best_mode: 'mx' is not allowed; allowed: 'min' or 'max'; did you mean `max`?",
        ),
        (
            lambda: ht.Estimator(len, model_dir="x"),
            "Estimator: model_dir: it is the RunConfig's: config=ht.RunConfig(model_dir)",
        ),
        (lambda: ht.Estimator(len, "x"), "Estimator: config: 'x' is not allowed; allowed: an ht.RunConfig, as in "),
        (lambda: ht.EvalSpec(len, exporters=[3]), "EvalSpec: exporters: 3 is not allowed; allowed: an ht.Final"),
        (
            lambda: ht.TrainSpec(len, 1000),
            "TrainSpec: 1000 is given by position; only input_fn may be; give the others by name: max_steps, ",
        ),
        (
            lambda: ht.stop_if_lower("loss", 1, min_step=3),
            "stop_if_lower: min_step: unknown argument; did you mean `min_steps`?",
        ),
        (lambda: ht.load_job("job.yaml", "a=b"), "load_job: settings: 'a=b' is not allowed; allowed: a list of texts"),
        (lambda: ht.launched_ranks(3), "launched_ranks: 3 is given by position; none may be"),
        (
            lambda: ht.train_and_evaluate(len, 1, 2),
            "train_and_evaluate: estimator: <built-in function len> is not allowed; allowed: an ht.Estimator",
        ),
        (
            lambda: ht.JobConfig(name="a", model="a.py:b", data={"train": {"shrds": 3}}),
            "JobConfig: data.train.shards: missing, and it has no default\n"
            "JobConfig: data.train.shrds: unknown key; did you mean `shards`?",
        ),
    ],
)
def test_a_message_names_the_class_the_argument_the_value_and_the_way(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ht.UserError) as caught:
        make()
    assert str(caught.value).startswith(said), str(caught.value)


def test_estimators_defaults_and_what_it_allowed_are_allowed() -> None:
    assert ht.RunConfig().model_dir is None
    estimator = ht.Estimator(len, None, None)
    assert estimator.config == ht.RunConfig() and estimator.params == {}
    assert ht.TrainSpec(len, max_steps=1, hooks=None, saving_listeners=None).hooks == ()
    assert ht.EvalSpec(len, hooks=None, exporters=None).exporters == ()
    assert ht.EvalSpec(len, exporters=ht.FinalExporter()).exporters == (ht.FinalExporter(),)


def test_what_an_estimator_had_is_answered_with_what_replaces_it() -> None:
    with pytest.raises(AttributeError, match=r"no train: call ht\.train_and_evaluate"):
        ht.Estimator(len).train  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'EstimatorSpec'; .*returns a compiled Keras model"):
        ht.EstimatorSpec  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'RunConfg'; did you mean `RunConfig`"):
        ht.RunConfg  # type: ignore[attr-defined] # noqa: B018


# Functions of the user


class Source:
    def __call__(self) -> str:
        return "called"

    def of_context(self, context: object) -> object:
        return context

    @classmethod
    def of_class(cls) -> str:
        return "class"


def annotated(where: ht.InputContext | int = 3) -> object:
    return where


def two(number: int, context: object) -> object:
    return number, context


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda: "none", "none"),
        (lambda anything: anything, "context"),
        (lambda anything, /: anything, "context"),
        (lambda *anything: anything, ("context",)),
        (lambda context=None: context, "context"),
        (lambda input_context=None: input_context, "context"),
        (lambda ctx=None: ctx, "context"),
        (annotated, "context"),
        (lambda dataset="own": dataset, "own"),
        (lambda *, key=3: key, 3),
        (functools.partial(two, 3), (3, "context")),
        (functools.partial(two, 3, "own"), (3, "own")),
        (functools.partial(lambda mode: mode, mode="train"), "train"),
        (Source(), "called"),
        (Source().of_context, "context"),
        (Source.of_class, "class"),
        (str, "context"),
    ],
)
def test_an_input_fn_gets_its_context_where_it_has_a_place_for_it(function: Any, expected: Any) -> None:
    assert ht.TrainSpec(function, max_steps=1).input_fn is function
    assert ht.EvalSpec(function).input_fn is function
    assert call(function, "context", CONTEXT) == expected


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            lambda a, b: 0,
            r"<lambda>\(a, b\) is not allowed; allowed: an ht\.HDF5Input, or a function without arguments",
        ),
        (lambda *, key: 0, r"<lambda>\(\*, key\)"),
        (lambda mode: 0, r"<lambda>\(mode\) .*functools\.partial or a lambda can give it what Estimator gave it"),
        (lambda params, config: 0, r"\(params, config\) .*functools\.partial"),
        (functools.partial(two), r"two\(number, context\)"),
        (type("Dataset", (), {"element_spec": 3})(), "give a function that returns it, such as lambda: dataset"),
        (3, "3 is not allowed"),
        (None, "None is not allowed"),
    ],
)
def test_another_input_fn_is_refused_at_once(function: Any, said: str) -> None:
    for make in (lambda: ht.TrainSpec(function, max_steps=1), lambda: ht.EvalSpec(function)):
        with pytest.raises(ht.UserError, match=f"Spec: input_fn: .*{said}"):
            make()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda params: params, {"a": 1}),
        (lambda hparams: hparams, {"a": 1}),
        (lambda params=None: params, {"a": 1}),
        (functools.partial(two, 3), (3, {"a": 1})),
        (Source().of_context, {"a": 1}),
    ],
)
def test_a_model_fn_gets_its_params(function: Any, expected: Any) -> None:
    assert call(ht.Estimator(function, params={"a": 1}).model_fn, {"a": 1}, PARAMS) == expected


def test_a_model_fn_without_params_has_none() -> None:
    assert call(ht.Estimator(lambda: "model").model_fn, {}, PARAMS) == "model"
    assert call(ht.Estimator(lambda units=4: units).model_fn, {}, PARAMS) == 4
    for function in (lambda: 0, lambda units=4: 0):
        with pytest.raises(
            ht.UserError, match="has no argument for params, which are given; add one, or leave them out"
        ):
            ht.Estimator(function, params={"units": 8})


@pytest.mark.parametrize(
    "function",
    [
        lambda features, labels, mode: 0,
        lambda features, labels, mode, params: 0,
        lambda features, labels, mode, params, config: 0,
        lambda features, labels: 0,
        lambda features: 0,
        lambda params, config: 0,
    ],
)
def test_a_model_fn_of_estimator_is_refused_with_the_page_that_shows_the_way(function: Any) -> None:
    with pytest.raises(ht.UserError, match=r"Estimator: model_fn: <lambda>\(.*docs/estimator\.md shows"):
        ht.Estimator(function)


def test_other_model_fns_are_refused() -> None:
    import keras

    with pytest.raises(
        ht.UserError, match=r"<lambda>\(a, b\) is not allowed; allowed: a function without arguments or"
    ):
        ht.Estimator(lambda a, b: 0)
    with pytest.raises(ht.UserError, match=r"<Sequential.* is not allowed.* give the function that makes and compiles"):
        ht.Estimator(keras.Sequential())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ht.HDF5Input("a", map_fn=lambda a, b, c: 0), r"map_fn: .*\(features\) or \(features, label\)"),
        (lambda: ht.HDF5Input("a", map_fn=lambda: 0), "map_fn: "),
        (lambda: ht.FinalExporter(serving_fn=lambda: 0), r"serving_fn: <lambda>\(\) .*a function of \(model\)"),
        (lambda: ht.BestExporter(compare_fn=lambda a: 0), r"compare_fn: .*\(best_metrics, current_metrics\)"),
    ],
)
def test_other_functions_are_looked_at_too(make: Any, said: str) -> None:
    ht.HDF5Input("a", map_fn=lambda features, label, *, seed: 0)
    ht.HDF5Input("a", map_fn=lambda features, seed: 0)
    with pytest.raises(ht.UserError, match=said):
        make()


def test_hooks_are_looked_at_before_anything_starts(tmp_path: Path) -> None:
    estimator, spec = ht.Estimator(len, ht.RunConfig(tmp_path / "run")), ht.EvalSpec(len)
    for given, said in (
        ({"hooks": 3}, "TrainSpec: hooks: 3, which is not allowed; allowed: an ht.Hook"),
        ({"hooks": ht.Hook}, r"the class Hook; give an object: Hook\(\)"),
        ({"hooks": "a.py:b"}, "'a.py:b': names of functions are for job files"),
        ({"saving_listeners": object()}, "saving_listeners: <object"),
    ):
        with pytest.raises(ht.UserError, match=said):
            ht.train_and_evaluate(estimator, ht.TrainSpec(len, max_steps=1, **given), spec)
    assert not (tmp_path / "run").exists()


def test_without_a_context_a_rank_takes_every_nth_batch() -> None:
    import tensorflow as tf

    dataset = tf.data.Dataset.range(10).batch(2)
    second = ht.InputContext(1, 2, 0)
    with open_evaluation(lambda: dataset, None, second, None) as opened:
        assert [batch.numpy().tolist() for batch in opened.dataset] == [[2, 3], [6, 7]]
    with open_evaluation(lambda: dataset, None, second, 3) as opened:
        assert [batch.numpy().tolist() for batch in opened.dataset] == [[2, 3]]
    with open_training(lambda: dataset, None, second, DataProgress(step=1)) as opened:
        assert [batch.numpy().tolist() for batch in opened.dataset] == [[6, 7]]
    with open_evaluation(lambda context: dataset, None, second, None) as opened:
        assert len(list(opened.dataset)) == 5, "a function with the context gives its own part"


# Job files


def test_a_job_file_is_answered_alike(tmp_path: Path) -> None:
    job = make_job_in(tmp_path, run={"session_config": 3}, eval={"exporters": {"final": {"as_text": True}}})
    with pytest.raises(ht.UserError) as caught:
        ht.load_job(job.file)
    assert "run.session_config: TensorFlow has no sessions any more" in str(caught.value)
    assert "eval.exporters.final.as_text: a SavedModel is written in binary form alone" in str(caught.value)


@pytest.mark.parametrize(
    ("model", "params", "said"),
    [
        ("def build_model(features, labels, mode, params): pass", {}, r"build_model\(features, .*docs/estimator\.md"),
        ("def build_model(): pass", {"a": 1}, "has no argument for params"),
        ("def build_model(): return 3", {}, None),
    ],
)
def test_the_function_of_a_job_file_is_looked_at_when_it_is_loaded(
    tmp_path: Path, model: str, params: dict[str, int], said: str | None
) -> None:
    job = make_job_in(tmp_path, model=model, params=params)
    found = JobModel.of_job(ht.load_job(job.file), job.job_dir, job.folder)
    for build in (found.call, lambda: found.estimator().model_fn(params)):
        if said is None:
            assert build() == 3
            continue
        with pytest.raises(ht.UserError, match=f"model: .*model.py:build_model: .*{said}"):
            build()


# docs/api.md


@functools.cache
def make_api() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_api", REPOSITORY / "docs" / "make_api.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_the_api_is_up_to_date_and_has_every_name() -> None:
    text = (REPOSITORY / "docs" / "api.md").read_text()
    assert text == make_api().page(), "run make docs-api"
    for name in PUBLIC:
        assert f"\n### {name}\n" in text
    assert "Annotated" not in text and "0x" not in text


def test_every_public_name_is_described() -> None:
    for name in PUBLIC:
        thing = attrgetter(name)(ht)
        assert thing.__doc__ and thing.__doc__.split("\n")[0].endswith("."), name
        parameters = () if name in NOT_CALLED else hostile_arguments.inspect.signature(thing).parameters
        for parameter in parameters:
            told = name in ("LARS", "WarmUp") or re.search(f"{parameter}|ther(s|wise) as ", thing.__doc__)
            assert told or name in ("LatestExporter", "JobConfig"), (name, parameter)
