"""Models and options that need ranks, one after the other; each is held against Keras alone. Prints what was found."""

import json
import sys
from contextlib import suppress
from pathlib import Path

from hpc_train.distributed.startup import join_world

world = join_world()

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import hpc_train as ht  # noqa: E402
from hpc_train.checkpoint.manager import CheckpointManager  # noqa: E402
from hpc_train.checkpoint.names import Retention  # noqa: E402

FOLDER, BATCH, STEPS = Path(sys.argv[1]), 8, 3
random = np.random.default_rng(0)
X = random.normal(size=(BATCH * STEPS, 6)).astype("float32")
CLASSES = random.integers(0, 3, BATCH * STEPS)
TOKENS = random.integers(0, 5, (BATCH * STEPS, 4))


def contrastive(labels, codes):
    """Compares each row with all rows of the batch, of all ranks."""
    codes = ht.all_gather(codes)
    likeness = keras.ops.matmul(codes, keras.ops.transpose(codes))
    return -keras.ops.mean(keras.ops.diagonal(keras.ops.log_softmax(likeness)))


def simple(loss, *layers, optimizer="sgd", **compiled):
    def build():
        model = keras.Sequential([keras.Input((6,)), *(layer() for layer in layers), keras.layers.Dense(3)])
        model.compile(keras.optimizers.get(optimizer), loss, **compiled)
        return model

    return build


def embedding():
    model = keras.Sequential([keras.Input((4,), dtype="int32"), keras.layers.Embedding(5, 3), keras.layers.Flatten()])
    model.add(keras.layers.Dense(3))
    model.compile(keras.optimizers.Adam(0.1), sparse())
    return model


def sparse():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def normalized():
    return keras.layers.BatchNormalization(synchronized=True)


class Broken(keras.Model):
    """Two updates a step; the second is infinite in the second step."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(3), keras.layers.Dense(3)
        self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False, name="steps")

    def call(self, x):
        return self.second(self.first(x))

    def train_step(self, batch):
        x, y = batch
        self.steps.assign_add(1.0)
        for layer, optimizer in ((self.first, self.optimizer), (self.second, self.other)):
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x))
                if layer is self.second:
                    loss /= tf.abs(self.steps.value - 2.0)
            optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
        return {"loss": loss, "steps": self.steps.value}

    def compile(self):
        super().compile(keras.optimizers.SGD(0.1), sparse())
        self.other = keras.optimizers.Adam(0.1)


def broken():
    model = Broken()
    model.compile()
    return model


def trained(name, build, x=X, labels=CLASSES, steps=STEPS, class_weight=None, even=True, **run):
    """The variables of a job on these ranks, each with its part of a batch; on the chief."""

    def batches(context):
        size, part = BATCH // context.num_input_pipelines, context.input_pipeline_id
        cut = np.concatenate([np.arange(k * BATCH + part * size, k * BATCH + (part + 1) * size) for k in range(STEPS)])
        return tf.data.Dataset.from_tensor_slices((x[cut], labels[cut])).batch(size, drop_remainder=even)

    config = ht.RunConfig(FOLDER / name, tf_random_seed=3, report=False, best_metric=None, **run)
    train = ht.TrainSpec(batches, max_steps=steps, class_weight=class_weight)
    ht.train_and_evaluate(ht.Estimator(build, config), train, ht.EvalSpec(batches, steps=1))
    manager = CheckpointManager(FOLDER / name / "checkpoints", Retention())
    return list(manager.load(manager.steps()[-1]).model.values()) if world.is_chief else []


def expected(build, x=X, labels=CLASSES, **fit):
    """What Keras makes of the same batches."""
    keras.utils.set_random_seed(3)
    model = build()
    if model.run_eagerly:
        model.run_eagerly = False
    data = tf.data.Dataset.from_tensor_slices((x, labels)).batch(BATCH)
    model.fit(data, verbose=0, **fit)
    return [variable.numpy() for variable in model.variables]


def apart(ours, theirs):
    """How far two lists of variables are from each other."""
    if not world.is_chief:
        return None
    return max(float(np.max(np.abs(a - b)) / (np.max(np.abs(b)) + 1e-6)) for a, b in zip(ours, theirs, strict=True))


def refused(*args, **kwargs):
    with suppress(ht.UserError):
        trained(*args, **kwargs)
        return "was not refused"
    return ""


found = {}
build = simple(contrastive, optimizer="sgd")
found["all_gather"] = apart(trained("all_gather", build), expected(build))
build = simple(sparse())
weights = {0: 0.2, 2: 3.0}
found["class_weight"] = apart(trained("weights", build, class_weight=weights), expected(build, class_weight=weights))
build = simple(sparse(), normalized)
found["synchronized"] = apart(trained("synchronized", build), expected(build))
pieces = trained("pieces", build, accumulate_steps=2)
found["synchronized in pieces"] = None if world.is_chief and not np.isfinite(pieces[0]).all() else 0.0
found["uneven pieces"] = refused("uneven", build, even=False, accumulate_steps=2)
found["uneven batches"] = apart(trained("unknown", simple(sparse()), even=False), expected(simple(sparse())))
rows = {"x": TOKENS, "labels": CLASSES}
if world.size == 1:
    mine = trained("rows", embedding, **rows, sparse_gradients="keras")
    found["sparse gradients as in Keras"] = apart(mine, expected(embedding, **rows))
else:
    found["sparse gradients as in Keras"] = refused("rows", embedding, **rows, sparse_gradients="keras")
left_out = trained("broken", broken, steps=3, on_nan="skip")
if world.is_chief:
    manager = CheckpointManager(FOLDER / "broken" / "checkpoints", Retention())
    optimizers = manager.load(manager.steps()[-1]).optimizer
    # The counter of steps was taken back with all the rest, so that each step after the first is the second.
    found["steps"] = float(left_out[[v.shape for v in left_out].index(())])
    found["updates"] = [int(value) for name, value in optimizers.items() if name.split("#")[0].endswith("iteration")]
if world.is_chief:
    print("found", json.dumps(found))
