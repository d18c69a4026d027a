"""Checks each collective operation and its gradient against numpy; run on any number of ranks up to 4."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hpc_train.distributed.world import join_world, set_up_tensorflow

world = join_world()
set_up_tensorflow(world)

import tensorflow as tf  # noqa: E402

from hpc_train.distributed.allreduce import GradientAllreduce  # noqa: E402
from hpc_train.distributed.collectives import Collectives  # noqa: E402
from hpc_train.distributed.horovod import collectives_of  # noqa: E402

GROUPS = {
    1: [[0]],
    2: [[1], [1, 0]],
    3: [[0, 1], [2], [2, 1], [0, 1, 2]],  # overlapping, and one that two ranks are not in
    4: [[0, 1], [2, 3], [0, 2], [1, 3], [1, 2, 3]],  # a grid of two by two
}
TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-6, "int32": 0.0}
REST = (2, 3)


@dataclass
class Case:
    """One operation on the ranks of a group: what each gives, and what is to come out."""

    dtype: str
    call: Callable[[tf.Tensor], tf.Tensor]
    given: list[np.ndarray]
    by: list[np.ndarray]
    results: list[np.ndarray]
    gradients: list[np.ndarray]


def arrays(seed: int, rows: Sequence[int]) -> list[np.ndarray]:
    """Small integers, which 16 bits add without rounding."""
    random = np.random.default_rng(seed)
    return [random.integers(-4, 5, (count, *REST)).astype(np.float64) for count in rows]


def blocks(array: np.ndarray, rows: Sequence[int]) -> list[np.ndarray]:
    return np.split(array, np.cumsum(rows)[:-1])


def cases_of(c: Collectives, dtype: str, total: int) -> dict[str, Case]:
    """With `total` rows, which the ranks may not divide."""
    n = c.ranks
    parts = [len(part) for part in np.array_split(np.arange(total), n)]
    tables = {"even": [parts] * n, "any": [[(i + 2 * j + total) % 4 for j in range(n)] for i in range(n)]}
    cases = {}
    given, by = arrays(total, [total] * n), arrays(total + 1, [total] * n)
    for op in ("sum", "mean") if dtype != "int32" else ("sum",):
        share = n if op == "mean" else 1
        cases[f"allreduce {op}"] = Case(
            dtype,
            lambda x, op=op: c.allreduce([x], op)[0],
            given,
            by,
            [sum(given) / share] * n,
            [sum(by) / share] * n,
        )
        own = arrays(total + 2, parts)
        cases[f"reducescatter {op}"] = Case(
            dtype,
            lambda x, op=op: c.reducescatter(x, op),
            given,
            own,
            [part / share for part in blocks(sum(given), parts)],
            [np.concatenate(own) / share] * n,
        )
    own = arrays(total + 3, parts)
    cases["allgather"] = Case(
        dtype, lambda x: c.allgather(x, total), own, by, [np.concatenate(own)] * n, blocks(sum(by), parts)
    )
    for kind, table in tables.items():
        sent, received = [sum(row) for row in table], [sum(column) for column in zip(*table, strict=True)]
        given, by = arrays(total + 4, sent), arrays(total + 5, received)
        forth = [blocks(array, row) for array, row in zip(given, table, strict=True)]
        back = [blocks(array, column) for array, column in zip(by, zip(*table, strict=True), strict=True)]
        cases[f"alltoall {kind}"] = Case(
            dtype,
            lambda x, rows=None if kind == "even" else table: c.alltoall(x, rows),
            given,
            by,
            [np.concatenate([forth[i][j] for i in range(n)]) for j in range(n)],
            [np.concatenate([back[j][i] for j in range(n)]) for i in range(n)],
        )
    return {f"{dtype}, {total} rows, {name}": case for name, case in cases.items()}


def check(those: Sequence[Collectives]) -> None:
    """All cases of all groups in one function: what a rank is not in, it has not in its graph."""
    cases = {
        (place, name): (c, case)
        for place, c in enumerate(those)
        for dtype in TOLERANCE
        for total in (2 * c.ranks, 2 * c.ranks + 1, c.ranks - 1)
        for name, case in cases_of(c, dtype, total).items()
    }
    keys = list(cases)
    float_keys = [key for key in keys if cases[key][1].dtype != "int32"]

    def tensors(those: Callable[[Case], list[np.ndarray]]) -> list[tf.Tensor]:
        return [tf.constant(those(case)[c.rank], case.dtype) for c, case in cases.values()]

    @tf.function
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


def compare(found: tf.Tensor, expected: np.ndarray, dtype: str, what: object) -> None:
    assert found.dtype == dtype, what
    numbers = tf.cast(found, tf.float64).numpy()
    np.testing.assert_allclose(numbers, expected, TOLERANCE[dtype], TOLERANCE[dtype], err_msg=str(what))


def raises(kind: type[Exception], action: Callable[[], object], words: str) -> None:
    try:
        action()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")


top = collectives_of(world, GROUPS[world.size])
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
for c in mine:  # and one after the other, as names begin anew
    check([c])

last, one = world.size - 1, tf.ones([2])
if world.size > 2:
    raises(ValueError, lambda: top.group([0, last]), "Horovod was started without it")
    raises(RuntimeError, lambda: collectives_of(world, [[0, last]]), "Horovod runs without")
    pair = top.group([last - 1, last])
    alone = pair.group([1]) if pair is not None else None
    assert (alone is not None) == (world.rank == last), "ranks of a group are numbered in it"
if world.size > 1:
    raises(RuntimeError, lambda: top.allreduce([one]), "outside of a tf.function")
    raises(ValueError, lambda: top.group([last + 1]), f"from 0 to {last}")


@tf.function
def several(x: tf.Tensor, yes: tf.Tensor, again: bool = False) -> tuple[tf.Tensor, ...]:
    """Calls in a branch and in a loop, and several dtypes at once."""
    ints, floats, bits = top.allreduce([tf.ones([3], tf.int32), x, tf.ones([], tf.bfloat16)])
    branch = tf.cond(yes, lambda: top.allreduce([x])[0], lambda: top.allreduce([2 * x])[0])
    for _ in tf.range(2):
        x = top.allreduce([x], "mean")[0]
    return ints, floats, bits, branch, x, tf.constant(again)


# The first rank traces its function once more; the others do not know of it.
for again in (False, world.rank == 0):
    ints, floats, bits, branch, mean, _ = several(one * (world.rank + 1.0), tf.constant(True), again)
    total = world.size * (world.size + 1) / 2
    assert ints.numpy().tolist() == [world.size] * 3
    assert float(bits) == world.size
    assert floats.numpy().tolist() == branch.numpy().tolist() == [total] * 2
    np.testing.assert_allclose(mean.numpy(), total / world.size, rtol=1e-6)


@tf.function
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

# A step without compression has one operation for all that it exchanges, and nothing for gradients of it.
allreduce = GradientAllreduce(top)
traced = tf.function(lambda x: allreduce.average([x, 2 * x], [x[:1]])).get_concrete_function(one)
kinds = [op.type for op in traced.graph.get_operations()]
assert [kind for kind in kinds if "Horovod" in kind] == ["HorovodGroupedAllreduce"] * (world.size > 1)
assert "IdentityN" not in kinds

for c in mine:
    for kind, most in (("fp16", 1e-3), ("bf16", 1e-2)):
        compressed = GradientAllreduce(c, kind)
        (mean,), _ = tf.function(lambda x, compressed=compressed: compressed.average([x], []))(one / 3 + c.rank)
        np.testing.assert_allclose(mean.numpy(), 1 / 3 + (c.ranks - 1) / 2, rtol=most)
print(f"rank {world.rank} of {world.size} is fine")
