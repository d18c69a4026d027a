"""What Collectives checks and computes without other ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.distributed import allreduce, collectives, optimizer_pieces
from hpc_train.distributed.allreduce import Compression, GradientAllreduce
from hpc_train.distributed.collectives import Collectives, OneRank, Op, cut, group_of
from hpc_train.distributed.horovod import collectives_of
from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.world import World
from tests.collective_cases import all_cases, compare


class Threads(Collectives):
    """Another implementation: ranks that are threads of this process, without TensorFlow's graphs."""

    def __init__(self, ranks: int, rank: int, board: list[Any], barrier: threading.Barrier) -> None:
        super().__init__(ranks, rank, "threads")
        self._board, self._barrier = board, barrier

    def group(self, ranks: Sequence[int]) -> Collectives | None:
        raise NotImplementedError

    def _of_all(self, given: Any) -> list[Any]:
        self._board[self.rank] = given
        self._barrier.wait()
        found = list(self._board)
        self._barrier.wait()
        return found

    def _allreduce(self, name: str, tensors: list[tf.Tensor], op: Op) -> list[tf.Tensor]:
        totals = [tf.add_n(those) for those in zip(*self._of_all(tensors), strict=True)]
        return [total / self.ranks for total in totals] if op == "mean" else totals

    def _reducescatter(self, name: str, tensor: tf.Tensor, op: Op) -> tf.Tensor:
        total = self._allreduce(name, [tensor], op)[0]
        return tf.split(total, cut(total.shape[0], self.ranks))[self.rank]

    def _allgather(self, name: str, tensor: tf.Tensor, rows: int | None) -> tf.Tensor:
        return tf.concat(self._of_all(tensor), 0)

    def _alltoall(self, name: str, given: tuple[tf.Tensor, Any]) -> tuple[tf.Tensor, tf.Tensor]:
        parts = [parts[self.rank] for parts in self._of_all(tf.split(*given))]
        return tf.concat(parts, 0), tf.stack([part.shape[0] for part in parts])


def on_threads(ranks: int, run: Callable[[Collectives], None]) -> None:
    """`run` on so many ranks at once."""
    board, barrier = [None] * ranks, threading.Barrier(ranks)

    def one(rank: int) -> None:
        try:
            run(Threads(ranks, rank, board, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(ranks) as pool:
        failures = [error for future in [pool.submit(one, r) for r in range(ranks)] if (error := future.exception())]
    for failure in failures:
        if not isinstance(failure, threading.BrokenBarrierError):
            raise failure


class Second(OneRank):
    """The second of three ranks, for what is checked before anything is sent."""

    def __init__(self) -> None:
        Collectives.__init__(self, 3, 1, "three")


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_an_implementation_needs_to_know_nothing_of_gradients(ranks: int) -> None:
    def run(c: Collectives) -> None:
        for name, case in all_cases(c).items():
            x = tf.constant(case.given[c.rank], case.dtype)
            with tf.GradientTape() as tape:
                tape.watch(x)
                result = case.call(x)
            compare(result, case.results[c.rank], case.dtype, name)
            if case.dtype != "int32":
                gradient = tape.gradient(result, x, tf.constant(case.by[c.rank], case.dtype))
                compare(gradient, case.gradients[c.rank], case.dtype, name)

    on_threads(ranks, run)


def test_rows_that_do_not_add_up_are_refused_when_they_are_known() -> None:
    dealt = tf.function(lambda x, rows: OneRank().alltoallv(x, rows), autograph=False)
    found, received = dealt(tf.ones([3, 2]), tf.constant([3]))
    assert (found.shape, received.numpy().tolist(), received.dtype) == ((3, 2), [3], tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match="do not add up"):
        dealt(tf.ones([3, 2]), tf.constant([2]))


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_gradients_are_averaged_with_16_bits_by_any_implementation(kind: Compression) -> None:
    def run(c: Collectives) -> None:
        given = [tf.fill([3], 60000.0), tf.constant(c.rank + 0.5), tf.constant([1, 2], tf.float64)]
        (large, scalar, doubles), (whole,) = GradientAllreduce(c, kind).average(given, [tf.constant([1 / 3 + c.rank])])
        assert np.allclose(large, 60000.0, rtol=1e-2), "a sum of large gradients does not overflow"
        assert float(scalar) == 1.5
        assert doubles.numpy().tolist() == [1, 2]
        assert np.isclose(whole.numpy()[0], 1 / 3 + 1, rtol=1e-6), "what is exact is not compressed"

    on_threads(3, run)


@pytest.mark.parametrize("kind", [None, "fp16"])
def test_gradients_of_more_elements_than_ranks_exchange_at_once_go_in_pieces(
    kind: Compression | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (collectives, allreduce, optimizer_pieces):
        monkeypatch.setattr(module, "MOST_ELEMENTS", 200)
    sizes = ((30, 20), (7, 5), (401,), (3,))
    wanted = [np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 64 for shape in sizes]
    models = [[keras.Variable(array) for array in wanted] for _ in range(3)]
    sharded = [
        optimizer_pieces.OptimizerPieces(keras.optimizers.SGD(1.0), variables, Mesh(3, 1, rank))
        for rank, variables in enumerate(models)
    ]

    def run(c: Collectives) -> None:
        averaging = GradientAllreduce(c, kind)
        given = [tf.constant(array * (c.rank + 1) / 2) for array in wanted]
        means, (exact,) = averaging.average(given, [given[0]])
        for found, expected in zip([*means, exact], [*wanted, wanted[0]], strict=True):
            np.testing.assert_allclose(found, expected, rtol=2e-3)
        pieces = sharded[c.rank]
        own = pieces.scattered(dict(enumerate(given)), averaging.scattered)
        with pieces.updating(averaging.groups):
            for number, gradient in own.items():
                pieces.held[number].assign_sub(gradient)
        for variable in models[c.rank]:
            np.testing.assert_allclose(variable.numpy(), 0, atol=2e-2 if kind else 1e-6)

    on_threads(3, run)


@given(st.integers(0, 100), st.integers(1, 20))
def test_rows_are_cut_as_numpy_splits_arrays(rows: int, ranks: int) -> None:
    assert cut(rows, ranks) == [len(part) for part in np.array_split(np.arange(rows), ranks)]


def test_a_group_is_in_ascending_order() -> None:
    assert group_of([3, 0, 2], 4) == (0, 2, 3)
    assert group_of(np.array([1]), 2) == (1,)


@pytest.mark.parametrize("ranks", [[], [1, 1], [-1, 0], [0, 4]])
def test_a_group_of_other_ranks_is_refused(ranks: list[int]) -> None:
    with pytest.raises(ValueError, match=r"give at least one rank, each once, from 0 to 3"):
        group_of(ranks, 4)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_one_rank_gets_back_what_it_gives_with_its_gradient(traced: bool, dtype: str) -> None:
    one = collectives_of(World.alone(), [[0]])
    calls: list[Callable[[Any], Any]] = [
        lambda x: one.allreduce([x], "mean")[0],
        lambda x: one.allreduce([x], gradient=False)[0],
        one.reducescatter,
        one.allgather,
        one.alltoall,
        lambda x: one.alltoallv(x, tf.constant([2]))[0],
    ]

    def run(x: Any) -> list[Any]:
        found = []
        for call in calls:
            with tf.GradientTape() as tape:
                tape.watch(x)
                result = call(x)
            found += [result, tape.gradient(result, x, 3 * x)]
        return found

    x = tf.constant([[1.0, 2.0], [3.0, 4.0]], dtype)
    found = (tf.function(run) if traced else run)(x)
    for result, gradient in zip(found[::2], found[1::2], strict=True):
        assert result.numpy().tolist() == x.numpy().tolist()
        assert gradient.numpy().tolist() == (3 * x).numpy().tolist()
    assert (one.ranks, one.rank) == (1, 0)
    assert one.group([0]) is one


def test_one_rank_averages_by_doing_nothing() -> None:
    gradients, exact = [tf.ones([2]), tf.ones([1], tf.int32)], [tf.ones([])]
    averaged, kept = GradientAllreduce(OneRank(), "fp16").average(gradients, exact)
    assert all(a is b for a, b in zip([*averaged, *kept], [*gradients, *exact], strict=True))


FLOATS = tf.TensorSpec([4, 2])


@pytest.mark.parametrize(
    ("call", "spec", "words"),
    [
        (lambda c, x: c.allreduce([x]), tf.TensorSpec([2], tf.bool), r"a tensor of bool: ranks exchange tensors of"),
        (lambda c, x: c.allreduce([x], "mean"), tf.TensorSpec([2], tf.int32), r"of int32: ranks exchange means of"),
        (lambda c, x: c.allreduce([x]), tf.TensorSpec([2**16, 2**15]), r"2,147,483,648 elements: .* at most"),
        (lambda c, x: c.allgather(x), tf.TensorSpec([2**30]), r"3,221,225,472 elements"),
        (lambda c, x: c.alltoall(x, [[0] * 3, [2**30, 0, 0], [0, 2**31, 0]]), tf.TensorSpec([2**30]), r"2,147,483,648"),
        (lambda c, x: c.reducescatter(x), tf.TensorSpec([None, 2]), r"its shape must be known"),
        (lambda c, x: c.reducescatter(x), tf.TensorSpec([]), r"cannot be cut into rows"),
        (lambda c, x: c.allgather(x, 4), FLOATS, r"allgather of 4 rows: rank 1 of 3 gives 1, not 4"),
        (lambda c, x: c.alltoall(x, [[1, 1, 1]] * 3), FLOATS, r"rank 1 of 3 has 4 rows to give"),
        (lambda c, x: c.alltoall(x, [[4]]), FLOATS, r"give it a number for each rank and receiver"),
        (lambda c, x: c.alltoallv(x, tf.constant([4])), FLOATS, r"3"),
        (lambda c, x: c.alltoallv(x, [1, 1, 2]), tf.TensorSpec([4, None]), r"only how many may be open"),
        (lambda c, x: c.alltoallv(x, [1, 1, 2]), tf.TensorSpec([4], tf.bool), r"a tensor of bool"),
    ],
)
def test_what_cannot_be_exchanged_is_refused_where_it_is_traced(
    call: Callable[[Collectives, Any], Any], spec: tf.TensorSpec, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        tf.function(lambda x: call(Second(), x), input_signature=[spec], autograph=False).get_concrete_function()
