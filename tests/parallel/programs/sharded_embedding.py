"""Trains models with ShardedEmbedding on any number of ranks up to 4, as their dense counterparts on one.

argv: what carries them, horovod or mpi; and `light` for what is not checked again with another carrier.
"""

import resource
import sys
from typing import Any

import numpy as np

from hpc_train.distributed.devices import set_up_tensorflow
from hpc_train.distributed.startup import join_world

world = join_world()
set_up_tensorflow(world)

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from hpc_train.distributed.carrier import collectives_by  # noqa: E402
from hpc_train.distributed.exchange import exchanging  # noqa: E402
from hpc_train.distributed.groups import Groups  # noqa: E402
from hpc_train.distributed.mesh import Mesh  # noqa: E402
from hpc_train.distributed.placement import placed  # noqa: E402
from hpc_train.distributed.rows import each_once  # noqa: E402
from hpc_train.distributed.share import averaged_over, share_of  # noqa: E402
from hpc_train.parallel import ShardedEmbedding  # noqa: E402

BY, LIGHT = sys.argv[1], "light" in sys.argv
STEPS = 8
keras.config.set_floatx("float64")
flat = Mesh(world.size, 1, world.rank)
grid = Mesh(2, 2, world.rank)
top = collectives_by(BY, world, grid.groups if world.size == 4 else ())


def model_of(sharded: bool) -> keras.Model:
    """Tables of more and of fewer rows than ranks, one looked up twice, one with padding."""

    def table(rows: int, width: int, **kwargs: Any) -> keras.layers.Layer:
        return (ShardedEmbedding if sharded else keras.layers.Embedding)(rows, width, **kwargs)

    words, one, pair = (keras.Input(shape, dtype="int32") for shape in ((5,), (), (2,)))
    sequence = table(11, 3, mask_zero=True, name="words")(words)
    items, few = table(7, 4, name="items"), table(2, 3, name="few")
    parts = [
        keras.layers.GlobalAveragePooling1D()(sequence),
        items(one),
        keras.layers.Flatten()(items(pair)),
        few(keras.ops.cast(one < 2, "int64")),
    ]
    dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=1), name="dense")
    return keras.Model([words, one, pair], dense(keras.layers.Concatenate()(parts)))


def batch_of(data_index: int, step: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Of other rows on each rank, with ids that occur more than once on a rank and on several."""
    random = np.random.default_rng([step, data_index])
    rows = 2 + 3 * data_index
    ids = [
        random.integers(0, high, (rows, *shape)) for high, shape in ((11, (5,)), (4 + 3 * (step > 3), ()), (7, (2,)))
    ]
    return ids, random.normal(size=(rows, 1))


def gradients_of(model: keras.Model, batch: Any) -> tuple[tf.Tensor, list[Any]]:
    given, target = batch
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(given, training=True) - target))
    return loss, tape.gradient(loss, model.trainable_variables)


def check_training(mesh: Mesh, kind: str) -> None:
    """Loss, gradients and weights of a model in parts are those of the dense one."""
    groups = Groups.of(top, mesh)
    with placed(mesh):
        keras.utils.set_random_seed(5)
        own = model_of(sharded=True)
    keras.utils.set_random_seed(5)
    whole = model_of(sharded=True)
    dense = model_of(sharded=False)
    dense.set_weights(whole.get_weights())
    variables = own.trainable_variables
    for variable, full in zip(variables, whole.trainable_variables, strict=True):
        share = share_of(variable)
        expected = full.numpy() if share is None else share.of(full.numpy())
        assert np.array_equal(variable.numpy(), expected), f"{variable.path}: first values"
        assert (averaged_over(variable) == "alone") == (variable.path.endswith("embeddings") and mesh.data > 1)
    optimizers = [getattr(keras.optimizers, kind)(0.05) for _ in range(2)]

    @tf.function(reduce_retracing=True, autograph=False)
    def step(batch: Any) -> tuple[Any, list[Any]]:
        with exchanging(groups):
            loss, gradients = gradients_of(own, batch)
        tables = [g for g, v in zip(gradients, variables, strict=True) if v.path.endswith("embeddings")]
        assert all(isinstance(g, tf.IndexedSlices) for g in tables), "gradients are rows"
        averaged = [
            each_once(g)
            if averaged_over(v) == "alone"
            else groups.data.allreduce([tf.convert_to_tensor(g)], "mean", False)[0]
            for g, v in zip(gradients, variables, strict=True)
        ]
        loss = groups.data.allreduce([loss], "mean", gradient=False)[0]
        given = averaged if kind == "SGD" else [tf.convert_to_tensor(g) for g in averaged]
        optimizers[0].apply(given, variables)
        return loss, [tf.convert_to_tensor(g) for g in averaged]

    def compare(found: list[np.ndarray], expected: list[np.ndarray], what: str) -> None:
        for array, full, variable in zip(found, expected, variables, strict=True):
            share = share_of(variable)
            part = full if share is None else share.of(full)
            np.testing.assert_allclose(
                array, part, rtol=1e-10, atol=1e-13, err_msg=f"{kind} {mesh} {variable.path} {what}"
            )

    for number in range(STEPS):
        batch = tf.nest.map_structure(tf.constant, batch_of(mesh.data_index, number))
        loss, gradients = step(batch)
        all_of = [gradients_of(dense, batch_of(index, number)) for index in range(mesh.data)]
        np.testing.assert_allclose(loss, np.mean([loss for loss, _ in all_of]), rtol=1e-10)
        means = [
            sum(map(tf.convert_to_tensor, those)) / mesh.data for those in zip(*(g for _, g in all_of), strict=True)
        ]
        compare([g.numpy() for g in gradients], [m.numpy() for m in means], f"gradient {number}")
        optimizers[1].apply(means, dense.trainable_variables)
    compare([v.numpy() for v in variables], dense.get_weights(), "in the end")


def check_memory(rows: int, width: int) -> None:
    """A rank needs little more memory than for its quarter of a table: built, filled, and updated."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with placed(flat):
        table = ShardedEmbedding(rows, width, dtype="float32")
        table.build()
    groups, optimizer = Groups.of(top, flat), keras.optimizers.SGD(0.1)

    @tf.function(autograph=False)
    def step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape, exchanging(groups):
            loss = tf.reduce_sum(table(ids) ** 2)
        rows = tape.gradient(loss, table.embeddings)
        optimizer.apply([rows], [table.embeddings])

        tf.debugging.assert_equal(tf.size(tf.unique(rows.indices)[0]), tf.size(rows.indices), "each row once")

    for number in range(5):
        step(tf.random.stateless_uniform([512], [number, world.rank], 0, rows, tf.int64))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    whole = rows * width * 4
    assert 0.2 * whole < grown < 0.4 * whole, f"{grown / whole:.2f} of the table"


check_training(flat, "SGD")
if not LIGHT:
    check_training(flat, "Adam")
if world.size == 4 and not LIGHT:
    check_training(grid, "SGD")
    check_memory(1_200_000, 64)
world.wait_asleep()
print(f"rank {world.rank} of {world.size} is fine")
