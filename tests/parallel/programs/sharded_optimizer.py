"""Checks that sharded optimizers do what whole ones do; run on any number of ranks, argv: what carries the tensors."""

import re
import sys
from contextlib import ExitStack
from unittest.mock import patch

import numpy as np

from hpc_train.distributed.devices import set_up_tensorflow
from hpc_train.distributed.startup import join_world

world = join_world()
set_up_tensorflow(world)

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from hpc_train.distributed import allreduce as of_gradients  # noqa: E402
from hpc_train.distributed import collectives as of_all  # noqa: E402
from hpc_train.distributed import optimizer_pieces as of_pieces  # noqa: E402
from hpc_train.distributed.allreduce import GradientAllreduce  # noqa: E402
from hpc_train.distributed.carrier import collectives_by  # noqa: E402
from hpc_train.distributed.mesh import Mesh  # noqa: E402
from hpc_train.distributed.share import share_of  # noqa: E402
from hpc_train.engine.own_train_step import make_own_train_step  # noqa: E402
from hpc_train.engine.step_report import Flags  # noqa: E402
from hpc_train.engine.train_step import make_train_step  # noqa: E402
from hpc_train.model.loss_terms import LossPlan  # noqa: E402
from hpc_train.model.model_state import ModelState  # noqa: E402
from hpc_train.model.own_steps import updates_of  # noqa: E402

STEPS, ROWS, MESH = 4, 12, Mesh(world.size, 1, world.rank)
collectives = collectives_by(sys.argv[1], world)
random = np.random.default_rng(world.rank)
X = random.normal(size=(STEPS, ROWS, 16)).astype(np.float32)
Y = random.normal(size=(STEPS, ROWS, 3)).astype(np.float32)
o = keras.optimizers


@keras.saving.register_keras_serializable()
class Temperature(keras.layers.Layer):
    """Has a variable without axes, and one with a constraint."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
        self.bounded = self.add_weight(shape=(shape[-1],), initializer="ones", constraint="non_neg", name="bounded")

    def call(self, inputs):
        return inputs * self.scale * self.bounded


def model_of(dtype="float32"):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(size, "tanh", dtype=dtype) for size in (512, 512, 13)]
    more = [keras.layers.BatchNormalization(dtype=dtype), Temperature(dtype=dtype)]
    return keras.Sequential([keras.Input((16,)), *layers, *more, keras.layers.Dense(3, dtype=dtype)])


class Alternating(keras.Model):
    """Trains its second half and then its first, each with an optimizer of its own, in a train_step of its own."""

    def __init__(self, make):
        super().__init__()
        keras.utils.set_random_seed(1)
        self.first, self.second = keras.layers.Dense(512, "tanh"), keras.layers.Dense(3)
        self.optimizers = [make(), make()]

    def build(self, shape):
        self.first.build(shape)
        self.second.build((None, 512))

    def call(self, inputs):
        return self.second(self.first(inputs))

    def train_step(self, batch):
        x, y = batch
        for layer, optimizer in zip((self.second, self.first), self.optimizers, strict=True):
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            gradients = tape.gradient(loss, layer.trainable_variables)
            optimizer.apply(gradients, layer.trainable_variables)
        return {"loss": loss}


def train_alternating(make, sharded):
    """Values of variables and gathered state after some steps."""
    model = Alternating(make)
    model.compile(loss="mse")
    model.build((None, 16))
    dataset = tf.data.Dataset.from_tensors((X[0], Y[0]))
    state = ModelState(model, world, updates_of(model, dataset, "model", MESH if sharded else None))
    step = make_own_train_step(model, state, GradientAllreduce(collectives), True, LossPlan(world.size))
    reports = [step((tf.constant(x), tf.constant(y)), Flags())() for x, y in zip(X, Y, strict=True)]
    slots = [whole(v) for optimizer, _ in state.updates.optimizers for v in optimizer.variables]
    return [*(v.numpy() for v in model.variables), *slots], reports


def train(make, sharded, dtype="float32", pieces=1, compression=None, spoilt=None, undo=False, model=None):
    """The model, its optimizer's variables gathered, and the steps' reports."""
    model = model or model_of(dtype)
    model.compile(make(), "mse", auto_scale_loss=False)
    updates = updates_of(model, None, "model", MESH if sharded else None)
    allreduce = GradientAllreduce(collectives, compression)
    held = updates.pieces[0] if updates.pieces else None
    step = make_train_step(model, allreduce, model.non_trainable_variables, undo, pieces, sharded=held)
    reports = []
    for number in range(STEPS):
        x, y = X[number], Y[number].copy()
        if number == spoilt and world.rank == world.size - 1:
            y[0, 0] = np.nan
        reports.append(step((tf.constant(x, dtype[-7:]), tf.constant(y, dtype[-7:])), Flags())())
    if updates.keeps_averages:
        updates.finish(world)
    return model, [whole(v) for v in model.optimizer.variables], reports


def whole(variable):
    share = share_of(variable)
    if share is None:
        return variable.numpy()
    array = np.zeros(share.shape, np.float64)
    share.of(array)[...] = variable.numpy()
    return world.sum(array).astype(variable.numpy().dtype)


def names_of(optimizer):
    return [re.sub(r"_\d+", "", variable.path) for variable in optimizer.variables]


def alike_on_ranks(arrays):
    return len({tuple(told) for told in world.all_gather([a.tobytes().hex()[:64] + str(a.sum()) for a in arrays])}) == 1


def compare(name, make, exact=world.size == 2, atol=2e-5, **how):
    there, its_state, reports = train(make, False, **how)
    here, state, own_reports = train(make, True, **how)
    values = [v.numpy() for v in here.variables]
    assert alike_on_ranks(values), f"{name}: not the same on all ranks"
    assert [r.applied for r in reports] == [r.applied for r in own_reports], name
    assert [r.to_blame for r in reports] == [r.to_blame for r in own_reports], name
    assert names_of(here.optimizer) == names_of(there.optimizer), name
    paths = [v.path for v in (*here.variables, *here.optimizer.variables)]
    pairs = zip(paths, [*values, *state], [*(v.numpy() for v in there.variables), *its_state], strict=True)
    for path, ours, theirs in pairs:
        assert ours.shape == theirs.shape, path
        if exact:
            np.testing.assert_array_equal(ours, theirs, err_msg=f"{name}: {path}")
        else:
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=atol, err_msg=f"{name}: {path}")
    total = sum(v.numpy().nbytes for v in here.optimizer.variables)
    everything = sum(a.nbytes for a in state)
    assert total < everything / world.size * 1.01 + 400, (name, total, everything)
    return own_reports


def excluding():
    adamw = o.AdamW(0.01, weight_decay=0.1)
    adamw.exclude_from_weight_decay(var_names=["bias"])
    return adamw


def several():
    kinds = o.SGD(0.1, momentum=0.9), o.Adam(0.01)
    return o.MultiOptimizer(lambda variable: kinds["bias" in variable.path])


EXACT = {
    "SGD": lambda: o.SGD(0.1),
    "momentum": lambda: o.SGD(0.1, momentum=0.9, nesterov=True),
    "Adam": lambda: o.Adam(0.01),
    "amsgrad": lambda: o.Adam(0.01, amsgrad=True),
    "AdamW": excluding,
    "RMSprop": lambda: o.RMSprop(0.01, centered=True),
    "Adagrad": lambda: o.Adagrad(0.1),
    "Lion": lambda: o.Lion(0.001),
    "clipvalue": lambda: o.Adam(0.01, clipvalue=0.001),
    "schedule": lambda: o.Adam(o.schedules.ExponentialDecay(0.01, 2, 0.5)),
    "average": lambda: o.SGD(0.1, use_ema=True, ema_momentum=0.5),
    "average put in place": lambda: o.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2),
    "accumulation": lambda: o.Adam(0.01, gradient_accumulation_steps=2),
}
if hasattr(o, "ScheduleFreeAdamW"):
    EXACT["schedule-free"] = lambda: o.ScheduleFreeAdamW(0.01)
if hasattr(o, "MultiOptimizer"):
    EXACT["several"] = several
ALL = world.size == 2 and sys.argv[1] == "mpi"
"""Whether all is checked: what differs in numbers alone is not, on more ranks and with another carrier."""

for name, make in EXACT.items():
    if ALL or name in ("Adam", "average", "several"):
        compare(name, make)

compare("pieces", lambda: o.Adam(0.01), pieces=3)
compare("global_clipnorm", lambda: o.SGD(0.5, momentum=0.9, global_clipnorm=0.01), exact=False)
if ALL:
    compare("clipnorm", lambda: o.SGD(0.5, momentum=0.9, clipnorm=0.01), exact=False)
    compare("clip what was accumulated", lambda: o.SGD(0.5, clipnorm=0.01, gradient_accumulation_steps=2), exact=False)
    compare("mixed_bfloat16", lambda: o.Adam(0.01), dtype="mixed_bfloat16")
for clipping in ({"global_clipnorm": 0.01}, {"clipnorm": 0.01})[: 1 + ALL]:
    there, _, _ = train(lambda: o.SGD(0.5, momentum=0.9, **clipping), False, dtype="float64")
    here, _, _ = train(lambda: o.SGD(0.5, momentum=0.9, **clipping), True, dtype="float64")
    for ours, theirs in zip(here.variables, there.variables, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-10, atol=1e-14)
for kind in ("fp16", "bf16"):
    compare(kind, lambda: o.SGD(0.1, momentum=0.9), exact=False, atol=2e-3, compression=kind)
with ExitStack() as stack:  # variables of more elements than go over the wire at once
    for module in (of_all, of_gradients, of_pieces):
        stack.enter_context(patch.object(module, "MOST_ELEMENTS", 9_999))
    compare("in several exchanges", lambda: o.Adam(0.01))
    compare("in several exchanges of 16 bits", lambda: o.SGD(0.1), exact=False, atol=2e-3, compression="bf16")
reports = compare("skipped", lambda: o.Adam(0.01), spoilt=2, undo=True)
assert [report.applied for report in reports] == [True, True, False, True]
assert reports[2].to_blame == (world.rank == world.size - 1)


for make in (lambda: o.Adam(0.01), lambda: o.SGD(0.5, momentum=0.9, global_clipnorm=0.01))[: 1 + ALL]:
    theirs, its_reports = train_alternating(make, False)
    ours, reports = train_alternating(make, True)
    assert alike_on_ranks(ours)
    assert reports[0].loss == its_reports[0].loss
    assert all(report.applied for report in reports)
    for mine, its in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-4, atol=1e-6)
        assert make().global_clipnorm or world.size == 3 or mine.tobytes() == its.tobytes()


def scaling():
    return o.LossScaleOptimizer(o.SGD(0.05, momentum=0.9), initial_scale=2.0**16, dynamic_growth_steps=2)


compare("mixed_float16", scaling, dtype="mixed_float16", exact=False, atol=3e-3)
print(f"rank {world.rank} of {world.size} is fine")
