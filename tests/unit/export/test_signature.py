"""The signature that an exported model is called by."""

from __future__ import annotations

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from hpc_train.errors import UserError  # noqa: E402
from hpc_train.export.signature import (  # noqa: E402
    Signature,
    custom_serving,
    default_serving,
    signature_of,
    signature_of_inputs,
)

ROW = tf.TensorSpec([None, 8], tf.float32)
LABEL = tf.TensorSpec([None], tf.int64)


class OneLayer(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        return self.dense(x)


@pytest.fixture(scope="module")
def chain():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(3), keras.layers.Dropout(0.5)])


@pytest.fixture(scope="module")
def layers():
    a, b = keras.Input((2,), name="a"), keras.Input((3,), name="my-b", dtype="uint8")
    return a, b, keras.layers.Dense(1, name="first")(a), keras.layers.Dense(2)(keras.layers.Rescaling(0.1)(b))


def called(model, signature: Signature, rows: int):
    inputs = {name: tf.ones([rows, *spec.shape[1:]], spec.dtype) for name, spec in signature.inputs.items()}
    return default_serving(model, signature)(inputs)


def test_one_feature_names_the_input_of_a_model_and_its_rows_are_any_number(chain):
    signature = signature_of(chain, (tf.TensorSpec([16, 8]), LABEL), ["image"])
    assert signature.inputs == {"image": tf.TensorSpec([None, 8], tf.float32, name="image")}
    for rows in (1, 5):
        assert {name: tuple(out.shape) for name, out in called(chain, signature, rows).items()} == {
            "output_0": (rows, 3)
        }


def test_no_input_begins_with_an_underscore_which_tensorflow_refuses(chain):
    columns = {name: tf.TensorSpec([None, 1]) for name in ("âge", "_x", "a b")}
    signature = signature_of(chain, (columns, LABEL))
    assert signature.datasets == {"input_ge": "âge", "input_x": "_x", "a_b": "a b"}


def test_inputs_that_the_job_gives_other_names_than_datasets_record_those(chain):
    signature = signature_of(chain, ({"x": tf.TensorSpec([16, 8])}, LABEL), ["x"], {"x": "x_train"})
    assert (list(signature.inputs), signature.datasets) == (["x"], {"x": "x_train"})
    assert signature_of(chain, (ROW, LABEL), ["image"], {"image": "image"}).datasets == {}


def test_inference_leaves_dropout_out(chain):
    signature = signature_of(chain, (ROW, LABEL), ["image"])
    first, second = (called(chain, signature, 4)["output_0"].numpy() for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_without_features_kerass_name_is_taken_without_its_number():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    another = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    assert list(signature_of(model, ROW).inputs) == list(signature_of(another, ROW).inputs) == ["keras_tensor"]
    named = keras.Sequential([keras.Input((8,), name="pixels_2"), keras.layers.Dense(1)])
    assert list(signature_of(named, (ROW,)).inputs) == ["pixels_2"]


def test_several_inputs_and_outputs_keep_their_names_and_dtypes(layers):
    a, b, first, second = layers
    x = {"my-b": tf.TensorSpec([None, 3], tf.uint8), "a": tf.TensorSpec([None, 2])}
    by_name = keras.Model({"a": a, "my-b": b}, {"one": first, "two": second})
    signature = signature_of(by_name, (x, LABEL), ["a", "my-b"])
    assert {name: spec.dtype for name, spec in signature.inputs.items()} == {"a": tf.float32, "my_b": tf.uint8}
    assert signature.datasets == {"my_b": "my-b"}
    assert sorted(called(by_name, signature, 2)) == ["one", "two"]

    in_a_row = keras.Model([a, b], [first, second])
    signature = signature_of(in_a_row, ((x["a"], x["my-b"]), LABEL))
    assert list(signature.inputs) == ["a", "my_b"]
    assert sorted(called(in_a_row, signature, 2)) == ["dense", "first"]  # not dense_3, which depends on the process


def test_a_subclassed_model_takes_what_it_was_trained_on():
    model = OneLayer()
    model(tf.zeros([1, 8]))
    assert {name: tuple(o.shape) for name, o in called(model, signature_of(model, (ROW, LABEL), ["x"]), 3).items()} == {
        "output_0": (3, 2)
    }
    assert list(signature_of(model, (ROW, LABEL)).inputs) == ["input_0"]
    with pytest.raises(UserError, match="does not describe its inputs"):
        signature_of_inputs(model)


def test_a_model_tells_its_inputs_itself_where_there_are_no_data(chain, layers):
    assert signature_of_inputs(chain, ["image"]).inputs["image"].shape.as_list() == [None, 8]
    a, b, first, second = layers
    assert signature_of_inputs(keras.Model({"a": a, "my-b": b}, [first, second])).datasets == {"my_b": "my-b"}


def test_inputs_that_are_not_dense_are_refused(chain):
    with pytest.raises(UserError, match="give the exporter a serving_fn"):
        signature_of(chain, (tf.SparseTensorSpec([None, 8]), LABEL), ["image"])


def good(model):
    @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.uint8, name="raw")])
    def serve(raw):
        return {"p": model(tf.cast(raw, tf.float32))}

    return serve


BAD = {
    "a lambda": (lambda model: lambda x: x, "returned function; it must"),
    "a tf.function without a signature": (lambda model: tf.function(model), "one without it"),
    "an input without a name": (
        lambda model: tf.function(model, input_signature=[tf.TensorSpec([None, 8])]),
        "with TensorSpec",
    ),
    "outputs without names": (
        lambda model: tf.function(lambda x: (x, x), input_signature=[tf.TensorSpec([None, 8], name="x")]),
        "returns tuple",
    ),
}


def test_a_serving_fn_becomes_the_signature(chain):
    function = custom_serving(good, chain, "exporter 'best'")
    assert list(function(tf.ones([2, 8], tf.uint8))) == ["p"]


@pytest.mark.parametrize("case", BAD)
def test_a_serving_fn_that_returns_something_else_is_refused(chain, case):
    serving_fn, message = BAD[case]
    with pytest.raises(UserError, match=f"exporter 'best': .*{message}"):
        custom_serving(serving_fn, chain, "exporter 'best'")


def test_a_model_made_of_one_input_tensor_describes_it(layers):
    a, _, first, _ = layers
    signature = signature_of_inputs(keras.Model(a, first))
    assert signature.inputs == {"a": tf.TensorSpec([None, 2], tf.float32, name="a")}
