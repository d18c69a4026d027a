"""Collectives by MPI itself, through mpi4py: for the day that Horovod does not build."""

from __future__ import annotations

import math
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from hpc_train.distributed.collectives import Collectives, OneRank, Op, as_dtype, cut, group_of
from hpc_train.distributed.tensors import aligned, aligned_zeros
from hpc_train.distributed.world import World
from hpc_train.errors import RankError
from hpc_train.lazy import tf

if TYPE_CHECKING:
    from mpi4py import MPI

LARGE_BYTES = 1 << 20
"""A tensor of so many is sent from where TensorFlow has it; smaller ones are copied into one message."""
BLOCK_BYTES = 1 << 20
"""Of a part, so many are added up at a time, while they are in the cache."""
LAYOUTS_KEPT = 64
"""Of which memory is kept for the next exchange."""
_LAST_TURN = "hpc_train.last_turn"
_WORDS = {2: np.int16, 4: np.int32, 8: np.int64}
"""Types that MPI knows, for what is only moved, by the bytes of a number."""

Kind = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and dtype of an array."""

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

    Tensors of a GPU go through the host.

    Args:
        comm: For nothing else. label: see Collectives.
    """

    def __init__(self, comm: MPI.Intracomm, label: str) -> None:
        super().__init__(comm.Get_size(), comm.Get_rank(), label)
        self._comm, self._memory, self._turn = comm, _Memory(), _Turn()
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
            return MpiCollectives(comm, label)
        comm.Free()
        return None

    def _allreduce(self, name: str, tensors: list[tf.Tensor], op: Op) -> list[tf.Tensor]:
        reduced = self._call(name, partial(self._reduced, op), [_summed_as(tensor) for tensor in tensors])
        for found, tensor in zip(reduced, tensors, strict=True):
            found.set_shape(tensor.shape)
        return [tf.cast(found, tensor.dtype) for found, tensor in zip(reduced, tensors, strict=True)]

    def _reducescatter(self, name: str, tensor: tf.Tensor, op: Op) -> tf.Tensor:
        (found,) = self._call(name, partial(self._scattered, op), [_summed_as(tensor)])
        return tf.cast(found, tensor.dtype)

    def _allgather(self, name: str, tensor: tf.Tensor) -> tf.Tensor:
        (found,) = self._call(name, self._gathered, [_sent_as(tensor)])
        return as_dtype(tensor.dtype, found)

    def _alltoall(self, name: str, given: tuple[tf.Tensor, list[int] | tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        tensor, rows = given
        memory = self._memory if isinstance(rows, list) else _Memory()  # results of other sizes are not used again
        found, received = self._call(name, partial(self._dealt, memory), [_sent_as(tensor), tf.cast(rows, tf.int64)])
        return as_dtype(tensor.dtype, found), received

    def _call(self, name: str, exchange: Callable[..., list[np.ndarray]], tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """An operation for `exchange`, which gets the tensors' values and returns as many arrays of their dtypes."""
        number = zlib.crc32(name.encode())

        def run(*arrays: np.ndarray) -> list[np.ndarray]:
            with self._turn.lock:
                if self._turn.failure is not None:  # the others may not be here any more
                    raise self._turn.failure
                self._agree(name, number)
                return exchange(*arrays)

        if not tensors:
            return []
        with tf.device("CPU"), self._turn.taken() as over:
            found = _listed(tf.numpy_function(run, tensors, [tensor.dtype for tensor in tensors]))  # eagerly no list
            over(found)
        return found

    def _agree(self, name: str, number: int) -> None:
        """RankError on all ranks where one is about to exchange something else."""
        from mpi4py import MPI

        own = np.array([number, -number], np.int64)
        most = np.empty_like(own)
        self._comm.Allreduce(own, most, op=MPI.MAX)
        if most[0] != -most[1]:
            self._turn.failure = RankError(
                f"rank {self.rank} of {self.ranks} exchanges {name}, and another rank something else at the same time: "
                "all ranks have to call collectives in the same order"
            )
            raise self._turn.failure

    def _reduced(self, op: Op, *arrays: np.ndarray) -> list[np.ndarray]:
        from mpi4py import MPI

        layout = self._memory.layout(tuple((array.shape, array.dtype) for array in arrays))
        memory, reduced = layout.take()
        for place in layout.small:
            np.copyto(reduced[place], arrays[place])
        for part in layout.parts_of(memory):
            self._comm.Allreduce(MPI.IN_PLACE, part)
        for place in layout.large:
            self._comm.Allreduce(arrays[place], reduced[place])
        if op == "mean":
            for part in (*layout.parts_of(memory), *(reduced[place] for place in layout.large)):
                self._divide(part)
        return reduced

    def _scattered(self, op: Op, array: np.ndarray) -> list[np.ndarray]:
        """Each rank gets its part of all, block by block, and adds them up by rank.

        Open MPI's Reduce_scatter takes three to five times as long: it copies each part through new memory.
        """
        rows, *rest = array.shape
        parts = np.array(cut(rows, self.ranks)) * math.prod(rest)
        begins, own = np.cumsum(parts) - parts, int(parts[self.rank])
        found = self._memory.one(((own // max(1, math.prod(rest)), *rest), array.dtype))
        flat, most = found.reshape(-1), max(1, BLOCK_BYTES // array.itemsize)
        received = self._memory.one(((self.ranks, min(own, most)), array.dtype)).reshape(-1)
        for begin in range(0, int(parts.max(initial=0)), most):
            sizes, size = np.clip(parts - begin, 0, most), min(max(own - begin, 0), most)
            taken = [size] * self.ranks, [size * rank for rank in range(self.ranks)]
            self._comm.Alltoallv([array.reshape(-1), (sizes, begins + begin)], [received, taken])
            block = received[: self.ranks * size].reshape(self.ranks, size)
            np.add.reduce(block, axis=0, out=flat[begin : begin + size])
        if op == "mean":
            self._divide(found)
        return [found]

    def _gathered(self, array: np.ndarray) -> list[np.ndarray]:
        rows = np.empty(self.ranks, np.int64)
        self._comm.Allgather(np.array([array.shape[0]], np.int64), rows)
        rest = array.shape[1:]
        found = self._memory.one(((int(rows.sum()), *rest), array.dtype))
        self._comm.Allgatherv(_words(array), [_words(found), (rows * math.prod(rest)).tolist()])
        return [found]

    def _dealt(self, memory: _Memory, array: np.ndarray, given: np.ndarray) -> list[np.ndarray]:
        rows = np.empty(self.ranks, np.int64)
        self._comm.Alltoall(given, rows)
        rest = array.shape[1:]
        size = math.prod(rest)
        found = memory.one(((int(rows.sum()), *rest), array.dtype))
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
        with tf.init_scope(), tf.device("CPU"):
            self._count = tf.Variable(0, trainable=False)

    @contextmanager
    def taken(self) -> Iterator[Callable[[list[tf.Tensor]], None]]:
        """A context for the operations of one exchange of a graph; what it gives is called with their results.

        Each reads a variable before and writes it after: so TensorFlow keeps the order of exchanges and of branches,
        loops and functions that exchange, too, which it would else run at once.
        """

        def over(results: list[tf.Tensor]) -> None:
            if not tf.executing_eagerly():
                with tf.control_dependencies(results):
                    self._count.assign_add(1, read_value=False)

        with tf.control_dependencies([] if tf.executing_eagerly() else [self._count.read_value()]):
            yield over


class _Layout:
    """Arrays of some kinds in one piece of memory: small ones of a dtype side by side, as one message.

    Attributes:
        small, large: Places of the kinds among those given.
    """

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self._kinds, self._starts = kinds, [0] * len(kinds)
        self.small: list[int] = []
        self.large: list[int] = []
        self._free: list[np.ndarray] = []
        self._parts: list[tuple[int, int, np.dtype[Any]]] = []
        end = 0
        for dtype in dict.fromkeys(dtype for _, dtype in kinds):
            places = [place for place, kind in enumerate(kinds) if kind[1] == dtype]
            small = [place for place in places if _bytes(kinds[place]) < LARGE_BYTES]
            large = [place for place in places if _bytes(kinds[place]) >= LARGE_BYTES]
            begin = end
            for place in (*small, *large):
                if large and place == large[0] and small:
                    self._parts.append((begin, end, dtype))
                self._starts[place] = end
                end += aligned(_bytes(kinds[place]))
            if small and not large:
                self._parts.append((begin, end, dtype))
            self.small += small
            self.large += large
        self._size = end

    def take(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """Memory that nobody uses, as bytes and as the arrays; it comes back when the last of them is let go."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = aligned_zeros(self._size)  # what is between the arrays stays zero
        lent = np.asarray(_Loan(memory, self._free))
        arrays = [
            lent[start : start + _bytes(kind)].view(kind[1]).reshape(kind[0])
            for start, kind in zip(self._starts, self._kinds, strict=True)
        ]
        return lent, arrays

    def parts_of(self, memory: np.ndarray) -> list[np.ndarray]:
        """All small arrays of a dtype as one, for each dtype."""
        return [memory[begin:end].view(dtype) for begin, end, dtype in self._parts]


class _Memory:
    """Memory for results, used again once TensorFlow has let go of them: new memory costs more than to fill it."""

    def __init__(self) -> None:
        self._layouts: OrderedDict[tuple[Kind, ...], _Layout] = OrderedDict()

    def layout(self, kinds: tuple[Kind, ...]) -> _Layout:
        """The one of these kinds."""
        if kinds not in self._layouts:
            self._layouts[kinds] = _Layout(kinds)
            if len(self._layouts) > LAYOUTS_KEPT:
                self._layouts.popitem(last=False)
        self._layouts.move_to_end(kinds)
        return self._layouts[kinds]

    def one(self, kind: Kind) -> np.ndarray:
        """A single array."""
        return self.layout((kind,)).take()[1][0]


class _Loan:
    """Memory that goes back to `free` with the last array in it: each has this as its base."""

    def __init__(self, memory: np.ndarray, free: list[np.ndarray]) -> None:
        self._memory, self._free = memory, free
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._memory)


def _bytes(kind: Kind) -> int:
    return math.prod(kind[0]) * kind[1].itemsize


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
