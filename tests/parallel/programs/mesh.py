"""Compares divided models with whole ones, on as many ranks as there are; a program: mesh.py CARRIER."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpc_train.distributed.carrier import collectives_by
from hpc_train.distributed.exchange import exchanging
from hpc_train.distributed.groups import Groups
from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.placement import placed
from hpc_train.distributed.share import averaged_over, share_of
from hpc_train.distributed.startup import join_world
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.lazy import keras, tf

STEPS, RATE, CLIP, WORDS, LENGTH, WIDTH = 8, 0.05, 0.5, 13, 6, 8
NEAR = 1e-10


@dataclass(frozen=True)
class Kinds:
    """The layers that a model is made of."""

    column: Any
    row: Any
    attention: Any
    embedding: Any
    dropout: Any


def parallel() -> Kinds:
    import hpc_train.parallel as p

    return Kinds(p.ColumnDense, p.RowDense, p.MultiHeadAttention, p.Embedding, p.Dropout)


def stock() -> Kinds:
    layers = keras.layers

    def column(*args: Any, gather_output: bool = False, **kwargs: Any) -> Any:
        return layers.Dense(*args, **kwargs)

    def row(*args: Any, input_is_parallel: bool = True, **kwargs: Any) -> Any:
        return layers.Dense(*args, **kwargs)

    return Kinds(column, row, layers.MultiHeadAttention, layers.Embedding, layers.Dropout)


def transformer(kinds: Kinds, dropout: float = 0.0) -> Any:
    """A block with all kinds of divided layers."""
    layers, l2 = keras.layers, keras.regularizers.L2(1e-2)
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = kinds.embedding(WORDS, WIDTH, embeddings_regularizer=l2)(tokens)
    x = layers.Dropout(dropout)(x)
    y = layers.LayerNormalization()(x)
    x = x + kinds.attention(4, 3, dropout=dropout, kernel_regularizer=l2)(y, y, use_causal_mask=True)
    y = layers.LayerNormalization()(x)
    y = kinds.column(16, "gelu", kernel_regularizer=l2, kernel_constraint=keras.constraints.MaxNorm(0.9, axis=0))(y)
    y = kinds.dropout(dropout)(y)
    x = x + kinds.row(WIDTH, kernel_regularizer=keras.regularizers.L1L2(1e-3, 1e-3))(y)
    outputs = kinds.column(WORDS - 1, gather_output=True)(layers.LayerNormalization()(x))
    return keras.Model(tokens, outputs)


def mlp(kinds: Kinds) -> Any:
    """Batch norm, of all rows, around divided layers, of which one takes what is whole."""
    layers = keras.layers
    numbers = keras.Input((5,))
    x = layers.BatchNormalization(synchronized=True)(layers.Dense(8)(numbers))
    x = kinds.row(8, "relu")(kinds.column(16, "relu", kernel_constraint="non_neg")(x))
    x = layers.BatchNormalization(synchronized=True)(kinds.row(8, "tanh", input_is_parallel=False)(x))
    return keras.Model(numbers, layers.Dense(WORDS - 1)(x))


def built(make: Callable[..., Any], kinds: Kinds, mesh: Mesh | None, **options: Any) -> Any:
    keras.utils.set_random_seed(7)
    with placed(mesh):
        return make(kinds, **options)


def batches(model: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """STEPS global batches of 8 rows, whose loss counts all rows alike."""
    draw = np.random.default_rng(3)
    of_words = model.inputs[0].dtype == "int32"
    found = []
    for _ in range(STEPS):
        x = draw.integers(0, WORDS, (8, LENGTH)) if of_words else draw.normal(size=(8, 5))
        found.append((x, draw.integers(0, WORDS - 1, (8, LENGTH) if of_words else 8)))
    return found


def loss_of(model: Any, x: Any, y: Any) -> Any:
    logits = model(x, training=True)
    rows = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
    return tf.add_n([tf.reduce_mean(rows), *model.losses])


def trained(model: Any, groups: Groups | None) -> list[tuple[float, list[np.ndarray]]]:
    """Loss and gradients of each step, which a small step of SGD applies: clipped by the norm of all of them."""
    variables = model.trainable_variables

    def averaged(gradients: list[Any]) -> list[Any]:
        if groups is None:
            return gradients
        found = list(gradients)
        for over, collectives in (("world", groups.every), ("data", groups.data)):
            places = [k for k, variable in enumerate(variables) if averaged_over(variable) == over]
            means = collectives.allreduce([found[k] for k in places], "mean", gradient=False)
            for place, mean in zip(places, means, strict=True):
                found[place] = mean
        return found

    @tf.function(autograph=False)
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
        raw = tape.gradient(loss, variables)
        gradients = averaged([tf.convert_to_tensor(g) for g in raw])
        squares = [tf.reduce_sum(g * g) for g in gradients]
        parts = [s for s, v in zip(squares, variables, strict=True) if share_of(v) is not None]
        norm = tf.add_n([s for s, v in zip(squares, variables, strict=True) if share_of(v) is None])
        if parts:
            assert groups is not None
            norm += groups.model.allreduce([tf.add_n(parts)], "sum")[0]
        scale = tf.minimum(tf.ones_like(norm), CLIP / tf.sqrt(norm))
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(RATE * scale * gradient)
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))
        return loss if groups is None else groups.every.allreduce([loss], "mean")[0], gradients

    found = []
    for x, y in batches(model):
        if groups is None:
            loss, gradients = step(x, y)
        else:
            rows = 8 // groups.mesh.data
            own = slice(groups.mesh.data_index * rows, (groups.mesh.data_index + 1) * rows)
            with exchanging(groups):
                loss, gradients = step(x[own], y[own])
        found.append((float(loss), [g.numpy() for g in gradients]))
    return found


def part(variable: Any, whole: np.ndarray) -> np.ndarray:
    share = share_of(variable)
    return whole if share is None else share.of(whole)


def near(found: Any, wanted: Any, what: str) -> None:
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape, (what, found.shape, wanted.shape)
    error = np.max(np.abs(found - wanted), initial=0.0) / max(1e-6, np.max(np.abs(wanted), initial=0.0))
    assert error < NEAR, f"{what}: {error}"


def same(groups: Groups, value: np.ndarray) -> bool:
    """Whether the ranks of the model group have the same numbers, to the bit; the same answer on all of them."""
    if groups.model.ranks == 1:
        return True
    bits = np.ascontiguousarray(value).view(np.int32).astype(np.float64).ravel()

    def summed(own: np.ndarray) -> np.ndarray:
        call = tf.function(lambda given: groups.model.allreduce([given], "sum")[0], autograph=False)
        return np.asarray(call(tf.constant(own)).numpy())

    of_first = summed(bits if groups.model.rank == 0 else np.zeros_like(bits))
    return float(summed(np.array([float(np.any(of_first != bits))]))[0]) == 0.0


def compare(make: Callable[..., Any], groups: Groups, known: dict[str, Any]) -> None:
    """A divided model against a whole one, which `known` has from the first time on."""
    mesh, what = groups.mesh, make.__name__
    whole, divided = built(make, parallel(), None), built(make, parallel(), mesh)
    ordinary = built(make, stock(), None)
    assert [v.shape for v in ordinary.variables] == [v.shape for v in whole.variables]
    for stocked, kept in zip(ordinary.variables, whole.variables, strict=True):
        if "random" not in kept.path:
            stocked.assign(kept.value)
    x = batches(whole)[0][0]
    near(whole(x), ordinary(x), f"{what}: as layers of Keras")
    for own, all_of_it in zip(divided.variables, whole.variables, strict=True):
        assert np.array_equal(own.numpy(), part(own, all_of_it.numpy())), f"{what}: {own.path} begins otherwise"
        assert mesh.model == 1 or (share_of(own) is None) == (own.shape == all_of_it.shape), own.path
    cut = sum(share_of(v) is not None for v in divided.variables)
    assert cut == (0 if mesh.model == 1 else 13 if make is transformer else 4), cut
    if what not in known:
        known[what] = trained(whole, None), [v.numpy() for v in whole.variables]
    (wanted, in_the_end), found = known[what], trained(divided, groups)
    for number, ((loss, gradients), (own_loss, own_gradients)) in enumerate(zip(wanted, found, strict=True)):
        near(own_loss, loss, f"{what}: loss of step {number}")
        for variable, g, w in zip(divided.trainable_variables, own_gradients, gradients, strict=True):
            if np.max(np.abs(w)) > 1e-12:
                near(g, part(variable, w), f"{what}: gradient of {variable.path} in step {number}")
    for own, all_of_it in zip(divided.variables, in_the_end, strict=True):
        near(own.numpy(), part(own, all_of_it), f"{what}: {own.path} in the end")
        if share_of(own) is None:
            assert same(groups, own.numpy()), f"{what}: {own.path} differs within the model group"
    assert not whole.layers[-1].get_config().get("mesh")


def drop_out(groups: Groups) -> None:
    """What is whole has one mask on all ranks of a group; parts have masks of their own."""
    model = built(transformer, parallel(), groups.mesh, dropout=0.5)
    x = batches(model)[0][0]
    inner = keras.Model(model.inputs, [layer.output for layer in model.layers if "dropout" in layer.name])
    call = tf.function(lambda x: [model(x, training=True), *inner(x, training=True)], autograph=False)
    with exchanging(groups):
        outputs, of_all, of_part = (found.numpy() for found in call(x))
    assert same(groups, outputs) and same(groups, of_all)
    if groups.model.ranks > 1:
        assert not same(groups, (of_part == 0).astype(np.float64)), "masks of parts are the same"
    generators = [v for v in model.variables if "seed_generator" in v.path]
    assert len(generators) == 3 and all(same(groups, v.numpy()) for v in generators)


def refused(groups: Groups) -> None:
    model = built(transformer, parallel(), groups.mesh)
    if groups.mesh.model > 1:
        try:
            model(np.zeros((1, LENGTH), np.int32))
        except UserError as error:
            assert "outside of a step" in str(error)
        else:
            raise AssertionError("a divided model was called by itself")
    ids = np.array([[0, 1, 2, 3, -1, WORDS]], np.int32)
    try:
        with exchanging(groups):
            tf.function(lambda x: model(x), autograph=False)(ids)
    except tf.errors.InvalidArgumentError as error:
        assert "2 of 6 ids are outside its table, which has the rows 0 to 12: [-1 13]" in str(error), error
    else:
        raise AssertionError("ids outside the table were taken")


def main(carrier: Any) -> None:
    world: World = join_world("multiple")
    keras.config.set_dtype_policy("float64")
    keras.config.set_floatx("float64")
    ranks = world.size
    meshes = [Mesh(ranks // m, m, world.rank) for m in (1, 2, 4) if ranks % m == 0]
    declared = sorted({group for mesh in meshes for group in mesh.groups})
    collectives, known = collectives_by(carrier, world, declared), dict[str, Any]()
    for mesh in meshes:
        groups = Groups.of(collectives, mesh)
        compare(transformer, groups, known)
        compare(mlp, groups, known)
        drop_out(groups)
        refused(groups)
        print(f"{mesh.data}x{mesh.model} is fine", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
