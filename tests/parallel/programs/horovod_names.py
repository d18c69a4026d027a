"""What hpc_train.horovod does on any number of ranks up to 3, against one process with all rows. Argument: a folder."""

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import hpc_train.horovod as hvd
import hpc_train.horovod.tensorflow.keras as hvd_keras
from hpc_train.errors import UserError

FOLDER = Path(sys.argv[1])
ROWS = 12
RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.integers(0, 5, size=(ROWS, 3)).astype(np.int32)
X = RANDOM.normal(size=(ROWS, 4)).astype(np.float32)
Y = RANDOM.normal(size=(ROWS, 1)).astype(np.float32)


def raises(kind: type[Exception], words: str, action: Callable[[], object]) -> None:
    try:
        action()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"nothing was raised, but not {words!r}")


def same(found: Any, wanted: Any, rtol: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=rtol, atol=1e-6)


raises(UserError, "hvd.init() comes first", hvd.rank)
raises(UserError, "process_set", lambda: hvd.init(process_sets=[[0]]))
hvd.init()
hvd.init()
rank, size = hvd.rank(), hvd.size()
mine = slice(rank, None, size)
every = range(size)


def dense_model(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((4,)), layers.Dense(3, activation="tanh"), layers.Dense(1)])


def values(variables: Any) -> list[np.ndarray]:
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


def same_variables(found: Any, wanted: Any, rtol: float = 1e-5) -> None:
    for one, other in zip(values(found), values(wanted), strict=True):
        same(one, other, rtol)


def equal_on_all_ranks(variables: Any) -> None:
    for one in hvd.allgather_object(values(variables)):
        for found, wanted in zip(one, values(variables), strict=True):
            np.testing.assert_array_equal(found, wanted)


def check_ranks() -> None:
    assert hvd.is_initialized() and 0 <= rank < size
    assert (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (rank, size, 0, 1)
    assert hvd.is_homogeneous() and hvd.mpi_threads_supported()
    assert (hvd.mpi_built(), hvd.nccl_built()) == (size > 1, False)
    for name in (*hvd.__all__,):
        getattr(hvd, name)
    raises(AttributeError, "hpc-train launch --max-restarts", lambda: hvd.elastic)
    raises(AttributeError, "GroupNormalization", lambda: hvd.SyncBatchNormalization)
    raises(AttributeError, "did you mean `allreduce`", lambda: hvd.alreduce)
    raises(UserError, "broadcast_variables(model.variables", lambda: hvd.broadcast_global_variables(0))


def check_dtypes() -> None:
    """What Horovod cannot do is refused by name, on one rank too."""
    for dtype in ("int16", "bool", "complex64"):
        given = tf.zeros([size], tf.as_dtype(dtype))
        raises(UserError, f"hvd.allreduce: {dtype} is not allowed; allowed: uint8", lambda: hvd.allreduce(given))
    raises(UserError, "hvd.broadcast: string is not allowed", lambda: hvd.broadcast(tf.constant("a"), 0))
    raises(UserError, "hvd.reducescatter: uint8", lambda: hvd.reducescatter(tf.zeros([size], tf.uint8)))


def check_operations() -> None:
    numbers = [np.arange(1, 7, dtype=np.float32).reshape(3, 2) * (r + 1) for r in every]
    own = tf.constant(numbers[rank])
    for op, wanted in (
        (None, np.mean(numbers, 0)),
        (hvd.Sum, np.sum(numbers, 0)),
        (hvd.Min, np.min(numbers, 0)),
        (hvd.Max, np.max(numbers, 0)),
        (hvd.Product, np.prod(numbers, 0)),
    ):
        same(hvd.allreduce(own, op=op), wanted)
    same(hvd.allreduce(own, average=False, prescale_factor=0.5, postscale_factor=3.0), 1.5 * np.sum(numbers, 0))
    same(hvd_keras.allreduce(numbers[rank], "named", compression=hvd.Compression.fp16), np.mean(numbers, 0), 1e-3)
    same(hvd.allreduce(keras.Variable(own)), np.mean(numbers, 0))
    if size != 3:
        same(hvd.allreduce(tf.ones([4]), op=hvd.Adasum), np.ones(4))
    slices = tf.IndexedSlices(own, tf.constant([0, rank, 1], tf.int32), tf.constant([3, 2], tf.int32))
    table = np.zeros((3, 2))
    for r in every:
        np.add.at(table, [0, r, 1], numbers[r])
    same(tf.convert_to_tensor(hvd.allreduce(slices)), table / size)
    raises(UserError, "IndexedSlices", lambda: hvd.allreduce(slices, op=hvd.Max))
    raises(UserError, "device_dense", lambda: hvd.allreduce(own, device_dense="/gpu:0"))
    mixed = [own, tf.cast(own, tf.bfloat16), slices, tf.cast(own, tf.int32), tf.cast(own, tf.float16)]
    found = hvd.grouped_allreduce(mixed, op=hvd.Sum)
    assert [one.dtype.name for one in found] == ["float32", "bfloat16", "float32", "int32", "float16"]
    same(tf.convert_to_tensor(found[2]), table)
    for place in (0, 1, 3, 4):
        same(tf.cast(found[place], tf.float32), np.sum(numbers, 0))

    same(hvd.allgather(own[: rank + 1]), np.concatenate([numbers[r][: r + 1] for r in every]))
    same(hvd.grouped_allgather([own, own[:1]])[1], np.concatenate([one[:1] for one in numbers]))
    last = size - 1
    for dtype in ("float32", "uint32", "bfloat16", "bool", "int64"):
        same(
            tf.cast(hvd.broadcast(tf.cast(own, dtype), last), tf.float32),
            numbers[last].astype(bool if dtype == "bool" else float),
        )
    raises(UserError, f"a rank from 0 to {last}", lambda: hvd.broadcast(own, size))
    rows = np.arange(sum(range(1, size + 1)), dtype=np.float32) + 100 * rank
    got, splits = hvd.alltoall(rows, splits=[r + 1 for r in every])
    begin = sum(range(1, rank + 1))
    same(got, np.concatenate([np.arange(begin, begin + rank + 1) + 100 * r for r in every]))
    assert list(splits.numpy()) == [rank + 1] * size
    part = np.array_split(np.mean(numbers, 0), size)[rank]
    same(hvd.reducescatter(own), part)
    same(hvd.grouped_reducescatter([own, own], op=hvd.Sum, postscale_factor=2.0)[1], 2 * size * part)
    assert hvd.broadcast_object({"from": rank}, root_rank=last) == {"from": last}
    assert hvd.allgather_object((rank, "x")) == [(r, "x") for r in every]


def check_broadcast() -> None:
    model = dense_model(seed=10 + rank)
    seeds = keras.random.SeedGenerator(rank + 5)
    plain = tf.Variable([float(rank)])
    hvd.broadcast_variables([*model.variables, seeds.state, plain], root_rank=size - 1)
    equal_on_all_ranks([*model.variables, seeds.state, plain])
    same(plain, [size - 1])

    @tf.function
    def in_graph() -> None:
        hvd.broadcast_variables([plain], root_rank=0)

    plain.assign([float(rank)])
    in_graph()
    same(plain, [0])
    if size > 1:
        more = [plain] * (1 + rank)
        raises(UserError, "rank 0 has 1 variables and rank 1 has 2", lambda: hvd.broadcast_variables(more, 0))
    raises(UserError, "list in Keras 3", lambda: hvd.broadcast_variables(lambda: [], 0))


def check_tape() -> None:
    """Each way to reduce, in one function, so that names of operations have to differ."""
    keras.utils.set_random_seed(1)
    embedding, dense, unused = layers.Embedding(5, 2), layers.Dense(1), tf.Variable(1.0)
    embedding.build(), dense.build((None, 6))
    sources = [embedding.embeddings, dense.kernel, dense.bias.value, unused]

    def loss_of(tokens: Any, y: Any) -> Any:
        return tf.reduce_mean((dense(tf.reshape(embedding(tokens), [-1, 6])) - y) ** 2)

    with tf.GradientTape() as tape:
        loss = loss_of(TOKENS, Y)
    whole = tape.gradient(loss, [embedding.embeddings.value, dense.kernel.value, *sources[2:]])
    wanted = [None if g is None else tf.convert_to_tensor(g).numpy() for g in whole]
    ways: list[dict[str, Any]] = [
        {},
        {"sparse_as_dense": True},
        {"gradient_predivide_factor": 2.0},
        {"op": hvd.Sum, "groups": 2},
        {"groups": [[dense.kernel, embedding.embeddings]], "compression": hvd.Compression.fp16},
        {"local": True},
    ]

    @tf.function(autograph=False)
    def gradients(tokens: Any, y: Any) -> list[Any]:
        results = []
        for way in ways:
            options = {key: value for key, value in way.items() if key != "local"}
            with tf.GradientTape() as tape:
                loss = loss_of(tokens, y)
            if "local" in way:
                tape = hvd.PartialDistributedGradientTape(tape, local_layers=embedding)
            else:
                tape = hvd.DistributedGradientTape(tape, **options)
            results.append(tape.gradient(loss, sources))
        return results

    for way, found in zip(ways, gradients(TOKENS[mine], Y[mine]), strict=True):
        assert found[3] is None
        if "local" in way:
            found[0] = hvd.allreduce(found[0], op=hvd.Sum)  # of each rank's, divided by the number of ranks
        sparse = isinstance(found[0], tf.IndexedSlices)
        assert sparse == ("sparse_as_dense" not in way), way
        scale = size if way.get("op") is hvd.Sum else 1
        for one, other in zip(found[:3], wanted[:3], strict=True):
            same(tf.convert_to_tensor(one), scale * other, 2e-3 if "compression" in way else 1e-5)

    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:  # outside of a function, one source alone
        loss = loss_of(TOKENS[mine], Y[mine])
    same(tape.gradient(loss, dense.kernel), wanted[1])
    raises(UserError, "gradtape", lambda: hvd.DistributedGradientTape(None))
    raises(
        UserError,
        "hvd.Average, hvd.Sum, hvd.Adasum",
        lambda: hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Min),
    )
    if size > 1:

        @tf.function(jit_compile=True)
        def compiled(x: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = x * x
            return hvd.DistributedGradientTape(tape).gradient(y, [x])

        raises(Exception, "XLA cannot compile", lambda: compiled(tf.constant(1.0)))


def check_loop() -> None:
    """A step as Horovod's examples have it: tape, optimizer, and after the first one a broadcast, in one function."""
    ours, one = dense_model(8), dense_model(8)
    optimizer, plain = keras.optimizers.Adam(0.02), keras.optimizers.Adam(0.02)
    optimizer.build(ours.trainable_variables)

    @tf.function
    def training_step(x: tf.Tensor, y: tf.Tensor, first_batch: bool) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((ours(x, training=True) - y) ** 2)
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, ours.trainable_variables)
        optimizer.apply_gradients(zip(gradients, ours.trainable_variables, strict=True))
        if first_batch:
            hvd.broadcast_variables(ours.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables, root_rank=0)
        return hvd.allreduce(loss)

    for batch in range(3):
        loss = training_step(X[mine], Y[mine], batch == 0)
        same(loss, tf.reduce_mean((one(X) - Y) ** 2), 1e-4)
        plain.apply(gradients_of(one, slice(None)), one.trainable_variables)
    same_variables(ours.variables, one.variables, 1e-4)
    equal_on_all_ranks([*ours.variables, *optimizer.variables])


def gradients_of(model: keras.Model, rows: slice, factor: float = 1.0) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        loss = factor * tf.reduce_mean((model(X[rows]) - Y[rows]) ** 2)
    return tape.gradient(loss, model.trainable_variables)


def check_optimizers() -> None:
    """Steps outside of functions: an average of ranks' gradients is the gradient of all rows."""
    adam = keras.optimizers.Adam
    for make in (
        lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)),
        lambda: keras.optimizers.SGD(lambda: 0.1, momentum=0.9, nesterov=True, global_clipnorm=0.1),
        lambda: adam(0.05, weight_decay=0.01),
    ):
        ours, one = dense_model(2), dense_model(2)
        plain, distributed = make(), hvd.DistributedOptimizer(make())
        assert isinstance(distributed, type(plain))
        for _ in range(3):
            distributed.apply_gradients(zip(gradients_of(ours, mine), ours.trainable_variables, strict=True))
            plain.apply(gradients_of(one, slice(None)), one.trainable_variables)
        same_variables(ours.variables, one.variables, 1e-4)
        equal_on_all_ranks([*ours.variables, *distributed.variables])

    of = adam(0.05)
    to = hvd.DistributedOptimizer(of)
    saved, again = (keras.saving.serialize_keras_object(one) for one in (of, to))
    assert saved == again
    raises(UserError, "distributed already", lambda: hvd.DistributedOptimizer(to))
    raises(UserError, "an optimizer of Keras 3", lambda: hvd.DistributedOptimizer("adam"))
    raises(UserError, "hvd.Average, hvd.Sum", lambda: hvd.DistributedOptimizer(of, op=hvd.Adasum))
    raises(UserError, "a copy would not be distributed", lambda: copy.deepcopy(to))
    made = type(to).from_config(to.get_config())
    raises(UserError, "is not distributed", lambda: made.apply([tf.ones(2)], [keras.Variable([0.0, 0.0])]))
    if size > 1:
        raises(UserError, "the optimizer that scales", lambda: keras.optimizers.LossScaleOptimizer(to))


def check_gradients_that_are_added_up() -> None:
    """By variable, in whatever order they come; what one batch has no gradient for counts as 0."""
    a, b, c = (keras.Variable(0.0, name=name) for name in "abc")
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    optimizer.build([a, b])
    one, ten = tf.constant(1.0), tf.constant(10.0)
    optimizer.apply([one, None], [a, b])
    optimizer.apply([one, one], [a, b])
    assert (float(a), float(b)) == (-2.0, -1.0)
    optimizer.apply([one, ten], [b, a])
    optimizer.apply([ten, one], [a, b])
    assert (float(a), float(b)) == (-22.0, -3.0)
    raises(UserError, "gradients of other variables than before", lambda: optimizer.apply([one], [a]))
    raises(UserError, "gradients of other variables than before", lambda: optimizer.apply([one, one], [a, c]))


def check_loss_scaling() -> None:
    """One rank's gradients overflow: no rank takes the step."""
    ours, one = dense_model(3), dense_model(3)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.5), initial_scale=8.0)
    optimizer = hvd.DistributedOptimizer(optimizer)
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    optimizer.build(ours.trainable_variables)
    plain = keras.optimizers.SGD(0.1, momentum=0.5)

    @tf.function
    def step(factor: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(factor * tf.reduce_mean((ours(X[mine]) - Y[mine]) ** 2))
        gradients = [tf.cast(g, tf.float16) for g in tape.gradient(loss, ours.trainable_variables)]
        optimizer.apply([tf.cast(g, tf.float32) for g in gradients], ours.trainable_variables)

    for overflows in (False, True, False):
        before = values(ours.variables)
        step(tf.constant(1e9 if overflows and rank == size - 1 else 1.0))
        if overflows:
            same_variables(ours.variables, before)
        else:
            plain.apply(gradients_of(one, slice(None)), one.trainable_variables)
    assert float(optimizer.dynamic_scale) == 4.0
    same_variables(ours.variables, one.variables, 5e-3)
    equal_on_all_ranks([*ours.variables, *optimizer.variables])


def check_passes() -> None:
    """Two batches, one step: by the sum of their gradients, or by the mean."""
    for mean in (False, True):
        ours, one = dense_model(4), dense_model(4)
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.05), backward_passes_per_step=2, average_aggregated_gradients=mean
        )
        step = tf.function(lambda x, y, ours=ours, optimizer=optimizer: _step(ours, optimizer, x, y))
        halves = [np.arange(ROWS)[half::2][mine] for half in (0, 1)]
        for _ in range(2):
            for half in halves:
                step(X[half], Y[half])
        assert int(optimizer.iterations) == 4
        plain = keras.optimizers.SGD(0.05)
        for _ in range(2):
            plain.apply(gradients_of(one, slice(None), 1.0 if mean else 2.0), one.trainable_variables)
        same_variables(ours.variables, one.variables)


def _step(model: keras.Model, optimizer: Any, x: Any, y: Any) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)


class Weights(keras.callbacks.Callback):
    """The last numbers of an epoch, as a callback behind Horovod's sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: list[dict[str, float]] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.logs.append(dict(logs))


def check_fit() -> None:
    """Ranks begin with other weights, and end with those of one process; the model they save is a plain one."""
    ours = dense_model(seed=rank)
    ours.compile(hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.02)), "mse", metrics=["mae"])
    seen = Weights()
    order = np.argsort(np.arange(ROWS) % size, kind="stable").reshape(size, -1)[rank]
    train = {"epochs": 2, "shuffle": False, "verbose": 0}
    callbacks = [hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0), hvd_keras.callbacks.MetricAverageCallback()]
    history = ours.fit(X[order], Y[order], batch_size=6 // size, callbacks=[*callbacks, seen], **train)
    equal_on_all_ranks([*ours.variables, *ours.optimizer.variables])
    path = FOLDER / f"model-{size}.keras"
    if rank == 0:
        one = dense_model(seed=0)
        one.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
        whole = one.fit(X, Y, batch_size=6, **train)
        same_variables(ours.variables, one.variables, 1e-4)
        for name in ("loss", "mae"):
            same(history.history[name], whole.history[name], 1e-4)
            same([logs[name] for logs in seen.logs], whole.history[name], 1e-4)
        ours.save(path)
        assert type(keras.models.load_model(path).optimizer) is keras.optimizers.Adam
    hvd.broadcast_object("saved")
    loaded = hvd_keras.load_model(path)
    assert int(loaded.optimizer.iterations) == 4
    raises(UserError, "distributed already", lambda: hvd.DistributedOptimizer(loaded.optimizer))
    for model in (loaded, ours):
        model.optimizer.apply(gradients_of(model, mine), model.trainable_variables)
    for found, wanted in zip(values(loaded.variables), values(ours.variables), strict=True):
        np.testing.assert_array_equal(found, wanted)


def check_rates() -> None:
    """A warm-up of two epochs of two steps, then a decay, with corrected momentum: as written in the paper."""
    ours, one = dense_model(6), dense_model(6)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    ours.compile(optimizer, "mse")
    with_sizes = hvd.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2, verbose=1)
    decay = hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 0.5, start_epoch=2)
    order = np.argsort(np.arange(ROWS) % size, kind="stable").reshape(size, -1)[rank]
    history = ours.fit(
        X[order], Y[order], batch_size=6 // size, epochs=3, shuffle=False, verbose=0, callbacks=[with_sizes, decay]
    )
    rates = [0.1 * (1 / size + (1 - 1 / size) * step / 4) for step in (1, 2, 3, 4)] + [0.05, 0.05]
    same(history.history["lr"], rates[1::2])
    velocities, last = [np.zeros(v.shape, np.float32) for v in one.trainable_variables], rates[0]
    for step, rate in enumerate(rates):
        for place, gradient in enumerate(gradients_of(one, slice(6 * (step % 2), 6 * (step % 2) + 6))):
            velocities[place] = 0.9 * rate / last * velocities[place] - rate * gradient.numpy()
            one.trainable_variables[place].assign_add(velocities[place])
        last = rate
    same_variables(ours.variables, one.variables, 1e-4)
    ours.compile(keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)), "mse")
    raises(UserError, "is a schedule", lambda: ours.fit(X, Y, verbose=0, callbacks=[decay]))
    raises(UserError, "has no effect here", lambda: hvd.callbacks.MetricAverageCallback("/gpu:0"))
    raises(AttributeError, "save on rank 0", lambda: hvd.callbacks.CommitStateCallback)


def check_xla() -> None:
    """XLA is switched off with a word by the callback, and refused without."""
    if size == 1:
        return
    model = dense_model(7)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=True)
    raises(UserError, "jit_compile=False in model.compile", lambda: model.fit(X, Y, verbose=0))
    model.jit_compile = True
    hvd.callbacks.BroadcastGlobalVariablesCallback(0).set_model(model)
    assert model.jit_compile is False


def check_join() -> None:
    """Ranks with unequal numbers of batches."""
    total = 0.0
    for _ in range(rank + 1):
        total = float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name="uneven"))
    assert total == size - rank
    assert int(hvd.join()) in every


if __name__ == "__main__":
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check()
    hvd.shutdown()
    assert not hvd.is_initialized()
    print(f"rank {rank} of {size} is fine")
