"""Divided layers, as far as one process can tell: what they are without a mesh, what they hold, what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hpc_train.parallel as p
from hpc_train.config.estimator import Estimator
from hpc_train.config.mesh import MeshOptions
from hpc_train.config.run_config import RunConfig
from hpc_train.distributed import building
from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.placement import placed
from hpc_train.distributed.share import share_of
from hpc_train.errors import UserError
from hpc_train.model.builder import build_model
from hpc_train.model.one_rank import check_parts
from hpc_train.model.unallocated import traced
from hpc_train.parallel.checks import check_layers

L = keras.layers
PAIRS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], tuple[int, ...]]] = {
    "column": (lambda x: p.ColumnDense(6, "relu")(x), lambda x: L.Dense(6, "relu")(x), (5,)),
    "row": (lambda x: p.RowDense(6, use_bias=False)(x), lambda x: L.Dense(6, use_bias=False)(x), (4, 6)),
    "embedding": (lambda x: p.Embedding(7, 4)(x), lambda x: L.Embedding(7, 4)(x), (3,)),
    "attention": (lambda x: p.MultiHeadAttention(2, 3)(x, x), lambda x: L.MultiHeadAttention(2, 3)(x, x), (4, 6)),
    "dropout": (lambda x: p.Dropout(0.5, seed=3)(x), lambda x: L.Dropout(0.5, seed=3)(x), (8,)),
}


def model_of(make: Callable[[Any], Any], shape: tuple[int, ...], dtype: str = "float32") -> Any:
    keras.utils.set_random_seed(4)
    x = keras.Input(shape, dtype=dtype)
    return keras.Model(x, make(x))


@pytest.mark.parametrize("name", PAIRS)
def test_without_a_mesh_a_layer_is_that_of_keras_and_can_be_saved(name, tmp_path):
    own, ordinary, shape = PAIRS[name]
    dtype = "int64" if name == "embedding" else "float32"
    model, other = model_of(own, shape, dtype), model_of(ordinary, shape, dtype)
    paths = [v.path.split("/", 1)[1] for v in model.variables]
    assert [path.split("_")[0] for path in paths] == [v.path.split("/", 1)[1].split("_")[0] for v in other.variables]
    x = np.random.default_rng(0).integers(0, 7, (2, *shape)).astype(dtype)
    for training in (False, True):
        np.testing.assert_array_equal(model(x, training=training), other(x, training=training))
    assert not any(map(share_of, model.variables))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[-1]) is type(model.layers[-1])
    np.testing.assert_array_equal(loaded(x), model(x))


@pytest.mark.parametrize("rank", range(4))
def test_a_rank_begins_with_its_part_of_what_a_whole_layer_begins_with(rank):
    def make(x):
        y = p.Embedding(7, 8, name="embedding")(x)
        y = p.MultiHeadAttention(4, 3, name="attention")(y, y)
        y = p.RowDense(8, name="row")(p.ColumnDense(16, kernel_initializer="he_normal", name="column")(y))
        return p.ColumnDense(8, gather_output=True, bias_initializer="random_normal", name="last")(y)

    whole = model_of(make, (3,), "int32")
    with placed(Mesh(1, 4, rank)):
        part = model_of(make, (3,), "int32")
    assert part.output_shape == whole.output_shape
    for own, full in zip(part.variables, whole.variables, strict=True):
        share = share_of(own)
        np.testing.assert_array_equal(own, full if share is None else share.of(full.numpy()))
    shapes = {v.path: tuple(v.shape) for v in part.variables}
    assert shapes["embedding/embeddings"] == ((2, 8) if rank < 3 else (1, 8))
    assert shapes["attention/query/kernel"] == (8, 1, 3) and shapes["attention/attention_output/kernel"] == (1, 3, 8)
    assert shapes["column/kernel"] == (8, 4) and shapes["row/kernel"] == (4, 8) and shapes["row/bias"] == (8,)
    assert part.layers[2].get_config()["num_heads"] == 4
    assert keras.models.clone_model(part).layers[1].embeddings.shape[0] == 7  # outside of the mesh it is whole


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda x: p.ColumnDense(6, name="wide")(x), ["'wide' (ColumnDense): units of 6", "4 ranks", "such as 4 or 8"]),
        (lambda x: p.RowDense(6, input_is_parallel=False)(x[:, :3]), ["inputs of 3", "a multiple of 4, such as 4"]),
        (lambda x: p.MultiHeadAttention(2, 3)(x[:, None], x[:, None]), ["num_heads of 2"]),
        (lambda x: p.Embedding(3, 2)(keras.ops.cast(x, "int32")), ["input_dim of 3", "at least 4"]),
        (lambda x: p.ColumnDense(8, "softmax")(x), ["activation softmax looks at all units", "gather_output=True"]),
        (lambda x: p.ColumnDense(8, activity_regularizer="l2")(x), ["activity_regularizer is for layers that are"]),
        (lambda x: p.ColumnDense(8, kernel_regularizer="orthogonal_regularizer")(x), ["take L1, L2 or L1L2"]),
        (lambda x: p.ColumnDense(8, kernel_constraint=keras.constraints.MaxNorm(axis=1))(x), ["along another axis"]),
        (lambda x: p.RowDense(8, input_is_parallel=False, kernel_constraint="max_norm")(x), ["cuts axis 0"]),
        (
            lambda x: p.ColumnDense(4, kernel_initializer=keras.initializers.Constant(np.ones((3, 4))), name="wide")(x),
            ["'wide' (ColumnDense): the initializer of kernel, Constant, gives nothing of the shape [8, 4]", "[3,4]"],
        ),
        (
            lambda x: p.ColumnDense(4, bias_initializer=keras.initializers.Constant(np.ones((2, 4))))(x),
            ["the initializer of bias, Constant, gives the shape [2, 4], but bias has [4]"],
        ),
        (lambda x: p.ColumnDense(8, lora_rank=2)(x), ["lora_rank is for layers that are whole"]),
    ],
)
def test_what_cannot_be_divided_is_refused_by_name(make, said):
    if "the initializer" not in said[0]:
        keras.Model(x := keras.Input((8,)), make(x))  # one rank can
    with placed(Mesh(1, 4, 1)), pytest.raises(UserError) as refused:
        make(keras.Input((8,)))
    for text in said:
        assert text in str(refused.value)


def checked(make: Callable[[Any], Any], ranks: int = 2, own_step: bool = False, **options: Any) -> None:
    with placed(Mesh(1, ranks, 0) if ranks > 1 else None):
        x = keras.Input((8,))
        check_layers(keras.Model(x, make(x)), RunConfig("unused", **options), ranks, own_step)


def test_layers_that_get_a_part_of_what_they_need_whole_are_refused():
    def column(x, **options):
        return p.ColumnDense(8, name="column", **options)(x)

    for make in (
        lambda x: p.RowDense(8)(keras.ops.relu(p.Dropout(0.1)(column(x)))),
        lambda x: p.Dropout(0.0)(p.RowDense(8, activity_regularizer="l2")(L.Dropout(0.0)(column(x)))),
        lambda x: column(x, gather_output=True, activity_regularizer="l2"),
        lambda x: L.Dense(8)(L.Dropout(0.1)(column(x, gather_output=True))),
        lambda x: p.RowDense(8, input_is_parallel=False)(L.Dense(8)(x)),
        lambda x: p.RowDense(4)(column(x) + p.ColumnDense(8)(x)),
        lambda x: p.RowDense(4)(L.Multiply()([column(x, activation="silu"), 2.0 * p.ColumnDense(8)(x)])),
        lambda x: p.RowDense(4)(L.Activation(lambda y: keras.ops.relu(y) ** 2)(L.LeakyReLU()(column(x)))),
        lambda x: p.RowDense(8)(keras.Sequential([L.Input((8,)), p.ColumnDense(8), L.ReLU()])(x)),
        lambda x: p.RowDense(8)(L.Add()(keras.Model(x, [column(x), p.ColumnDense(8)(x)])(x))),
        lambda x: L.TimeDistributed(p.RowDense(8))(L.TimeDistributed(p.ColumnDense(8))(x[:, None])),
    ):
        checked(make)
    for make, said in (
        (lambda x: L.Dense(8, name="next")(column(x)), "layer 'next' (Dense): what ColumnDense 'column' gives"),
        (lambda x: p.RowDense(8)(L.Dropout(0.1)(column(x))), "take ht.parallel.Dropout"),
        (lambda x: p.RowDense(8)(L.GaussianNoise(0.1)(column(x))), "draw the same random numbers; set gather_output"),
        (
            lambda x: p.Dropout(0.1, name="out")(p.RowDense(8)(column(x))),
            "'out' (ht.parallel.Dropout): its input is",
        ),
        (lambda x: p.RowDense(8)(column(p.Dropout(0.1)(x))), "take keras.layers.Dropout"),
        (lambda x: p.RowDense(8)(column(L.TimeDistributed(p.Dropout(0.1))(x[:, None]))), "take keras.layers.Dropout"),
        *(
            (lambda x, make=make: p.RowDense(8)(make("l2")(column(x))), "activity_regularizer would count this rank's")
            for make in (
                lambda l2: L.ReLU(activity_regularizer=l2),
                lambda l2: L.Activation("relu", activity_regularizer=l2),
                lambda l2: L.Activation(L.ReLU(activity_regularizer=l2)),
                lambda l2: p.Dropout(0.1, activity_regularizer=l2),
                lambda l2: p.Dropout(0.0, activity_regularizer=l2),
            )
        ),
        (
            lambda x: p.RowDense(8)(p.ColumnDense(8, L.ReLU(activity_regularizer="l2"))(x)),
            "activity_regularizer would count this rank's",
        ),
        (lambda x: p.RowDense(8)(L.LayerNormalization()(column(x))), "set gather_output=True there"),
        (lambda x: p.RowDense(8)(x), "input_is_parallel=False"),
        (lambda x: p.RowDense(8, input_is_parallel=False)(column(x)), "leave it out"),
        (lambda x: p.ColumnDense(8)(column(x)), "needs it whole"),
        (lambda x: column(x), "is an output of the model"),
        (
            lambda x: p.RowDense(4)(keras.ops.split(column(x), 2, axis=-1)[0]),
            "(Split): what ColumnDense 'column' gives",
        ),
        (lambda x: p.RowDense(4)(column(x)[:, :2]), "take two ColumnDense, one for a gate"),
        (lambda x: p.RowDense(4)(L.Flatten(name="flat")(column(x))), "layer 'flat' (Flatten): what ColumnDense"),
        (lambda x: p.RowDense(4)(L.Concatenate()([column(x), p.ColumnDense(8)(x)])), "may look at several numbers"),
        (lambda x: p.RowDense(4)(L.Softmax()(column(x))), "(Softmax)"),
        (lambda x: p.RowDense(4)(L.Activation("softmax")(column(x))), "(Activation)"),
        (lambda x: p.RowDense(4)(keras.ops.softmax(column(x))), "(Softmax): what ColumnDense 'column'"),
        (lambda x: p.RowDense(4)(L.UnitNormalization()(column(x))), "(UnitNormalization)"),
        (lambda x: p.RowDense(4)(L.LayerNormalization(center=False, scale=False)(column(x))), "(LayerNormalization)"),
        (lambda x: p.RowDense(4)(L.Reshape((2, 2))(column(x))), "(Reshape)"),
        (lambda x: p.RowDense(4)(L.Lambda(lambda y: y)(column(x))), "(Lambda)"),
        (lambda x: p.RowDense(4)(column(x) + L.Dense(4)(x)), "what it is combined with is whole"),
        (lambda x: p.RowDense(4)(column(x) * np.arange(4.0, dtype="float32")), "what it is combined with is whole"),
        (lambda x: p.RowDense(4)(column(x) * p.ColumnDense(2)(x)), "cut to other widths"),
        (lambda x: L.Dense(8)(keras.Sequential([L.Input((8,)), p.ColumnDense(8)])(x)), "(Dense): what ColumnDense"),
        (lambda x: L.TimeDistributed(L.Dense(8))(L.TimeDistributed(p.ColumnDense(8))(x[:, None])), "(Dense): what"),
        (lambda x: p.RowDense(4)(L.SpectralNormalization(p.ColumnDense(8))(x)), "looks at the weights of"),
        (lambda x: p.RowDense(4)(column(x, activation=keras.ops.softmax)), "activation softmax looks at all units"),
        (lambda x: p.RowDense(4)(column(x, activation=lambda y: y / keras.ops.sum(y))), "looks at all units"),
    ):
        with pytest.raises(UserError) as refused:
            checked(make)
        assert said in str(refused.value), refused.value


def test_a_strategy_or_a_step_that_passes_by_divided_layers_is_refused():
    with pytest.raises(UserError, match=r"ht.parallel.ColumnDense\): is for strategy: sync"):
        checked(lambda x: p.ColumnDense(8)(x), ranks=1, strategy="async")
    with pytest.raises(UserError, match="has a train_step of its own"):
        checked(lambda x: p.ColumnDense(8, gather_output=True)(x), own_step=True)
    checked(lambda x: p.ColumnDense(8)(x), ranks=1, own_step=True)
    checked(lambda x: L.Dense(8)(x), ranks=1, own_step=True)


def test_a_mesh_of_a_model_without_a_layer_that_it_divides_is_refused():
    for make in (
        lambda x: L.Dense(8)(x),
        lambda x: p.Dropout(0.1)(L.Dense(8)(x)),
        lambda x: p.ShardedEmbedding(9, 2)(keras.ops.cast(x, "int32")),
    ):
        with pytest.raises(UserError, match=r"run\.mesh: model: 2: the model has no layer that a mesh divides: the 2"):
            checked(make)
        checked(make, ranks=1)
    whole = model_of(lambda x: p.RowDense(8)(p.ColumnDense(8)(x)), (4,))  # before the job knows of it
    with pytest.raises(UserError, match=r"make layers of ht\.parallel .* in its function"):
        check_layers(whole, RunConfig("unused"), 2, own_step=False)


def test_a_divided_model_is_not_called_by_itself():
    with placed(Mesh(1, 2, 0)):
        model = model_of(lambda x: p.RowDense(8)(p.ColumnDense(8)(x)), (4,))
        assert model(np.zeros((1, 4))).shape == (1, 8)  # as it is tried out
    with pytest.raises(UserError, match="called outside of a step"):
        model(np.zeros((1, 4)))


def test_ids_outside_a_table_are_counted_and_named():
    layer = p.Embedding(5, 2, name="words")
    for call, kind in ((layer, UserError), (tf.function(layer), tf.errors.InvalidArgumentError)):
        with pytest.raises(kind) as refused:
            call(tf.constant([[0, 5], [-1, 4]]))
        assert "words (Embedding): 2 of 4 ids are outside its table, which has the rows 0 to 4: [5 -1]" in str(
            refused.value
        )


def test_ids_are_whole_numbers_of_any_size_and_rows_of_any_length():
    for layer in (p.Embedding(5, 2, name="words"), p.ShardedEmbedding(5, 2, name="words")):
        kind = type(layer).__name__
        with pytest.raises(UserError, match=rf"words \({kind}\): 1 of 1 ids are outside its table"):
            layer(tf.constant([2**32 + 3], tf.uint64))
        for call, error in ((layer, UserError), (tf.function(layer), tf.errors.InvalidArgumentError)):
            with pytest.raises(error, match=r"1 of 2 ids are outside its table, .*: \[18446744073709551615\]"):
                call(tf.constant([4, 2**64 - 1], tf.uint64))
        for floats in (tf.constant([float("nan")]), keras.Input((3,))):
            with pytest.raises(UserError, match=rf"words \({kind}\) got ids of float32; give it whole numbers"):
                layer(floats)
        rows = layer(tf.ragged.constant([[1, 2], [], [4]]))
        np.testing.assert_array_equal(rows.flat_values, layer(tf.constant([1, 2, 4])))
        assert rows.row_lengths().numpy().tolist() == [2, 0, 1]
        compiled = tf.function(layer, jit_compile=True)
        np.testing.assert_array_equal(compiled(tf.constant([1, 4])), layer(tf.constant([1, 4])))


def test_arguments_that_a_layer_does_not_have_are_named():
    for make, said in (
        (
            lambda: p.ColumnDense(8, gather=True),
            "ColumnDense: gather: unknown argument; did you mean `gather_output`? allowed: units",
        ),
        (lambda: p.RowDense(8, biass_initializer="ones"), "did you mean `bias_initializer`?"),
        (
            lambda: p.Embedding(8, 4, mask_zeros=True),
            "Embedding: mask_zeros: unknown argument; did you mean `mask_zero`?",
        ),
        (lambda: p.MultiHeadAttention(2, 4, dropuot=0.1), "did you mean `dropout`?"),
        (lambda: p.Dropout(0.5, sed=3), "Dropout: sed: unknown argument; did you mean `seed`?"),
        (lambda: p.ColumnDense(8, trainabel=False), "did you mean `trainable`?"),
        (lambda: p.ColumnDense(-1), "ColumnDense: "),
    ):
        with pytest.raises(UserError) as refused:
            make()
        assert said in str(refused.value), refused.value


def test_a_program_on_several_ranks_is_warned_once_that_a_layer_is_whole(monkeypatch, caplog):
    monkeypatch.setattr(building, "_warned", [])
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")

    def build(params):
        model = model_of(lambda x: p.RowDense(8)(p.ColumnDense(8)(x)), (4,))
        model.compile("sgd", "mse")
        return model

    rows = tf.data.Dataset.from_tensors((np.zeros((2, 4), np.float32), np.zeros((2, 8), np.float32)))
    job = Estimator(build, RunConfig("unused"))
    build_model(job, rows)
    with placed(Mesh(2, 2, 0)):
        check_parts(build_model(job, rows), rows, lambda: build_model(job, rows, traced))
        build(None)
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1")
    build(None)
    assert not caplog.messages
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0")
    for _ in range(2):
        build(None)
    (said,) = caplog.messages
    assert "(ht.parallel.RowDense) is whole on each of the 4 ranks" in said
    assert "with run.mesh" in said
    building._warned.clear()
    p.ShardedEmbedding(8, 2, name="words")
    assert "layer 'words' (ht.parallel.ShardedEmbedding) is whole on each of the 4 ranks" in caplog.messages[-1]


def test_flags_are_true_or_false():
    for kind, name in ((p.ColumnDense, "gather_output"), (p.RowDense, "input_is_parallel")):
        with pytest.raises(UserError, match=rf"{kind.__name__}: {name}: 'yes' is not allowed; allowed: True or False"):
            kind(4, **{name: "yes"})


def test_a_mask_with_an_axis_of_heads_is_cut_as_they_are():
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    mask = np.arange(2 * 4 * 3 * 3).reshape(2, 4, 3, 3) % 3 > 0
    keras.utils.set_random_seed(4)
    whole = p.MultiHeadAttention(4, 3, use_bias=False)
    wanted, found = whole(x, x, attention_mask=mask), 0
    np.testing.assert_array_equal(whole(x, x, attention_mask=mask[:, :1]), whole(x, x, attention_mask=mask[:, 0]))
    for rank in range(2):
        with placed(Mesh(1, 2, rank)):
            keras.utils.set_random_seed(4)
            part = p.MultiHeadAttention(4, 3, use_bias=False)
            found += part(x, x, attention_mask=mask)  # what would be added up over ranks
            assert part(x, x, attention_mask=mask[:, :1]).shape == (2, 3, 4)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_mesh_says_what_would_fit():
    MeshOptions(model=2).check_ranks(6)
    MeshOptions(data=3, model=2).check_ranks(6)
    with pytest.raises(UserError) as refused:
        MeshOptions(data=4, model=2).check_ranks(6)
    assert "data: 4, model: 2 does not go with 6 ranks; start 8 ranks" in str(refused.value)
    assert "{data: 6, model: 1}, {data: 3, model: 2}, {data: 2, model: 3}, {data: 1, model: 6}" in str(refused.value)
    with pytest.raises(UserError, match="model: 4 does not go with 6 ranks; start 8 ranks"):
        MeshOptions(model=4).check_ranks(6)


def test_what_a_mesh_does_not_go_with_is_refused():
    assert RunConfig("unused", mesh={"data": 2, "model": 3}).mesh == MeshOptions(data=2, model=3)
    for options, said in (
        ({"strategy": "async"}, "`mesh` is for `strategy: sync`"),
        ({"chief": "dedicated"}, "`chief: train`"),
    ):
        with pytest.raises(UserError, match=said):
            RunConfig("unused", mesh={"model": 2}, **options)
    with pytest.raises(UserError, match=r"mesh.model: 0 is not allowed"):
        RunConfig("unused", mesh={"model": 0})
    with pytest.raises(UserError, match=r"mesh.modle: unknown key; did you mean `model`"):
        RunConfig("unused", mesh={"modle": 2})
