"""Models whose layers are divided: what the first rank of a mesh holds of them, and sends, is what it really would."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hpc_train import parallel
from hpc_train.config.estimator import Estimator
from hpc_train.config.run_config import RunConfig
from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.optimizer_pieces import OptimizerPieces
from hpc_train.distributed.placement import placed
from hpc_train.distributed.tensors import nbytes_of
from hpc_train.errors import UserError
from hpc_train.planning.holdings import Choice, ModelSizes, holdings
from hpc_train.planning.model_sizes import sizes_of
from hpc_train.planning.options import exchanges
from hpc_train.planning.traffic import Call

BATCH, LENGTH, WIDTH, ROWS = 4, 6, 8, 1000


def block(params: Any = None) -> keras.Model:
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = parallel.Embedding(16, WIDTH)(tokens)
    x = x + parallel.MultiHeadAttention(4, 2)(x, x, use_causal_mask=True)
    x = keras.layers.LayerNormalization()(x)
    x = x + parallel.RowDense(WIDTH)(parallel.ColumnDense(32, "relu")(x))
    return compiled(keras.Model(tokens, keras.layers.Dense(16)(x)))


def table(optimizer: Any) -> keras.Model:
    ids = keras.Input((LENGTH,), dtype="int32")
    return compiled(keras.Model(ids, keras.layers.Dense(16)(parallel.ShardedEmbedding(ROWS, WIDTH)(ids))), optimizer)


def compiled(model: keras.Model, optimizer: Any = "adam") -> keras.Model:
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def measured(model: Any, mesh: Mesh, **config: Any) -> ModelSizes:
    rows = np.zeros((BATCH, LENGTH), np.int32), np.zeros((BATCH, LENGTH), np.int64)
    dataset = tf.data.Dataset.from_tensor_slices(rows).batch(BATCH, drop_remainder=True)
    return sizes_of(Estimator(lambda params: model(), RunConfig(model_dir=None, **config), {}), dataset, mesh)[0]


@pytest.mark.parametrize("mesh", [Mesh(1, 1), Mesh(2, 1), Mesh(2, 2), Mesh(1, 4)], ids=lambda m: f"{m.data}x{m.model}")
def test_bytes_are_those_of_the_real_model_and_of_its_sharded_optimizer(mesh: Mesh) -> None:
    found = measured(block, mesh)
    with placed(mesh):
        model = block()
    assert found.parameters == sum(map(nbytes_of, model.trainable_variables))
    whole = measured(block, Mesh()).parameters
    parts = sum(v.whole * v.itemsize for v in found.variables)
    assert parts == whole, "the whole variables are those of a model on one rank"

    pieces = OptimizerPieces(model.optimizer, model.trainable_variables, mesh)
    assert pieces.held
    real = sum(map(nbytes_of, model.optimizer.variables))
    choice = Choice(mesh.size, mesh.model, shard_optimizer=True)
    assert holdings(found, choice)[0].optimizer == real


def test_a_block_exchanges_an_activation_for_each_f_and_g() -> None:
    found = measured(block, Mesh(2, 2))
    activation = BATCH * LENGTH * WIDTH * 4
    assert [call for call in found.calls if call.ranks == 2] == [Call("allreduce", activation, 2, "layers")] * 5
    alone = exchanges(found, Choice(4, 2))
    assert {(call.what, call.ranks) for call in alone} == {("layers", 2), ("gradients", 4), ("gradients", 2)}
    assert measured(block, Mesh(4, 1)).calls == ()


def test_layers_that_do_not_divide_are_refused() -> None:
    with pytest.raises(UserError, match="num_heads of 4 cannot be divided among the 3 ranks"):
        measured(block, Mesh(1, 3))


def test_a_table_is_spread_over_all_ranks_and_its_rows_travel() -> None:
    found = measured(lambda: table("sgd"), Mesh(4, 1))
    rows = next(v for v in found.variables if v.averaged == "alone")
    assert (rows.whole, rows.elements, rows.in_rows) == (ROWS * WIDTH, ROWS * WIDTH // 4, True)
    assert found.gradients == (WIDTH * 16 + 16) * 4
    ids, numbers = BATCH * LENGTH * 8, BATCH * LENGTH * WIDTH * 4
    assert sorted(call.nbytes for call in found.calls if call.kind == "alltoall") == sorted([ids, numbers, numbers])
    _, other = holdings(found, Choice(4))
    assert other.snapshot == rows.nbytes
    assert not any(call.what == "gradients" and call.nbytes > 4000 for call in exchanges(found, Choice(4)))
    with_adam = measured(lambda: table("adam"), Mesh(4, 1))
    assert with_adam.gradients == with_adam.parameters, "it would touch all rows"
    adagrad = measured(lambda: table("adagrad"), Mesh(4, 1))
    assert adagrad.optimizer > rows.nbytes and adagrad.gradients == found.gradients, "it leaves the other rows alone"
    as_keras = measured(lambda: table("adam"), Mesh(4, 1), sparse_gradients="keras")
    assert as_keras.gradients == found.gradients


@pytest.mark.parametrize(
    ("ranks", "config", "whole"),
    [
        (1, {}, True),
        (1, {"accumulate_steps": 2}, True),
        (2, {"sparse_gradients": "keras"}, True),
        (1, {"sparse_gradients": "keras"}, False),
    ],
)
def test_gradients_of_an_embedding_stay_rows_where_the_job_says_so(ranks: int, config: Any, whole: bool) -> None:
    def model() -> keras.Model:
        ids = keras.Input((LENGTH,), dtype="int32")
        return compiled(keras.Model(ids, keras.layers.Dense(16)(keras.layers.Embedding(ROWS, WIDTH)(ids))))

    found = measured(model, Mesh(ranks, 1), **config)
    assert found.gradients == found.parameters - (0 if whole else ROWS * WIDTH * 4)


def test_a_layer_that_gets_a_part_of_what_it_needs_whole_is_refused_as_in_the_job() -> None:
    class Block(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = parallel.ColumnDense(8, name="a"), keras.layers.Dense(16, name="b")

        def call(self, x: Any) -> Any:
            return self.b(self.a(x))

    def mixed() -> keras.Model:
        tokens = keras.Input((LENGTH,), dtype="int32")
        return compiled(keras.Model(tokens, Block()(parallel.Embedding(ROWS, WIDTH)(tokens))))

    assert measured(mixed, Mesh(2, 1)).parameters
    with pytest.raises(UserError, match=r"b/kernel' has the shape \[4, 16\] with run.mesh, but \[8, 16\] on one rank"):
        measured(mixed, Mesh(1, 2))


def test_a_table_that_no_rank_could_hold() -> None:
    def huge() -> keras.Model:
        ids = keras.Input((LENGTH,), dtype="int32")
        return compiled(keras.Model(ids, keras.layers.Dense(16)(parallel.ShardedEmbedding(10**10, 64)(ids))), "sgd")

    found = measured(huge, Mesh(8, 1))
    assert found.parameters == pytest.approx(10**10 * 64 * 4 / 8, rel=1e-3)
    assert found.activations is not None
    assert found.activations < 10**6
