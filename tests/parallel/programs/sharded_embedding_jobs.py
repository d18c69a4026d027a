"""Jobs on four ranks with a table in parts, against those on one rank with a whole one, which are run before.

A program: sharded_embedding_jobs.py FOLDER whole|parts.
"""

import errno
import io
import json
import logging
import sys
from pathlib import Path
from unittest.mock import patch

import keras
import numpy as np
import tensorflow as tf

import hpc_train as ht
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention
from hpc_train.export import table_shards, whole_model
from hpc_train.export.exporters import KERAS_FILE
from hpc_train.export.whole_model import WholeModel

FOLDER, WHOLE, ROWS, WORDS, LENGTH = Path(sys.argv[1]), sys.argv[2] == "whole", 8, 13, 6
NEAR = {"rtol": 1e-9, "atol": 1e-12}
keras.config.set_dtype_policy("float64")
keras.config.set_floatx("float64")
FIRST = keras.initializers.RandomNormal(seed=7)
TABLE = ht.parallel.ShardedEmbedding(WORDS, 4, FIRST)
TABLE.build()


class OwnStep(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def build_model(sharded, optimizer, kind):
    tokens = keras.Input((LENGTH,), dtype="int32", name="tokens")
    if sharded:
        table = ht.parallel.ShardedEmbedding(WORDS, 4, FIRST, name="words")
    else:
        first = keras.initializers.Constant(TABLE.embeddings.numpy())
        table = keras.layers.Embedding(WORDS, 4, first, name="words")
    x = keras.layers.Concatenate()([table(tokens), table((tokens + 1) % WORDS)])
    outputs = ht.parallel.RowDense(1, input_is_parallel=False, name="outputs")(keras.layers.Flatten()(x))
    model = kind(tokens, outputs)
    model.compile(keras.optimizers.deserialize(optimizer), "mse", metrics=["mae"])
    return model


def batches(context):
    """Global batches of ROWS rows, of which each part has as many."""
    own = ROWS // context.num_input_pipelines
    random = np.random.default_rng(1)
    ids = random.integers(0, WORDS, (6, ROWS, LENGTH))[:, own * context.input_pipeline_id :][:, :own]
    return tf.data.Dataset.from_tensor_slices((ids.reshape(-1, LENGTH), ids[..., 0].reshape(-1, 1) / WORDS)).batch(own)


def uneven(context):
    """Three batches, for the first three of four ranks."""
    if WHOLE:
        parts = [tf.distribute.InputContext(4, rank) for rank in range(3)]
        return batches(parts[0]).take(1).concatenate(batches(parts[1]).take(1)).concatenate(batches(parts[2]).take(1))
    return batches(context).take(1 if context.input_pipeline_id < 3 else 0)


def train(name, steps, optimizer, sharded=True, kind=keras.Model, evaluated=batches, tables=None, **options):
    """The last metrics, and the exports."""
    config = ht.RunConfig(
        FOLDER / name, save_checkpoints_steps=3, tf_random_seed=5, allreduce="mpi", report=False, **options
    )
    return ht.train_and_evaluate(
        ht.Estimator(lambda: build_model(sharded, keras.optimizers.serialize(optimizer), kind), config),
        ht.TrainSpec(batches, max_steps=steps),
        ht.EvalSpec(
            evaluated, steps=None, throttle_secs=0, exporters=[ht.FinalExporter(tables=tables)] if tables else ()
        ),
    )


def state(name, step):
    snapshot = CheckpointManager(FOLDER / name / "checkpoints", Retention()).load(step)
    return {**snapshot.model, **snapshot.optimizer}


def same(name, other, step):
    found, wanted = state(name, step), state(other, step)
    assert [a.shape for a in found.values()] == [a.shape for a in wanted.values()]
    for (key, array), expected in zip(found.items(), wanted.values(), strict=True):
        np.testing.assert_allclose(array, expected, err_msg=f"{name} {key}", **NEAR)


said = io.StringIO()
logging.getLogger("hpc_train").addHandler(logging.StreamHandler(said))

SGD, ADAM = keras.optimizers.SGD(0.1, global_clipnorm=0.5), keras.optimizers.Adam(0.01)
TWO = {"mesh": {"data": 2, "model": 2}}
if WHOLE:
    for name, optimizer, kind in (("sgd", SGD, keras.Model), ("adam", ADAM, keras.Model), ("own", ADAM, OwnStep)):
        found, _ = train(f"{name}-whole", 6, optimizer, sharded=False, kind=kind)
        (FOLDER / f"{name}.json").write_text(json.dumps(found))
    found, _ = train("uneven-whole", 3, SGD, sharded=False, evaluated=uneven)
    (FOLDER / "uneven.json").write_text(json.dumps(found))
    sys.exit()

for name, whole, optimizer, first, then, kind in (
    ("sgd", "sgd", SGD, {}, TWO, keras.Model),
    ("adam", "adam", ADAM, {"mesh": {"model": 4}}, {}, keras.Model),
    ("zero", "adam", ADAM, {"shard_optimizer": True}, TWO | {"shard_optimizer": True}, keras.Model),
    ("own", "own", ADAM, None, {}, OwnStep),
):
    if first is not None:
        train(name, 3, optimizer, kind=kind, **first)
    metrics, exports = train(name, 6, optimizer, kind=kind, tables="auto", **then)
    for key, value in json.loads((FOLDER / f"{whole}.json").read_text()).items():
        np.testing.assert_allclose(metrics[key], value, err_msg=f"{name} {key}", **NEAR)
    if ht.is_chief():
        same(name, f"{whole}-whole", 3)
        same(name, f"{whole}-whole", 6)
        served = tf.saved_model.load(str(exports[-1]))
        ids = np.arange(LENGTH)[None]
        (outputs,) = served.serve({"tokens": tf.constant(ids, tf.int64)}).values()
        if kind is keras.Model:
            exported = keras.models.load_model(exports[-1] / KERAS_FILE, compile=False)
            np.testing.assert_allclose(outputs, exported(ids), **NEAR)
        print(f"{name} is fine", flush=True)

assert not ht.is_chief() or "words (ShardedEmbedding): run.mesh has one copy of the model" in said.getvalue()

brought, bring, shards = [], WholeModel._bring, {}


def noted(*args):
    brought.append(args[1])
    bring(*args)


AVERAGED = keras.optimizers.Adam(0.01, use_ema=True)
whole_model.BLOCK_BYTES = whole_model.GATHERED_BYTES = 128
table_shards.SHARD_BYTES = 96
with patch.object(WholeModel, "_bring", noted):
    for name, optimizer, options in (("apart", ADAM, TWO), ("averaged", AVERAGED, {"shard_optimizer": True})):
        _, shards[name] = train(name, 6, optimizer, tables="shards", **options)
    assert brought.count(0) == 2, f"once a job, though each evaluates twice: {brought}"
    with patch.object(table_shards, "_write_at", side_effect=OSError(errno.ENOSPC, "No space left on device", "x")):
        _, shards["full"] = train("full", 3, SGD, tables="shards")
if ht.is_chief():
    assert not shards.pop("full")
    for name, made in shards.items():
        snapshot = CheckpointManager(FOLDER / name / "checkpoints", Retention()).load(6)
        (average,) = [a for key, a in snapshot.optimizer.items() if "words" in key and "average" in key] or [None]
        wanted = snapshot.model["words/embeddings"] if average is None else average
        table = table_shards.open_tables(made[-1], digests=True)["words"]
        assert len(table.index.files) == 5
        assert table.rows(np.arange(WORDS)).tobytes() == wanted.tobytes(), name
        if average is None:
            model = build_model(True, keras.optimizers.serialize(ADAM), keras.Model)
            model.set_weights(list(snapshot.model.values()))
            ids = np.arange(8 * LENGTH).reshape(8, LENGTH) % WORDS
            loaded = ht.load_exported_model(made[-1])
            np.testing.assert_allclose(loaded(ids), model(ids), err_msg=name, **NEAR)
    print("shards are fine", flush=True)

found, _ = train("uneven", 3, SGD, evaluated=uneven)
for key, value in json.loads((FOLDER / "uneven.json").read_text()).items():
    np.testing.assert_allclose(found[key], value, err_msg=key, **NEAR)
train("rows", 3, ADAM, sparse_gradients="keras")
if ht.is_chief():
    same("rows", "adam", 3)  # of rows that each occur once, Keras's Adam makes what it makes of all
    print("rows are fine", flush=True)
for options, said in (
    ({"chief": "dedicated"}, "set run.chief: train"),
    ({"strategy": "async"}, "take strategy: sync"),
):
    try:
        config = ht.RunConfig(FOLDER / "refused", **({"allreduce": "mpi"} if "chief" in options else {}), **options)
        ht.train_and_evaluate(
            ht.Estimator(lambda: build_model(True, keras.optimizers.serialize(SGD), keras.Model), config),
            ht.TrainSpec(batches, max_steps=1),
            ht.EvalSpec(batches),
        )
    except ht.UserError as error:
        assert "ShardedEmbedding" in str(error) and said in str(error), error
    else:
        raise AssertionError(said)
if ht.is_chief():
    print("what is refused is fine", flush=True)
