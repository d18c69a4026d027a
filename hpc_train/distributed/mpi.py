"""Collectives by MPI itself, through mpi4py: for the day that Horovod does not build."""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from hpc_train.distributed.collectives import Collectives, OneRank, Op, as_dtype, cut, group_of
from hpc_train.distributed.tensors import aligned_zeros, in_huge_pages, memory_of, view_of
from hpc_train.distributed.world import World
from hpc_train.errors import RankError
from hpc_train.lazy import tf

if TYPE_CHECKING:
    from mpi4py import MPI

LARGE_BYTES = 1 << 20
"""A tensor of so many is sent from where TensorFlow has it; smaller ones are copied into one message."""
BLOCK_BYTES = 1 << 20
"""Of a part, so many are added up at a time, while they are in the cache."""
_LAST_TURN = "hpc_train.last_turn"
_WORDS = {2: np.int16, 4: np.int32, 8: np.int64}
"""Types that MPI knows, for what is only moved, by the bytes of a number."""

_of_worlds: WeakKeyDictionary[World, MpiCollectives] = WeakKeyDictionary()


def collectives_of(world: World) -> Collectives:
    """Those of all ranks of `world`. Collective.

    Raises:
        UserError: This MPI does not let several threads call it at once, as TensorFlow's do beside ours.
    """
    if world.comm is None:
        return OneRank()
    if world not in _of_worlds:
        world.check_threads("run.allreduce: mpi")
        _of_worlds[world] = MpiCollectives(world.comm.Dup(), "mpi")
    return _of_worlds[world]


class MpiCollectives(Collectives):
    """Those of the ranks of a communicator, each call an operation that waits in one of TensorFlow's threads.

    One thread exchanges at a time, so all ranks have to make their exchanges in one order. TensorFlow runs what has
    side effects, as these have for it, in the order of the program, whether its results are used or not; and functions
    and branches by the variables that they have in common, of which these have one (`_Turn.taken`). Gradients it would
    compute in an order that depends on all that a rank has in its graph; here each waits for that of the call after it
    (see `_recorded`), so that they come in the reverse order of the calls, where the tape is in the function of the
    calls. Ranks say to each other what they are about to exchange, so that another order is an error, once and for all:
    a RankError, which TensorFlow makes one of its own of inside a tf.function.

    Tensors of a GPU go through the host, but see gpu_memory.py.

    Args:
        comm: For nothing else. label: see Collectives.
    """

    def __init__(self, comm: MPI.Intracomm, label: str) -> None:
        super().__init__(comm.Get_size(), comm.Get_rank(), label)
        self._comm, self._turn = comm, _Turn()
        self._groups: dict[tuple[int, ...], Collectives | None] = {}

    def group(self, ranks: Sequence[int]) -> Collectives | None:
        """Of any ranks; made when first asked for."""
        members = group_of(ranks, self.ranks)
        if len(members) == self.ranks:
            return self
        if members not in self._groups:
            self._groups[members] = self._made(members, f"{self.label}.{len(self._groups)}")
        return self._groups[members]

    def _made(self, members: tuple[int, ...], label: str) -> Collectives | None:
        joins = self.rank in members
        if len(members) == 1:
            return OneRank() if joins else None
        comm: Any = self._comm.Split(int(joins), self.rank)
        if joins:
            return self._like(comm, label)
        comm.Free()
        return None

    def _like(self, comm: MPI.Intracomm, label: str) -> MpiCollectives:
        """Of other ranks, to which tensors go in the same way."""
        return MpiCollectives(comm, label)

    def _allreduce(self, name: str, tensors: list[tf.Tensor], op: Op) -> list[tf.Tensor]:
        given = [_summed_as(tensor) for tensor in tensors]
        messages = _messages(given)
        found = self._summed(name, [[given[place] for place in one] for one in messages], op)
        reduced = list(tensors)
        for one, message in zip(messages, found, strict=True):
            sizes = [given[place].shape.num_elements() for place in one]
            for place, part in zip(one, tf.split(message, sizes) if len(one) > 1 else [message], strict=True):
                shape = given[place].shape
                whole = tf.reshape(part, shape) if shape.is_fully_defined() else tf.ensure_shape(part, shape)
                reduced[place] = tf.cast(whole, tensors[place].dtype)
        return reduced

    def _summed(self, name: str, messages: list[list[tf.Tensor]], op: Op) -> list[tf.Tensor]:
        """Of each message the sum or mean: flat where several tensors go with it, or a number does."""
        results = [(_shape_of(one), one[0].dtype) for one in messages]
        reduce = partial(self._reduced, op, list(map(len, messages)))
        return self._call(name, reduce, [tensor for one in messages for tensor in one], results)

    def _reducescatter(self, name: str, tensor: tf.Tensor, op: Op) -> tf.Tensor:
        given = _summed_as(tensor)
        rows, *others = given.shape
        shape = [cut(rows, self.ranks)[self.rank], *others]
        (found,) = self._call(name, partial(self._scattered, op), [given], [(shape, given.dtype)])
        return tf.cast(found, tensor.dtype)

    def _allgather(self, name: str, tensor: tf.Tensor, rows: int | None) -> tf.Tensor:
        given = _sent_as(tensor)
        own, *others = _shape(given)
        (found,) = self._call(
            name, self._gathered, [given], [([own * self.ranks if rows is None else rows, *others], given.dtype)]
        )
        return as_dtype(tensor.dtype, found)

    def _alltoall(self, name: str, given: tuple[tf.Tensor, list[int] | tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        tensor, rows = _sent_as(given[0]), tf.cast(given[1], tf.int64)
        with tf.device("CPU"), self._turn.taken() as over:  # in memory of its own: how much is known only then
            run = self._in_turn(name, self._dealt)
            found, received = tf.numpy_function(run, [tensor, rows], [tensor.dtype, tf.int64])
            if not tf.executing_eagerly():
                over(received)
        return as_dtype(given[0].dtype, found), received

    def _call(
        self,
        name: str,
        exchange: Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None],
        tensors: list[tf.Tensor],
        results: list[tuple[Any, tf.DType]],
    ) -> list[tf.Tensor]:
        """An operation for `exchange`, which gets the tensors' values, and the results' memory to write into.

        That is TensorFlow's, which keeps what it has once had: results in other memory would need as much again.

        Args:
            results: Shape and dtype of each.
        """
        count = len(tensors)

        def exchanged(*arrays: np.ndarray) -> Any:
            for array in arrays[count:]:
                in_huge_pages(array)
            exchange(arrays[:count], arrays[count:])
            return arrays[count:]  # the same memory, by which all that uses it waits; Grappler loses edges of control

        if not tensors:
            return []
        run = self._in_turn(name, exchanged)
        with tf.device("CPU"):
            with tf.control_dependencies(tensors), self._turn.taken() as over:
                # not before those, and its turn: or all results take memory as a step begins
                memory = [tf.raw_ops.Empty(shape=tf.cast(shape, tf.int32), dtype=dtype) for shape, dtype in results]
                if tf.executing_eagerly():  # a numpy_function gets copies
                    run(*map(view_of, tensors), *map(memory_of, memory))
                    return memory
                found = _listed(tf.numpy_function(run, [*tensors, *memory], [dtype for _, dtype in results]))
                over(found[0])
            return [tf.ensure_shape(tensor, given.shape) for tensor, given in zip(found, memory, strict=True)]

    def _in_turn(
        self, name: str, exchange: Callable[..., Any], ready: Callable[..., Sequence[Any]] | None = None
    ) -> Callable[..., Any]:
        """ready: Makes what `exchange` is given; where that fails on a rank, none of them exchanges anything."""
        number = zlib.crc32(name.encode())

        def run(*given: Any) -> Any:
            with self._turn.lock:
                if self._turn.failure is not None:  # the others may not be here any more
                    raise self._turn.failure
                problem = None
                try:
                    given = given if ready is None else tuple(ready(*given))
                except Exception as error:  # whatever it is, the others must not wait
                    problem = error
                self._agree(name, number, problem)
                return exchange(*given)

        return run

    def _agree(self, name: str, number: int, problem: Exception | None) -> None:
        """RankError on all ranks where one cannot exchange, or is about to exchange something else."""
        from mpi4py import MPI

        own = np.array([number, -number, problem is not None], np.int64)
        most = np.empty_like(own)
        self._comm.Allreduce(own, most, op=MPI.MAX)
        if most[2]:
            why = "as another rank cannot" if problem is None else f"{type(problem).__name__}: {problem}"
            self._turn.failure = RankError(f"rank {self.rank} of {self.ranks} cannot exchange {name}: {why}")
            raise self._turn.failure from problem
        if most[0] != -most[1]:
            self._turn.failure = RankError(
                f"rank {self.rank} of {self.ranks} exchanges {name}, and another rank something else at the same time: "
                "all ranks have to call collectives in the same order"
            )
            raise self._turn.failure

    def _reduced(self, op: Op, lengths: list[int], given: Sequence[np.ndarray], reduced: Sequence[np.ndarray]) -> None:
        """lengths: How many of those given go with each message that is reduced."""
        from mpi4py import MPI

        arrays = iter(given)
        for length, message in zip(lengths, reduced, strict=True):
            if length == 1:
                self._comm.Allreduce(np.ascontiguousarray(next(arrays)), message)
            else:
                np.concatenate([next(arrays).reshape(-1) for _ in range(length)], out=message)
                self._comm.Allreduce(MPI.IN_PLACE, message)
            if op == "mean":
                self._divide(message)

    def _scattered(self, op: Op, given: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
        """Each rank gets its part of all, block by block, and adds them up by rank.

        Open MPI's Reduce_scatter takes three to five times as long: it copies each part through new memory.
        """
        (array,), (found,) = given, results
        rows, *rest = array.shape
        parts = np.array(cut(rows, self.ranks)) * math.prod(rest)
        begins, own = np.cumsum(parts) - parts, int(parts[self.rank])
        flat, most = found.reshape(-1), max(1, BLOCK_BYTES // array.itemsize)
        received = self._turn.blocks(self.ranks * min(own, most) * array.itemsize).view(array.dtype)
        for begin in range(0, int(parts.max(initial=0)), most):
            sizes, size = np.clip(parts - begin, 0, most), min(max(own - begin, 0), most)
            taken = [size] * self.ranks, [size * rank for rank in range(self.ranks)]
            self._comm.Alltoallv([array.reshape(-1), (sizes, begins + begin)], [received, taken])
            block = received[: self.ranks * size].reshape(self.ranks, size)
            np.add.reduce(block, axis=0, out=flat[begin : begin + size])
        if op == "mean":
            self._divide(found)

    def _gathered(self, given: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
        (array,), (found,) = given, results
        size = math.prod(array.shape[1:])
        sizes = [rows * size for rows in cut(found.shape[0], self.ranks)]
        self._comm.Allgatherv(_words(array), [_words(found), sizes])

    def _dealt(self, array: np.ndarray, given: np.ndarray) -> list[np.ndarray]:
        rows = np.empty(self.ranks, np.int64)
        self._comm.Alltoall(given, rows)
        rest = array.shape[1:]
        size, count = math.prod(rest), int(rows.sum())
        found = aligned_zeros(count * size * array.itemsize).view(array.dtype).reshape(count, *rest)
        self._comm.Alltoallv([_words(array), (given * size).tolist()], [_words(found), (rows * size).tolist()])
        return [found, rows]

    def _divide(self, array: np.ndarray) -> None:
        array *= array.dtype.type(1 / self.ranks)

    def _recorded(self, call: Callable[..., Any], *tensors: tf.Tensor) -> Any:
        """Each call takes a turn from the one before it, so that a tape visits those before it after it."""
        from tensorflow.python.eager import record  # nothing public tells

        if not record.should_record_backprop(tensors):
            return super()._recorded(call, *tensors)
        graph = tf.compat.v1.get_default_graph()
        turns = graph.get_collection_ref(_LAST_TURN)  # a branch or a loop begins with those of the function it is in
        before = [turn for turn in turns if tf.executing_eagerly() or getattr(turn, "graph", None) is graph]

        several = False

        def in_turn(turn: tf.Tensor, *given: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., list[Any]]]:
            nonlocal several
            found, gradient = call(*given)
            several = isinstance(found, list)
            return [tf.identity(turn), *_listed(found)], lambda _, *by: [None, *_listed(gradient(*by))]

        turn, *found = tf.custom_gradient(in_turn)(before[0] if before else tf.zeros([]), *tensors)
        turns[:] = [turn]
        return found if several else found[0]


class _Turn:
    """Who exchanges: one thread at a time. Shared by all copies of a MpiCollectives.

    Attributes:
        failure: Why nothing is exchanged any more.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.failure: RankError | None = None
        self._blocks = np.empty(0, np.uint8)
        with tf.init_scope(), tf.device("CPU"):
            self._count = tf.Variable(0, trainable=False)

    def blocks(self, nbytes: int) -> np.ndarray:
        """Memory for as long as the lock is held."""
        if self._blocks.size < nbytes:
            self._blocks = aligned_zeros(nbytes)
        return self._blocks[:nbytes]

    @contextmanager
    def taken(self) -> Iterator[Callable[[tf.Tensor], None]]:
        """A context for the operations of one exchange of a graph; what it gives is called with the one that ends it.

        They read a variable before and write it after: so TensorFlow keeps the order of exchanges and of branches,
        loops and functions that exchange, too, which it would else run at once.
        """

        def over(done: tf.Tensor) -> None:
            with tf.control_dependencies([done]):
                self._count.assign_add(1, read_value=False)

        with tf.control_dependencies([] if tf.executing_eagerly() else [self._count.read_value()]):
            yield over


def _messages(tensors: Sequence[tf.Tensor]) -> list[list[int]]:
    """Places of tensors that are sent together: small ones of a dtype, and each other one alone."""
    together: dict[tf.DType, list[int]] = {}
    alone = []
    for place, tensor in enumerate(tensors):
        elements = tensor.shape.num_elements()
        if elements is None or elements * tensor.dtype.size >= LARGE_BYTES:
            alone.append([place])
        else:
            together.setdefault(tensor.dtype, []).append(place)
    return [*together.values(), *alone]


def _shape_of(tensors: Sequence[tf.Tensor]) -> list[Any]:
    """Of one as it is; of several, or a number, of which numpy_function gives no array to write into, flat."""
    if len(tensors) == 1 and tensors[0].shape.rank != 0:
        return _shape(tensors[0])
    return [sum(tensor.shape.num_elements() for tensor in tensors)]


def _shape(tensor: tf.Tensor) -> list[Any]:
    """Static, or what it is when it runs."""
    found: list[Any] = tensor.shape.as_list() if tensor.shape.is_fully_defined() else tf.unstack(tf.shape(tensor))
    return found


def _words(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(_WORDS[array.dtype.itemsize])


def _listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, list | tuple) else [found]


def _summed_as(tensor: tf.Tensor) -> tf.Tensor:
    """MPI knows no numbers of 16 bits; in float32 their sum is rounded once."""
    return tf.cast(tensor, tf.float32) if tensor.dtype in (tf.float16, tf.bfloat16) else tensor


def _sent_as(tensor: tf.Tensor) -> tf.Tensor:
    """Numpy knows no bfloat16: its bits travel as int16."""
    return tf.bitcast(tensor, tf.int16) if tensor.dtype == tf.bfloat16 else tensor
