"""Which full names the names of programs stand for."""

from __future__ import annotations

import ast

import pytest

from hpc_train.migration.names import ESTIMATOR, Names

PREAMBLE = """
import tensorflow
import tensorflow as tf
import tensorflow.compat.v1 as tf1
import horovod.tensorflow.keras as hvd
import horovod.keras as khvd
import horovod.torch as thvd
import horovod
import tensorflow_estimator as tfe
from tensorflow import estimator, keras
from tensorflow.estimator import RunConfig as RC, Estimator
from tensorflow.compat.v1 import estimator as old
from tensorflow_estimator.python.estimator.canned.dnn import DNNClassifier
from tensorflow.python.estimator.run_config import RunConfig as Internal
from horovod.tensorflow import allreduce as reduce, callbacks
from absl import flags
from . import neighbour
est = tf.estimator
again = est
Config = est.RunConfig
FLAGS = flags.FLAGS
"""


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("tf.estimator.RunConfig", "tf.estimator.RunConfig"),
        ("tensorflow.estimator.RunConfig", "tf.estimator.RunConfig"),
        ("tf.compat.v1.estimator.RunConfig", "tf.estimator.RunConfig"),
        ("tf1.estimator.RunConfig", "tf.estimator.RunConfig"),
        ("estimator.RunConfig", "tf.estimator.RunConfig"),
        ("old.inputs.numpy_input_fn", "tf.estimator.inputs.numpy_input_fn"),
        ("tfe.estimator.RunConfig", "tf.estimator.RunConfig"),
        ("RC", "tf.estimator.RunConfig"),
        ("est.RunConfig", "tf.estimator.RunConfig"),
        ("again.RunConfig", "tf.estimator.RunConfig"),
        ("Config", "tf.estimator.RunConfig"),
        ("Internal", "tf.estimator.RunConfig"),
        ("DNNClassifier", "tf.estimator.DNNClassifier"),
        ("tf.estimator.SessionRunHook", "tf.train.SessionRunHook"),
        ("tf1.train.SessionRunHook", "tf.train.SessionRunHook"),
        ("tf.keras.layers.Dense", "keras.layers.Dense"),
        ("keras.layers.Dense", "keras.layers.Dense"),
        ("tf.losses.MeanSquaredError", "keras.losses.MeanSquaredError"),
        ("tf1.losses.mean_squared_error", "tf.losses.mean_squared_error"),
        ("tf.optimizers.SGD", "keras.optimizers.SGD"),
        ("hvd.rank", "hvd.rank"),
        ("khvd.callbacks.MetricAverageCallback", "hvd.callbacks.MetricAverageCallback"),
        ("callbacks.MetricAverageCallback", "hvd.callbacks.MetricAverageCallback"),
        ("reduce", "hvd.allreduce"),
        ("thvd.DistributedOptimizer", "horovod.torch.DistributedOptimizer"),
        ("horovod.run", "horovod.run"),
        ("horovod.tensorflow.rank", "hvd.rank"),
        ("tf1.app.flags.DEFINE_float", "flags.DEFINE_float"),
        ("FLAGS.rate", "FLAGS.rate"),
        ("neighbour.RunConfig", None),
        ("unknown.RunConfig", None),
        ("f().RunConfig", None),
    ],
)
def test_aliases_lead_to_one_full_name(code: str, name: str | None) -> None:
    names = Names(ast.parse(PREAMBLE))
    assert names.resolve(ast.parse(code, mode="eval").body) == name


@pytest.mark.parametrize(
    ("code", "expression"),
    [
        ("e = tf.estimator.Estimator(f)", "e"),
        ("e: object = est.DNNRegressor([])", "e"),
        ("self.e = tf.keras.estimator.model_to_estimator(m)", "self.e"),
        ("def make():\n    return Estimator(f)", "make()"),
        ("def make():\n    return Estimator(f)\ndef other():\n    return make()\ne = other()", "e"),
        ("def make():\n    e = Estimator(f)\n    return e\nx = make()", "x"),
        ("def run(e: tf.estimator.Estimator):\n    e.train(f)", "e"),
        ("class A:\n    def make(self):\n        return Estimator(f)", "self.make()"),
        ("if (e := Estimator(f)):\n    pass", "e"),
        ("e = tf.contrib.learn.DNNClassifier(f)", "e"),
        ("e = tf.estimator.BoostedTreesRegressor(f)", "e"),
    ],
)
def test_variables_that_hold_an_estimator_are_known(code: str, expression: str) -> None:
    names = Names(ast.parse(f"{PREAMBLE}\n{code}"))
    assert names.kind(ast.parse(expression, mode="eval").body) == ESTIMATOR
    assert names.called(ast.parse(f"{expression}.train(f)", mode="eval").body) == "Estimator.train"


def test_other_variables_are_not() -> None:
    names = Names(ast.parse(f"{PREAMBLE}\nc = RC()\nm = keras.Sequential()\nx = f()"))
    assert [names.kind(ast.parse(each, mode="eval").body) for each in ("c", "m", "x", "y")] == [
        "tf.estimator.RunConfig",
        "keras.Sequential",
        None,
        None,
    ]
