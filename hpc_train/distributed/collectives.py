"""Collectives: tensors exchanged between ranks inside a tf.function. One interface, whatever carries the tensors."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary

from hpc_train.lazy import tf

Op = Literal["sum", "mean"]

FLOATS = ("float16", "bfloat16", "float32", "float64")
DTYPES = (*FLOATS, "int32", "int64")
MOST_ELEMENTS = 2**31 - 1
"""Of a tensor given or returned: MPI-3 counts are 32-bit."""

_calls: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()
"""For each graph of a function that is traced, how many names begin with a label."""


def cut(rows: int, ranks: int) -> list[int]:
    """How many of `rows` each rank has: as many, and where they do not divide, one more on each of the first ranks."""
    return [rows // ranks + (rank < rows % ranks) for rank in range(ranks)]


def in_pieces(tensor: tf.Tensor, most: int) -> list[tf.Tensor]:
    """`tensor`, or where it has more than `most` elements, flat pieces of it that have at most as many."""
    size = tensor.shape.num_elements()
    if size is None or size <= most:
        return [tensor]
    flat = tf.reshape(tensor, [-1])
    return [flat[begin : begin + most] for begin in range(0, size, most)]


def group_of(ranks: Sequence[int], size: int) -> tuple[int, ...]:
    """`ranks` in ascending order.

    Raises:
        ValueError: There are none, one is given twice, or one is not among 0 to `size` - 1.
    """
    members = tuple(sorted(int(rank) for rank in ranks))
    if not members or len(set(members)) < len(members) or members[0] < 0 or members[-1] >= size:
        raise ValueError(f"group of ranks {list(ranks)}: give at least one rank, each once, from 0 to {size - 1}")
    return members


class Collectives(ABC):
    """Exchanges tensors between ranks, inside a tf.function.

    Methods that take tensors are collective: all ranks call them in the same order, with one dtype. "Rows" are
    dimension 0; where they are cut into parts, `cut` says how. The dtype is one of DTYPES, and a tensor has fewer than
    2^31 elements, before and after. But for `allreduce` and `alltoallv`, shapes are static: known when the function is
    traced. What is exchanged depends on the function's arguments: operations on constants are computed when TensorFlow
    optimizes a graph, which each rank does when it likes.

    Gradients are those of the sum of all ranks' losses, of any order; to compute one is collective, too, so that either
    all ranks differentiate a result or none does. They are made here, for all implementations.

    An implementation has `group` and the abstract methods with an underscore, whose arguments are checked, and whose
    results need neither gradients nor static shapes. Each gets a name, by which the ranks know what belongs together:
    TensorFlow runs independent operations, and computes their gradients, in any order; an implementation that needs one
    order has `_recorded`. Names count the calls of a
    function that is traced, beginning with `label`; those of gradients begin with the name of what they are of.

    Attributes:
        ranks: How many take part. rank: this one's number among them, from 0.
        label: The same on these ranks, another one for each group.
    """

    def __init__(self, ranks: int, rank: int, label: str) -> None:
        self.ranks, self.rank, self.label = ranks, rank, label

    def allreduce(self, tensors: Sequence[tf.Tensor], op: Op = "sum", gradient: bool = True) -> list[tf.Tensor]:
        """The sum or mean of each tensor over all ranks, the same to the bit on all. Those of one dtype go together.

        Args:
            tensors: Each of one shape on all ranks.
            gradient: False: none is asked for, which saves an operation that holds all tensors.

        Raises:
            ValueError: A dtype that is not allowed, a mean of integers, or too many elements.
        """
        for tensor in tensors:
            _check(tensor, op)
        if not gradient or not tensors:
            return self._allreduce(self._name("allreduce"), list(tensors), op)
        reduced: list[tf.Tensor] = self._differentiable(
            "allreduce",
            lambda name, *given: self._allreduce(name, list(given), op),
            lambda inner, *by: inner.allreduce(by, op),
            *tensors,
        )
        return reduced

    def reducescatter(self, tensor: tf.Tensor, op: Op = "sum") -> tf.Tensor:
        """This rank's rows of the sum or mean over all ranks: [R, …] to [cut(R, ranks)[rank], …].

        Args:
            tensor: Of one shape on all ranks.

        Raises:
            ValueError: As `allreduce`, or a shape that is not static, or without dimensions.
        """
        rows, *others = _shape(tensor, op)
        own = cut(rows, self.ranks)[self.rank]
        return self._differentiable(
            "reducescatter",
            lambda name, given: _shaped(self._reducescatter(name, given, op), own, others),
            lambda inner, by: inner.allgather(by / self.ranks if op == "mean" else by, rows),
            tensor,
        )

    def allgather(self, tensor: tf.Tensor, rows: int | None = None) -> tf.Tensor:
        """All ranks' tensors, one below the other by rank: [cut(R, ranks)[rank], …] to [R, …].

        Args:
            rows: R. None: all ranks have as many.

        Raises:
            ValueError: As `reducescatter`, or `tensor` has another number of rows than this rank's of R.
        """
        own, *others = _shape(tensor)
        rows = own * self.ranks if rows is None else rows
        due = cut(rows, self.ranks)[self.rank]
        if own != due:
            raise ValueError(f"allgather of {rows} rows: rank {self.rank} of {self.ranks} gives {due}, not {own}")
        _count(rows, others)
        return self._differentiable(
            "allgather",
            lambda name, given: _shaped(self._allgather(name, given, rows), rows, others),
            lambda inner, by: inner.reducescatter(by),
            tensor,
        )

    def alltoall(self, tensor: tf.Tensor, rows: Sequence[Sequence[int]] | None = None) -> tf.Tensor:
        """The parts that all ranks have for this one, one below the other by rank: [R, …] to [S, …].

        Args:
            tensor: Its parts for rank 0, 1, … one below the other.
            rows: How many rows rank i gives to rank j, as rows[i][j]; the same on all ranks. So R is the sum of this
                rank's row, and S that of its column. None: `cut(R, ranks)` on each rank, all having R rows.

        Raises:
            ValueError: As `reducescatter`, or `rows` does not fit.
        """
        own, *others = _shape(tensor)
        table = [list(given) for given in rows or [cut(own, self.ranks)] * self.ranks]
        if [len(given) for given in table] != [self.ranks] * self.ranks or sum(table[self.rank]) != own:
            raise ValueError(
                f"alltoall: rank {self.rank} of {self.ranks} has {own} rows to give, but rows is {table}: "
                "give it a number for each rank and receiver, this rank's adding up to what it has"
            )
        received = [given[self.rank] for given in table]
        _count(sum(received), others)
        return self._differentiable(
            "alltoall",
            lambda name, given: _shaped(self._alltoall(name, (given, table[self.rank]))[0], sum(received), others),
            lambda inner, by: inner.alltoall(by, list(zip(*table, strict=True))),
            tensor,
        )

    def alltoallv(self, tensor: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """As `alltoall`, where each rank knows only what it gives, and that only when it runs: [R, …] to [S, …].

        Args:
            tensor: Its parts for rank 0, 1, … one below the other; all but its rows is static, and alike on all ranks.
            rows: How many rows each rank gets of it, int32 or int64 `[ranks]`; may be 0.

        Returns:
            What this rank gets, with a number of rows that is not static, and how many rows of it each rank has given,
            int64 `[ranks]`.

        Raises:
            ValueError: A dtype that is not allowed, or a shape of which more is open than rows. In a tf.function,
            tf.errors.InvalidArgumentError when it runs: `rows` are not those of `tensor`, or it has too many elements.
        """
        _check(tensor)
        if not tensor.shape.rank or not tensor.shape[1:].is_fully_defined():
            raise ValueError(f"a tensor of shape {tensor.shape} cannot be dealt by rows: only how many may be open")
        others = tensor.shape[1:].as_list()
        with tf.device("CPU"):
            rows = tf.cast(tf.ensure_shape(rows, [self.ranks]), tf.int64)
            given = tf.shape(tensor, tf.int64)[0]
            checks = [
                tf.debugging.assert_equal(tf.reduce_sum(rows), given, "alltoallv: `rows` do not add up to those given"),
                tf.debugging.assert_less_equal(
                    given * math.prod(others), tf.constant(MOST_ELEMENTS, tf.int64), f"alltoallv: {_TOO_MANY}"
                ),
            ]
            with tf.control_dependencies([check for check in checks if check is not None]):
                rows = tf.identity(rows)
        name, inner = self._name("alltoallv"), copy.copy(self)
        inner.label = name

        def call(given: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., tf.Tensor]]:
            found, received = self._alltoall(name, (given, rows))
            received = tf.cast(tf.ensure_shape(received, [self.ranks]), tf.int64)
            return [_shaped(found, None, others), received], lambda by, _: inner.alltoallv(by, received)[0]

        found, received = self._recorded(call, tensor)
        return found, received

    @abstractmethod
    def group(self, ranks: Sequence[int]) -> Collectives | None:
        """Those of some of these ranks; None on the others. Collective; called before the first step.

        Args:
            ranks: As they are numbered here. In the group they are numbered from 0 in ascending order.

        Raises:
            ValueError: No such ranks, or a group that this implementation has to know earlier than now.
        """

    @abstractmethod
    def _allreduce(self, name: str, tensors: list[tf.Tensor], op: Op) -> list[tf.Tensor]: ...

    @abstractmethod
    def _reducescatter(self, name: str, tensor: tf.Tensor, op: Op) -> tf.Tensor: ...

    @abstractmethod
    def _allgather(self, name: str, tensor: tf.Tensor, rows: int | None) -> tf.Tensor:
        """rows: Of all ranks together; None: all have as many, which may be known only when it runs."""

    @abstractmethod
    def _alltoall(self, name: str, given: tuple[tf.Tensor, list[int] | tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """given: a tensor, and how many rows each rank gets of it. Returns what comes, and how many rows of each."""

    def _differentiable(
        self, kind: str, forward: Callable[..., Any], backward: Callable[..., Any], *tensors: tf.Tensor
    ) -> Any:
        """forward: what comes of a name and tensors. backward: their gradients, by the given collectives."""
        name, inner = self._name(kind), copy.copy(self)
        inner.label = name
        return self._recorded(lambda *given: (forward(name, *given), partial(backward, inner)), *tensors)

    def _recorded(self, call: Callable[..., Any], *tensors: tf.Tensor) -> Any:
        """What `call` makes of `tensors`, recorded for tapes; it returns its result, and what makes gradients of it."""
        return tf.custom_gradient(call)(*tensors)

    def _name(self, kind: str) -> str:
        return call_name(self.label, kind)


def as_dtype(dtype: tf.DType, tensor: tf.Tensor) -> tf.Tensor:
    """`tensor` whose bits have travelled as another dtype of as many, as what they are."""
    return tf.bitcast(tensor, dtype) if tensor.dtype != dtype else tensor


def call_name(label: str, kind: str) -> str:
    """A name for one call of `label`, by which ranks know what belongs together: it has the number of the call.

    Calls are counted for each function that is traced; of a branch or a loop, in the function that it is in.
    """
    graph = tf.compat.v1.get_default_graph()
    while graph.building_function and graph.outer_graph.building_function:
        graph = graph.outer_graph
    calls = _calls.setdefault(graph, Counter())
    calls[label] += 1
    return f"{label}.{calls[label]}.{kind}"


class OneRank(Collectives):
    """Those of a single rank, which gets back what it gives. Local; also outside of a tf.function."""

    def __init__(self) -> None:
        super().__init__(1, 0, "one")

    def group(self, ranks: Sequence[int]) -> Collectives:
        """The rank itself."""
        group_of(ranks, 1)
        return self

    def _same(self, name: str, given: Any, how: Any = None) -> Any:
        return given

    _allreduce = _reducescatter = _allgather = _alltoall = cast(Any, _same)  # of rows: it gets as many as it gives


_TOO_MANY = f"ranks exchange at most {MOST_ELEMENTS:,} elements at once; give a step fewer rows"
_WHAT = {"sum": "tensors", "mean": "means"}


def _check(tensor: tf.Tensor, op: Op = "sum") -> None:
    allowed = FLOATS if op == "mean" else DTYPES
    if tensor.dtype.name not in allowed:
        raise ValueError(f"a tensor of {tensor.dtype.name}: ranks exchange {_WHAT[op]} of {', '.join(allowed)}")
    if tensor.shape.is_fully_defined():
        _count(1, tensor.shape)


def _shape(tensor: tf.Tensor, op: Op = "sum") -> list[int]:
    _check(tensor, op)
    if not tensor.shape.is_fully_defined() or not tensor.shape.rank:
        raise ValueError(
            f"a tensor of shape {tensor.shape} cannot be cut into rows: its shape must be known, and not ()"
        )
    shape: list[int] = tensor.shape.as_list()
    return shape


def _count(rows: int, others: Sequence[int]) -> None:
    elements = math.prod([rows, *others])
    if elements > MOST_ELEMENTS:
        raise ValueError(f"a tensor of {elements:,} elements: ranks exchange at most {MOST_ELEMENTS:,} at once; cut it")


def _shaped(tensor: tf.Tensor, rows: int | None, others: Sequence[int]) -> tf.Tensor:
    tensor.set_shape([rows, *others])
    return tensor
