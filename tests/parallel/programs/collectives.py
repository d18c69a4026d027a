"""Checks each collective operation and its gradient against numpy; run on any number of ranks up to 4.

argv: what carries them, horovod, mpi or mpi-gpu, with what stands in for a GPU.
"""

import sys
from collections.abc import Callable, Sequence

import numpy as np

from hpc_train.distributed.devices import set_up_tensorflow
from hpc_train.distributed.startup import join_world

world = join_world()
set_up_tensorflow(world)

import tensorflow as tf  # noqa: E402

from hpc_train.distributed import horovod  # noqa: E402
from hpc_train.distributed.allreduce import GradientAllreduce  # noqa: E402
from hpc_train.distributed.carrier import collectives_by  # noqa: E402
from hpc_train.distributed.collectives import Collectives  # noqa: E402
from hpc_train.errors import RankError, UserError  # noqa: E402
from tests.collective_cases import Case, all_cases, cases_of, compare  # noqa: E402
from tests.gpu import stand_in_for_gpu  # noqa: E402

BY = sys.argv[1]
if BY == "mpi-gpu":
    stand_in_for_gpu()
GROUPS = {
    1: [],
    2: [[1]],
    3: [[0, 1], [2], [2, 1]],  # overlapping, and one that two ranks are not in
    4: [[0, 1], [2, 3], [0, 2], [1, 3], [1, 2, 3]],  # a grid of two by two
}


def check(those: Sequence[Collectives]) -> None:
    """All cases of all groups in one function: what a rank is not in, it has not in its graph.

    Of groups, one dtype and one number of rows: how numbers are added does not depend on whose they are.
    """
    cases = {}
    for place, c in enumerate(those):
        of_one = cases_of(c, "float32", 2 * c.ranks + 1) if place else all_cases(c)
        cases.update({(place, name): (c, case) for name, case in of_one.items()})
    keys = list(cases)
    float_keys = [key for key in keys if cases[key][1].dtype != "int32"]

    def tensors(those: Callable[[Case], list[np.ndarray]]) -> list[tf.Tensor]:
        return [tf.constant(those(case)[c.rank], case.dtype) for c, case in cases.values()]

    @tf.function(autograph=False)
    def run(given: list[tf.Tensor], by: list[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        x, w = dict(zip(keys, given, strict=True)), dict(zip(keys, by, strict=True))
        with tf.GradientTape() as tape:
            tape.watch([x[key] for key in float_keys])
            results = {key: case.call(x[key]) for key, (_, case) in cases.items()}
        for key, (c, case) in cases.items():
            assert results[key].shape == case.results[c.rank].shape, key
        return list(results.values()), tape.gradient(
            [results[key] for key in float_keys],
            [x[key] for key in float_keys],
            [w[key] for key in float_keys],
        )

    results, gradients = run(tensors(lambda case: case.given), tensors(lambda case: case.by))
    for found, (key, (c, case)) in zip(results, cases.items(), strict=True):
        compare(found, case.results[c.rank], case.dtype, key)
    for found, key in zip(gradients, float_keys, strict=True):
        c, case = cases[key]
        compare(found, case.gradients[c.rank], case.dtype, ("gradient of", key))


def raises(kind: type[Exception], action: Callable[[], object], words: str) -> None:
    try:
        action()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")


top = collectives_by(BY, world, GROUPS[world.size])
assert (top.ranks, top.rank) == (world.size, world.rank)
mine = [top]
for ranks in GROUPS[world.size]:
    group = top.group(ranks)
    assert (group is None) == (world.rank not in ranks)
    if group is not None:
        assert (group.ranks, group.rank) == (len(ranks), sorted(ranks).index(world.rank))
        mine.append(group)
assert top.group(range(world.size)) is top
check(mine)

last, one = world.size - 1, tf.ones([2])
if world.size > 2:
    if BY == "horovod":
        raises(ValueError, lambda: top.group([0, last]), "Horovod was started without it")
        raises(RuntimeError, lambda: collectives_by(BY, world, [[0, last]]), "Horovod runs without")
    else:
        assert collectives_by(BY, world) is top
        assert top.group([0, last]) is top.group([last, 0])
    pair = top.group([last - 1, last])
    alone = pair.group([1]) if pair is not None else None
    assert (alone is not None) == (world.rank == last), "ranks of a group are numbered in it"
    others = world.part(1)  # the workers of a dedicated chief, in a program whose jobs had none before
    if others is not None and BY == "horovod":
        raises(UserError, lambda: collectives_by(BY, others), "over other ranks")
    elif others is not None:
        assert collectives_by(BY, others).ranks == last
if world.size > 1:
    for _ in range(2):  # outside of a tf.function, too, and again by the same name
        assert np.array_equal(top.allreduce([one])[0], [world.size, world.size])
        counts = tf.constant([world.rank + 1] * world.size)
        found, received = top.alltoallv(tf.ones([world.size * (world.rank + 1), 2]), counts)
        assert received.numpy().tolist() == list(range(1, world.size + 1))
        assert found.shape == (sum(range(1, world.size + 1)), 2)
    raises(ValueError, lambda: top.group([last + 1]), f"from 0 to {last}")


@tf.function
def several(x: tf.Tensor, three: tf.Tensor, bit: tf.Tensor, yes: tf.Tensor, again: bool) -> tuple[tf.Tensor, ...]:
    """Calls in a branch and in a loop, and several dtypes at once."""
    ints, floats, bits = top.allreduce([three, x, bit])
    branch = tf.cond(yes, lambda: top.allreduce([x])[0], lambda: top.allreduce([2 * x])[0])
    for _ in tf.range(2):
        x = top.allreduce([x], "mean")[0]
    return ints, floats, bits, branch, x, tf.constant(again)


@tf.function(autograph=False)
def dealt(x: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
    with tf.GradientTape() as tape:
        tape.watch(x)
        found, received = top.alltoallv(x, rows)
        back, _ = top.alltoallv(tf.sqrt(found), received)  # rows on their way back, as after a look-up
    return found, received, back, tape.gradient(back, x)


for trial in range(12):  # other numbers each time, of which many are 0
    table = np.random.default_rng(trial).integers(0, 4, (world.size, world.size)) * (trial > 0)
    table[:, :1] *= trial % 3 > 0
    table[-1:] *= trial % 2
    own = np.arange(1.0, 1 + table[world.rank].sum(), dtype=np.float32)[:, None] + 100 * world.rank
    found, received, back, gradient = dealt(tf.constant(own), tf.constant(table[world.rank]))
    assert received.numpy().tolist() == table[:, world.rank].tolist()
    assert found.shape == (table[:, world.rank].sum(), 1)
    np.testing.assert_allclose(back, np.sqrt(own), rtol=1e-6)
    np.testing.assert_allclose(gradient, 0.5 / np.sqrt(own), rtol=1e-6)

# The first rank traces its function once more; the others do not know of it.
for again in (False, world.rank == 0):
    given = one * (world.rank + 1.0), tf.ones([3], tf.int32), tf.ones([], tf.bfloat16), tf.constant(True)
    ints, floats, bits, branch, mean, _ = several(*given, again)
    total = world.size * (world.size + 1) / 2
    assert ints.numpy().tolist() == [world.size] * 3
    assert float(bits) == world.size
    assert floats.numpy().tolist() == branch.numpy().tolist() == [total] * 2
    np.testing.assert_allclose(mean.numpy(), total / world.size, rtol=1e-6)


@tf.function(autograph=False)
def curvature(x: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            loss = tf.reduce_sum(top.allgather(x) ** 2) / 2
        product = tf.reduce_sum(inner.gradient(loss, x) * v)
    return outer.gradient(product, x)


v = np.arange(2.0, dtype=np.float32) + world.rank
np.testing.assert_allclose(curvature(one, tf.constant(v)).numpy(), world.size * v, rtol=1e-6)

# Rows larger than a block, which Horovod scatters by columns; and results without axes.
horovod.BLOCK_BYTES = 4 * 10 * world.size
wide = np.arange(37.0 * world.size, dtype=np.float32).reshape(world.size, 37)
scattered = tf.function(lambda x: [top.reducescatter(x, "mean"), top.allreduce([x[0, 1]], "mean")[0]], autograph=False)
for found, due in zip(scattered(tf.constant(wide * (world.rank + 1))), (wide[world.rank :][:1], 1.0), strict=True):
    np.testing.assert_allclose(found, due * (world.size + 1) / 2, rtol=1e-6)

# A step without compression has one operation for all that it exchanges, and nothing for gradients of it.
allreduce = GradientAllreduce(top)
traced = tf.function(lambda x: allreduce.average([x, 2 * x], [x[:1]]), autograph=False).get_concrete_function(one)
kinds = [op.type for op in traced.graph.get_operations()]
kind_of_one = {"horovod": "HorovodGroupedAllreduce", "mpi": "PyFunc", "mpi-gpu": "EagerPyFunc"}[BY]
assert [kind for kind in kinds if "Horovod" in kind or "PyFunc" in kind] == [kind_of_one] * (world.size > 1)
assert "IdentityN" not in kinds

for c in mine:
    for kind, most in (("fp16", 1e-3), ("bf16", 1e-2)):
        compressed = GradientAllreduce(c, kind)
        (mean,), _ = tf.function(lambda x, compressed=compressed: compressed.average([x], []), autograph=False)(
            one / 3 + c.rank
        )
        np.testing.assert_allclose(mean.numpy(), 1 / 3 + (c.ranks - 1) / 2, rtol=most)
if BY != "horovod" and world.size > 1:
    # A result that nobody uses is exchanged all the same, memory is used again, and another order is an error.
    unused = tf.function(lambda x: (top.allreduce([x], gradient=False), 2 * x)[1], autograph=False)
    for _ in range(3):
        assert np.array_equal(unused(one), [2, 2])
    large = tf.fill([1 << 18], np.float32(world.rank))
    both = tf.function(lambda x, y: top.allreduce([x, y, x[:0]], "mean", gradient=False), autograph=False)
    kept = [both(large, one * place)[1] for place in range(4)]
    assert [float(mean[0]) for mean in kept] == [0, 1, 2, 3], "what is still in use is not written to"
    # Functions with variables of their own, which TensorFlow may run side by side: one exchange after the other.
    weights = [tf.Variable([1.0 + place]) for place in range(2)]
    towers = [tf.function(lambda x, w=w: top.allreduce([w * x])[0], autograph=False) for w in weights]
    whole = tf.function(lambda x: [tower(x) for tower in towers], autograph=False)
    try:
        for _ in range(20):
            assert [float(found[0]) for found in whole(one[:1])] == [world.size, 2 * world.size]
    except tf.errors.OpError as error:
        assert RankError.__name__ in str(error), "another order is an error, on all ranks"
    swapped = ("a", "b") if world.is_chief else ("b", "a")
    in_graph = tf.function(lambda x: [top._allreduce(name, [x], "sum")[0] for name in swapped], autograph=False)
    raises(tf.errors.OpError, lambda: in_graph(one), "something else at the same")
    raises(RankError, lambda: top._allreduce("c", [one], "sum"), "something else at the same")

world.wait_asleep()  # a rank that leaves ends Horovod for those that still exchange in a group of theirs
print(f"rank {world.rank} of {world.size} is fine")
