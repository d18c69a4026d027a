"""Models of which ranks hold parts, against what one rank has."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import hpc_train.parallel as p
from hpc_train.config.estimator import Estimator
from hpc_train.config.run_config import RunConfig
from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.placement import placed
from hpc_train.errors import UserError
from hpc_train.model.builder import build_model
from hpc_train.model.one_rank import check_parts
from hpc_train.model.unallocated import traced

L = keras.layers
BATCHES = tf.data.Dataset.from_tensors((np.zeros((2, 8), np.int32), np.zeros((2, 1), np.float32)))


class Block(L.Layer):
    def __init__(self, second):
        super().__init__()
        self.a, self.b = p.ColumnDense(8, name="a"), second

    def build(self, shape):
        self.a.build(shape)
        self.b.build((*shape[:-1], self.a.compute_output_shape(shape)[-1]))

    def call(self, x):
        return self.b(self.a(x))


class Tied(keras.Model):
    def __init__(self):
        super().__init__()
        self.words = p.Embedding(16, 4)

    def call(self, ids):
        return keras.ops.matmul(self.words(ids), keras.ops.transpose(self.words.embeddings))


def functional(make):
    x = keras.Input((8,), dtype="int32")
    return keras.Model(x, make(keras.ops.cast(x, "float32")))


def tied(x):
    words = p.Embedding(16, 4)
    h = words(keras.ops.cast(x, "int32"))
    return keras.ops.matmul(h, keras.ops.transpose(words.embeddings))


def checked(make):
    def model_fn(params):
        model = make()
        model.compile("sgd", lambda labels, outputs: keras.ops.mean(outputs))
        return model

    estimator = Estimator(model_fn, RunConfig("unused", tf_random_seed=3))
    with placed(Mesh(1, 2, 0)):
        model = build_model(estimator, BATCHES, traced)
        before = np.random.get_state()[1].copy()
        check_parts(model, BATCHES, lambda: build_model(estimator, BATCHES, traced))
    np.testing.assert_array_equal(np.random.get_state()[1], before)
    assert not model.losses
    assert L.Dense(1).name == "dense", "layers of the other model are not counted"


@pytest.fixture(autouse=True)
def _fresh():
    keras.backend.clear_session()
    yield
    keras.backend.clear_session()


@pytest.mark.parametrize(
    "make",
    [
        lambda: functional(lambda x: Block(p.RowDense(8))(x)),
        lambda: functional(lambda x: p.RowDense(8)(p.ColumnDense(2048)(x))),
        lambda: keras.Sequential([p.ColumnDense(8), L.ReLU(), p.RowDense(1)]),
    ],
)
def test_a_model_that_one_rank_has_alike_passes(make):
    checked(make)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: functional(lambda x: Block(L.Dense(8, name="b"))(x)),
            r"b/kernel' has the shape \[4, 8\] .* \[8, 8\] on",
        ),
        (lambda: functional(tied), r"output '.*' of the model has the shape \[None, 8, 8\] .* \[None, 8, 16\] on one"),
        (Tied, r"output '0' of the model has the shape \[2, 8, 8\] with run.mesh, but \[2, 8, 16\] on one rank"),
    ],
)
def test_one_that_no_other_process_could_read_is_refused_by_the_name_of_what_differs(make, said):
    with pytest.raises(UserError, match=said):
        checked(make)


class Residual(keras.Model):
    def __init__(self, units):
        super().__init__()
        self.wide = p.ColumnDense(units, name="wide")

    def call(self, ids):
        x = keras.ops.cast(ids, "float32")
        return x + self.wide(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda: functional(
            lambda x: x + p.ColumnDense(8, name="wide")(p.ColumnDense(2048, "relu", gather_output=True)(x))
        ),
        lambda: Residual(8),
    ],
)
def test_one_that_only_one_rank_can_build_is_refused_with_the_way_on(make):
    with pytest.raises(UserError) as refused:
        checked(make)
    said = str(refused.value)
    assert "model_fn: one rank can build the model, but not the ranks of run.mesh: " in said
    assert "a part of what it needs whole: set gather_output=True in the ColumnDense before it ('wide'), or" in said
    assert len(said.splitlines()) == 1 and "\x1b" not in said and "Arguments received" not in said
    assert L.Dense(1).name == "dense"


@pytest.mark.parametrize("make", [lambda: functional(lambda x: x + p.ColumnDense(6)(x)), lambda: Residual(6)])
def test_what_no_rank_can_build_is_said_as_it_is(make):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=r"(?i)broadcast|must be equal") as raised:
        checked(make)
    assert "run.mesh" not in str(raised.value)
