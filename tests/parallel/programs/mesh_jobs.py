"""Jobs on ranks, whole and with meshes, that have to come to the same; a program: mesh_jobs.py FOLDER PART.

PART: whole (one rank), resumed (four, after that), begun (two).
"""

import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import hpc_train as ht
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention
from hpc_train.distributed.startup import join_world
from hpc_train.export.exporters import KERAS_FILE

FOLDER, ROWS, WORDS, LENGTH = Path(sys.argv[1]), 8, 13, 6
NEAR = {"rtol": 1e-9, "atol": 1e-12}
keras.config.set_dtype_policy("float64")
keras.config.set_floatx("float64")


def build_model(optimizer=None):
    p, layers = ht.parallel, keras.layers
    tokens = keras.Input((LENGTH,), dtype="int32", name="tokens")
    x = p.Embedding(WORDS, 8)(tokens)
    x = x + p.MultiHeadAttention(4, 3, kernel_regularizer="l2")(x, x, use_causal_mask=True)
    x = x + p.RowDense(8)(p.ColumnDense(16, "gelu")(layers.LayerNormalization()(x)))
    x = layers.BatchNormalization(synchronized=True)(x)
    model = keras.Model(tokens, p.ColumnDense(16, gather_output=True)(x))
    model.compile(
        optimizer or keras.optimizers.Adam(0.01, global_clipnorm=0.3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["sparse_categorical_accuracy"],
    )
    return model


def batches(context):
    """Global batches of ROWS rows, of which each part has as many."""
    own = ROWS // context.num_input_pipelines
    ids = np.random.default_rng(1).integers(0, WORDS, (6 * ROWS, LENGTH + 1)).reshape(6, ROWS, LENGTH + 1)
    ids = ids[:, own * context.input_pipeline_id :][:, :own].reshape(-1, LENGTH + 1)
    return tf.data.Dataset.from_tensor_slices((ids[:, :-1], ids[:, 1:])).batch(own, drop_remainder=True)


class Block(keras.layers.Layer):
    """Of which nobody knows that one of its layers gets a part of what it needs whole."""

    def __init__(self):
        super().__init__()
        self.a, self.b = ht.parallel.ColumnDense(8, name="a"), keras.layers.Dense(16, name="b")

    def call(self, x):
        return self.b(self.a(x))


def build_mixed(optimizer=None):
    tokens = keras.Input((LENGTH,), dtype="int32", name="tokens")
    model = keras.Model(tokens, Block()(ht.parallel.Embedding(WORDS, 8)(tokens)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def train(
    name, steps, warm=None, source=batches, optimizer=None, model=build_model, evaluated=batches, exports=(), **options
):
    """The last metrics, and the exports."""
    options = {"tf_random_seed": 5, **options}
    config = ht.RunConfig(FOLDER / name, save_checkpoints_steps=3, allreduce="mpi", report=False, **options)
    return ht.train_and_evaluate(
        ht.Estimator(lambda: model(optimizer), config, warm_start_from=warm),
        ht.TrainSpec(source, max_steps=steps),
        ht.EvalSpec(evaluated, steps=None, throttle_secs=0, exporters=exports),
    )


def state(name, step):
    snapshot = CheckpointManager(FOLDER / name / "checkpoints", Retention()).load(step)
    return {**snapshot.model, **snapshot.optimizer}


def same(found, wanted, near=NEAR):
    for (name, array), other in zip(found.items(), wanted.values(), strict=True):
        assert array.shape == other.shape, name
        np.testing.assert_allclose(array, other, err_msg=name, **near)


def of_the_rank(context):
    return batches(context).map(lambda x, y: (x + RANK, y))


def whole():
    """What jobs with meshes are to come to."""
    wanted, _ = train("whole", 6)
    (FOLDER / "whole.json").write_text(json.dumps(wanted))


def resumed():
    """Jobs with meshes come to the same as a whole one, and go on with others."""
    wanted = json.loads((FOLDER / "whole.json").read_text())
    for name, options in {
        "2x2": {"mesh": {"data": 2, "model": 2}},
        "1x4": {"mesh": {"model": 4}},
        "zero": {"mesh": {"data": 2, "model": 2}, "shard_optimizer": True},
    }.items():
        if name != "zero":
            train(name, 3, **options)
            options = {} if name == "2x2" else {"mesh": {"data": 2, "model": 2}}  # goes on as another mesh
        metrics, exports = train(name, 6, exports=[ht.FinalExporter()], **options)
        for key, value in wanted.items():
            np.testing.assert_allclose(metrics[key], value, err_msg=f"{name} {key}", **NEAR)
        if ht.is_chief():
            same(state(name, 3), state("whole", 3))
            same(state(name, 6), state("whole", 6))
            exported = keras.models.load_model(exports[-1] / KERAS_FILE, compile=False)
            for variable, array in zip(exported.variables, state("whole", 6).values(), strict=False):
                np.testing.assert_allclose(variable.numpy(), array, **NEAR)
            served = tf.saved_model.load(str(exports[-1]))
            ids = np.arange(LENGTH)[None]
            (outputs,) = served.serve({"tokens": ids}).values()
            np.testing.assert_allclose(outputs, exported(ids), **NEAR)
            print(f"{name} is fine", flush=True)


def begun():
    """Warm starts, jobs without a seed, and what is refused."""
    train("whole", 1)
    for name, options in {"warm": {}, "warm in parts": {"mesh": {"model": 2}}}.items():
        train(name, 1, warm=FOLDER / "whole", **options)
    if ht.is_chief():
        same(state("warm in parts", 1), state("warm", 1))
        print("a warm start is fine", flush=True)
    train("unseeded", 3, mesh={"model": 2}, tf_random_seed=None, check_replicas_steps=1)
    for source, options, said in (
        (of_the_rank, {}, "input_fn gives rank 1 other rows than rank 0"),
        (batches, {"evaluated": of_the_rank}, "eval: input_fn gives rank 1 other rows than rank 0"),
        (batches, {"model": build_mixed}, "b/kernel' has the shape [4, 16] with run.mesh, but [8, 16] on one rank"),
        (batches, {"optimizer": keras.optimizers.Lamb(0.1)}, "ht.parallel: Lamb cannot be applied to a part"),
    ):
        try:
            train("refused", 1, source=source, mesh={"model": 2}, **options)
        except ht.UserError as error:
            assert said in str(error), error
        else:
            raise AssertionError(said)
        assert not (FOLDER / "refused").exists()
    if ht.is_chief():
        print("what is refused is fine", flush=True)
    one_sided()


def root(numbers):
    """Whose gradient at zero is not finite."""
    return keras.ops.sqrt(keras.ops.abs(numbers))


def one_finds_zero(shape, dtype=None):
    """A kernel of which one rank alone has what makes zeros of the first batch."""
    kernel = np.random.default_rng(3).normal(size=shape)
    kernel[:, 0] = np.eye(shape[0])[0]
    return keras.ops.convert_to_tensor(kernel, dtype)


def build_rooted(optimizer):
    half = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    policy, numbers = keras.DTypePolicy("mixed_float16" if half else "float64"), keras.Input((5,))
    x = ht.parallel.ColumnDense(16, root, kernel_initializer=one_finds_zero, dtype=policy)(numbers)
    x = keras.layers.Dense(1)(ht.parallel.RowDense(8, dtype=policy)(x))
    model = keras.Model(numbers, x)
    model.compile(optimizer, "mse", run_eagerly=half)
    return model


def numbers(context):
    own = ROWS // context.num_input_pipelines
    x, y = np.random.default_rng(1).normal(size=(2, 6, ROWS, 5))
    x[0, :, 0] = 0
    x, y = (array[:, own * context.input_pipeline_id :][:, :own].reshape(-1, 5) for array in (x, y[..., :5]))
    return tf.data.Dataset.from_tensor_slices((x, y[:, :1])).batch(own, drop_remainder=True)


def one_sided():
    """What one rank alone finds not finite, all leave out, go back from, or scale their loss by."""
    o = keras.optimizers
    for name, make, near, options in (
        ("skip", lambda: o.Adam(0.01, use_ema=True), NEAR, {"on_nan": "skip", "steps_in_flight": 2}),
        ("rollback", lambda: o.AdamW(0.01, weight_decay=0.1), NEAR, {"on_nan": "rollback"}),
        ("scale", lambda: o.LossScaleOptimizer(o.SGD(0.01), initial_scale=2.0**13), {"atol": 5e-2}, {}),
    ):
        given = {"source": numbers, "evaluated": numbers, "model": build_rooted, **options}
        train(f"{name} whole", 6, optimizer=make(), **given)
        train(name, 6, optimizer=make(), mesh={"model": 2}, shard_optimizer=True, **given)
        if ht.is_chief():
            found, wanted = state(name, 6), state(f"{name} whole", 6)
            same(found, wanted, near)
            scales = [array for path, array in found.items() if "dynamic_scale" in path]
            assert name != "scale" or scales == [2.0**12], scales
            print(f"{name} is fine", flush=True)


RANK = join_world().rank % 2
{"whole": whole, "resumed": resumed, "begun": begun}[sys.argv[2]]()
