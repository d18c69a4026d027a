"""Built-in models as a program or a job file asks for them: built, trained, saved, and loaded by Keras alone."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import hpc_train as ht
from hpc_train.config.builtin_model import model_from
from hpc_train.export.signature import default_serving, signature_of_inputs
from hpc_train.models.function import BuiltinModelFunction, builtin_model
from hpc_train.models.optimizer import optimizer_of
from tests.support import LIMIT_SECS
from tests.unit.models.schemas import COLUMNS, ROWS, batch, schema

OPTIONS = {"linear": {"l1": 0.1}, "dnn": {"hidden_units": [8], "dropout": 0.1, "batch_norm": True, "l2": 0.1}}
OPTIONS["wide_deep"] = {"crosses": [["city", "code"]], "hidden_units": [8, 4]}
LABEL = {"binary": [1, 0, 1], "classes": [0, 2, 1], "regression": [1.5, -3.0, 4.0], "counts": [0.0, 3.0, 7.0]}
WHOLE = {**ROWS, "constant": [1.5, 1.5, 1.5]}


def made(kind: str, task: str = "binary", columns=COLUMNS, **options) -> keras.Model:
    settings = model_from({"builtin": kind, "schema": schema(task, columns), **options})
    return BuiltinModelFunction(settings)()


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        ("linear", "regression"),
        ("linear", "counts"),
        ("dnn", "binary"),
        ("dnn", "regression"),
        ("wide_deep", "classes"),
    ],
)
def test_models_of_tables_learn_and_are_saved_with_their_preprocessing(kind, task, tmp_path):
    model = made(kind, task, learning_rate=0.05, **OPTIONS[kind])
    rows, label = batch(WHOLE), tf.constant(LABEL[task])
    before = model.test_on_batch(rows, label, return_dict=True)
    for _ in range(20):
        model.train_on_batch(rows, label)
    after = model.test_on_batch(rows, label, return_dict=True)
    assert after["loss"] < before["loss"]
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", compile=False)
    np.testing.assert_array_equal(again(rows), model(rows))


@pytest.mark.parametrize("kind", ["linear", "wide_deep"])
@pytest.mark.parametrize("task", ["binary", "regression"])
def test_columns_may_be_called_as_layers_are(kind, task):
    names = ["probability", "prediction", "logits", "string_lookup", "hidden_1", "add", "concatenate"]
    columns = dict(zip(names, COLUMNS.values(), strict=True))
    rows = dict(zip(names, batch(WHOLE).values(), strict=True))
    crosses = {"crosses": [["hidden_1", "add"]]} if kind == "wide_deep" else {}
    model = made(kind, task, columns, **crosses)
    assert model.fit(rows, tf.constant(LABEL[task]), verbose=0).history["loss"][0] > 0
    signature = signature_of_inputs(model)
    assert sorted(signature.inputs) == sorted(names)
    (served,) = default_serving(model, signature)(rows).values()
    assert served.shape == (3, 1)


def test_a_linear_model_knows_at_first_what_the_statistics_of_the_label_say():
    assert made("linear")(batch(WHOLE)).numpy().ravel() == pytest.approx([2 / 3] * 3)


@pytest.mark.parametrize("name", ["city", "code", "comment"])
def test_a_linear_model_of_one_column_that_is_no_number_has_a_bias(name):
    model = made("linear", "regression", {name: COLUMNS[name]}, l2=0)
    rows = {name: batch()[name]}
    for _ in range(300):
        model.train_on_batch(rows, tf.constant([1.0, 2.0, 3.0]))
    assert model(rows).numpy().ravel() == pytest.approx([1, 2, 3], abs=0.2)


def test_a_linear_model_wants_the_number_of_rows_for_its_penalty():
    plain = schema("classes").model_copy(update={"rows": None})
    settings = model_from({"builtin": "linear", "schema": plain})
    with pytest.raises(ht.UserError, match="`rows` is missing, by which l1 and l2 are divided"):
        BuiltinModelFunction(settings)()
    BuiltinModelFunction(dataclasses.replace(settings, l2=0))()


@pytest.mark.parametrize("backbone", ["small", "mobilenet_v3_small", "resnet50"])
def test_images_are_taken_as_they_are_stored(backbone):
    model = made_image(backbone=backbone, shape=[32, 32, 3])
    assert model.input_shape == (None, 32, 32, 3) and model.inputs[0].dtype == "uint8"
    assert model(np.full((2, 32, 32, 3), 255, np.uint8)).shape == (2, 10)


def test_images_are_scaled_as_their_backbone_wants_them():
    """The values that keras.applications' own functions make of a black and a white image."""
    from hpc_train.models.image import _BACKBONES

    images = np.stack([np.zeros((1, 1, 3)), np.full((1, 1, 3), 255.0)]).astype(np.float32)
    modules = {"resnet50": "resnet50", "vgg16": "vgg16", "densenet121": "densenet", "xception": "xception"}
    modules |= {"resnet50_v2": "resnet_v2", "mobilenet_v2": "mobilenet_v2", "convnext_tiny": "convnext"}
    modules |= {"mobilenet_v3_small": "mobilenet_v3", "efficientnet_v2_b0": "efficientnet_v2"}
    for name, module in modules.items():
        wanted = getattr(keras.applications, module).preprocess_input(images.copy())
        np.testing.assert_allclose(_BACKBONES[name].scaled(images), wanted, atol=1e-4, err_msg=name)
    assert set(_BACKBONES) - set(modules) == {"small", "efficientnet_v2_s"}


def test_weights_come_from_a_file_and_can_be_kept(tmp_path):
    path = tmp_path / "small.weights.h5"
    first = made_image()
    backbone = first.get_layer("small")
    backbone.save_weights(path)
    model = made_image(weights=path, train_backbone=False)
    for ours, theirs in zip(model.get_layer("small").variables, backbone.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert [v.path.rpartition("/")[0] for v in model.trainable_variables] == ["logits", "logits"]
    with pytest.raises(ht.UserError, match=r"weights: there is no file .*nothing\.h5; weights are never downloaded"):
        made_image(weights=tmp_path / "nothing.h5")
    (tmp_path / "text.weights.h5").write_text("no weights")
    with pytest.raises(ht.UserError, match="are no weights of small without its top"):
        made_image(weights=tmp_path / "text.weights.h5")


def test_images_can_be_too_small():
    with pytest.raises(ht.UserError, match=r"xception wants images of 71 x 71 at least; shape is \[32, 32, 3\]"):
        made_image(backbone="xception", shape=[32, 32, 3])


def made_image(**options) -> keras.Model:
    return BuiltinModelFunction(model_from({"builtin": "image", "shape": [8, 8, 1], "classes": 10, **options}))()


def test_every_optimizer_is_one_of_keras():
    for name in ("adam", "adamw", "sgd", "rmsprop", "adagrad", "ftrl", "lion"):
        settings = model_from({"builtin": "image", "shape": [8, 8, 1], "classes": 2, "optimizer": name})
        assert type(optimizer_of(settings)).__name__.lower() == name


def test_a_program_names_a_model_and_its_schema(tmp_path):
    path = tmp_path / "schema.yaml"
    path.write_text(schema().to_yaml())
    function = builtin_model("dnn", path, hidden_units=[4])
    assert function.settings == model_from({"builtin": "dnn", "schema": schema(), "hidden_units": [4]})
    estimator = ht.Estimator(function)
    assert estimator.model_fn().output_shape == (None, 1)
    with pytest.raises(ht.UserError, match="has no argument for params"):
        ht.Estimator(function, params={"a": 1})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"name": "dn"},
            r"name: 'dn' is not allowed; allowed: linear, dnn, wide_deep, gbdt, image; did you mean `dnn`\?",
        ),
        ({"name": "dnn"}, "schema: missing, and it has no default"),
        ({"name": "dnn", "schema": 3}, r"schema: 3 is not allowed; allowed: the path of a schema\.yaml, or None"),
        ({"name": "dnn", "schema": "s", "hiden_units": 3}, r"hiden_units: unknown key; did you mean `hidden_units`\?"),
        ({"name": "dnn", "schema": "s", "dropout": 1}, "dropout: 1 is not allowed; it should be less than 1"),
        ({"name": "image", "shape": [8, 8, 1]}, "classes: missing, and it has no default"),
        ({"name": "dnn", "schema": "no-such.yaml"}, r"no-such\.yaml: cannot be read"),
    ],
)
def test_mistakes_of_a_program_are_said(given, said):
    with pytest.raises(ht.UserError, match=said):
        builtin_model(**given)


def test_naming_a_model_starts_no_tensorflow():
    program = (
        "import sys, hpc_train as ht\n"
        "ht.builtin_model('image', shape=[8, 8, 1], classes=3)\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=LIMIT_SECS)
