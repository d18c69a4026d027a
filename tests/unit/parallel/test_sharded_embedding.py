"""ShardedEmbedding, as far as one process can tell: what it is, what a rank holds of it, what it refuses."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.distributed.collectives import OneRank
from hpc_train.distributed.exchange import exchanging
from hpc_train.distributed.groups import Groups
from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.placement import Room, placed
from hpc_train.distributed.rows import each_once
from hpc_train.distributed.share import Share, averaged_over, share_of
from hpc_train.errors import UserError
from hpc_train.parallel import ShardedEmbedding
from hpc_train.parallel.block_values import BLOCK_ROWS

draw = keras.initializers


def table_of(*args, mesh=None, **kwargs):
    with placed(mesh):
        layer = ShardedEmbedding(*args, **kwargs)
        layer.build()
    return layer


def test_in_one_process_it_is_an_ordinary_layer_that_is_saved_and_exported(tmp_path):
    tokens = keras.Input((4,), dtype="int32")
    x = ShardedEmbedding(7, 3, mask_zero=True, name="words")(tokens)
    model = keras.Model(tokens, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(x)))
    ordinary = keras.layers.Embedding(7, 3, weights=model.layers[1].get_weights(), mask_zero=True)
    ids = np.array([[1, 2, 0, 0], [6, 6, 6, 1]])
    np.testing.assert_array_equal(model.layers[1](ids), ordinary(ids))
    np.testing.assert_array_equal(model.layers[1].compute_mask(ids), ordinary.compute_mask(ids))
    assert model.layers[1].embeddings.path == "words/embeddings"
    assert share_of(model.layers[1].embeddings) is None
    model.compile("adam", "mse")
    model.fit(ids, np.ones((2, 1)), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(ids), model(ids))
    model.export(str(tmp_path / "export"), verbose=False)
    exported = tf.saved_model.load(str(tmp_path / "export"))
    np.testing.assert_allclose(exported.serve(tf.constant(ids, tf.int32)), model(ids), rtol=1e-5)


INITIALIZERS = {
    "uniform": "uniform",
    "normal": draw.RandomNormal(seed=3),
    "truncated": draw.TruncatedNormal(1.0, 2.0, seed=keras.random.SeedGenerator(3)),
    "glorot": "glorot_uniform",
    "he": draw.HeNormal(seed=1),
    "zeros": "zeros",
    "ones": draw.Ones(),
    "number": draw.Constant(3.0),
    "array": draw.Constant(np.arange(9003.0)[:, None] * [1, -1]),
}


@pytest.mark.parametrize("name", INITIALIZERS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_parts_begin_with_the_values_of_the_whole_to_the_bit(name, dtype):
    def made(mesh):
        keras.utils.set_random_seed(5)
        initializer = draw.get(draw.serialize(INITIALIZERS[name])) if name != "array" else INITIALIZERS[name]
        return table_of(9003, 2, initializer, dtype=dtype, mesh=mesh).embeddings

    whole = np.asarray(made(None))
    parts = [made(Mesh(3, 1, rank)) for rank in range(3)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert [share_of(part) for part in parts] == [Share((9003, 2), 0, start, start + 3001) for start in (0, 3001, 6002)]
    assert {averaged_over(part) for part in parts} == {"alone"}


def test_blocks_differ_and_are_distributed_as_a_whole_table():
    table = table_of(20 * BLOCK_ROWS, 4, "glorot_normal").embeddings.numpy()
    assert len(np.unique(table[::BLOCK_ROWS])) == 20 * 4
    np.testing.assert_allclose(table.std(), np.sqrt(2 / (20 * BLOCK_ROWS + 4)), rtol=0.02)
    assert np.any(table != table_of(20 * BLOCK_ROWS, 4, "glorot_normal").embeddings.numpy()), "another seed each time"


@given(st.integers(1, 9), st.integers(1, 6), st.integers(1, 2))
def test_rows_are_spread_along_the_data_axis_also_where_there_are_fewer_than_ranks(rows, data, model):
    tables = [table_of(rows, 1, "ones", mesh=Mesh(data, model, rank)) for rank in range(data * model)]
    shares = [share_of(table.embeddings) or Share((rows, 1), 0, 0, rows) for table in tables]
    assert [share.start for share in shares[::model]] == [0, *(share.stop for share in shares[::model])][:-1]
    assert shares[-1].stop == rows
    assert shares[::model] == shares[model - 1 :: model], "copies along the model axis"


def test_before_ranks_exchange_a_part_gives_rows_of_the_right_shape_and_afterwards_none():
    with placed(Mesh(3, 1, 2)):
        layer = ShardedEmbedding(8, 2, "ones")
        with tf.GradientTape() as tape:
            found = layer(tf.constant([[0, 7]]))
        assert found.numpy().tolist() == [[[0, 0], [1, 1]]]
        assert tape.gradient(found, layer.embeddings) is not None
    with placed(Mesh(9, 1, 8)):
        assert ShardedEmbedding(8, 2)(tf.constant([[0, 7]])).shape == (1, 2, 2), "a rank without rows"
    with pytest.raises(UserError, match="spread over 3 ranks, and is called outside of a step"):
        layer(tf.constant([0]))


@pytest.mark.parametrize("traced", [False, True])
def test_in_a_step_each_row_has_one_gradient(traced):
    layer = table_of(5, 2)

    def gradient(ids):
        with tf.GradientTape() as tape, exchanging(Groups.of(OneRank())):
            loss = tf.reduce_sum(layer(ids) * tf.constant([[1.0, 2.0]]))
        return tape.gradient(loss, layer.embeddings)

    for ids in ([[3, 1, 3], [3, 0, 0]], np.zeros((0, 3), int)):
        found = (tf.function(gradient) if traced else gradient)(tf.constant(ids, tf.int64))
        rows, counts = np.unique(ids, return_counts=True)
        order = np.argsort(found.indices)
        assert found.indices.numpy()[order].tolist() == rows.tolist()
        np.testing.assert_array_equal(found.values.numpy()[order], counts[:, None] * [1.0, 2.0])


def test_rows_that_occur_several_times_are_added_up():
    rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([3, 1, 3], tf.int64), tf.constant([5, 1]))
    once = each_once(rows)
    assert (once.indices.numpy().tolist(), once.values.numpy().tolist()) == ([3, 1], [[5], [2]])
    np.testing.assert_array_equal(tf.convert_to_tensor(once), tf.convert_to_tensor(rows))


def test_a_part_that_has_no_room_is_refused_with_how_many_ranks_would_hold_the_table():
    room = Room(1000)
    with placed(Mesh(3, 1, 0), room):
        ShardedEmbedding(30, 10, "ones").build()
        assert room.left == 600
        with pytest.raises(UserError) as refused:
            ShardedEmbedding(100, 10, "ones", name="users").build()
    said = str(refused.value)
    assert "users (ShardedEmbedding): this rank's 34 of 100 rows need 1.4 kB of the host's memory" in said
    assert "of which it has 600 B; take at least 7 ranks with as much" in said and "hpc-train plan" in said
    with placed(Mesh(7, 1, 0), Room(600)):
        ShardedEmbedding(100, 10, "ones").build()
    with (
        placed(Mesh(3, 1, 0), Room(1)),
        pytest.raises(UserError, match="take fewer rows or numbers of a row, or nodes"),
    ):
        ShardedEmbedding(100, 10, "ones").build()


def test_more_rows_than_a_tensor_can_have_are_refused():
    with (
        placed(Mesh(4, 1, 0)),
        pytest.raises(UserError, match=r"5,000,000,000 of .* 2,147,483,647 .* at least 10 ranks"),
    ):
        ShardedEmbedding(20_000_000_000, 1, "ones").build()


def test_ids_that_are_not_in_the_table_are_named():
    layer = table_of(5, 2, name="words")
    said = r"words \(ShardedEmbedding\): 3 of 4 ids are outside its table, which has the rows 0 to 4: \[5 -1 9\]"
    with pytest.raises(UserError, match=said):
        layer(tf.constant([[5, -1], [9, 0]]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=said):
        tf.function(layer)(tf.constant([[5, -1], [9, 0]]))
    layer(np.array([4], np.uint8))


@pytest.mark.parametrize("ids", [tf.constant([1.0]), keras.Input((3,)), np.array([True])])
def test_ids_that_are_no_whole_numbers_are_refused(ids):
    with pytest.raises(UserError, match=r"got ids of (float32|bool); give it whole numbers"):
        ShardedEmbedding(5, 2)(ids)


class Seedless(draw.Initializer):
    def __call__(self, shape, dtype=None):
        return keras.ops.ones(shape, dtype)


class Seeded(draw.Initializer):
    def __init__(self, seed=None):
        self.seed = seed

    def __call__(self, shape, dtype=None):
        return keras.ops.full(shape, self.seed % 97, dtype)

    def get_config(self):
        return {"seed": self.seed}


def test_an_initializer_of_ones_own_gets_a_seed_for_each_block():
    table = table_of(3 * BLOCK_ROWS, 1, Seeded(4)).embeddings.numpy()
    assert [len(np.unique(block)) for block in np.split(table, 3)] == [1, 1, 1]
    assert len(np.unique(table)) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"rows": 0}, "a whole number from 1 on"),
        ({"width": 2.5}, "a whole number from 1 on"),
        ({"mask_zero": 1}, "true or false"),
        ({"embeddings_initializer": draw.Orthogonal()}, "Orthogonal cannot be drawn in blocks"),
        ({"embeddings_initializer": Seedless()}, "Seedless cannot be drawn in blocks"),
        ({"embeddings_initializer": lambda shape, dtype: tf.zeros(shape)}, "cannot be drawn in blocks"),
        ({"input_dim": 3}, "input_dim: is called rows"),
        ({"embeddings_regularizer": "l2"}, "would touch all rows"),
        ({"embeddings_initializer": "no-such"}, "no-such"),
    ],
)
def test_what_it_cannot_be_is_refused(arguments, said):
    with pytest.raises(UserError, match=said):
        ShardedEmbedding(**{"rows": 3, "width": 2, **arguments})
