"""Collectives by Horovod.

Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", arXiv:1802.05799.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from hpc_train.distributed.collectives import Collectives, OneRank, Op, as_dtype, group_of
from hpc_train.distributed.world import World
from hpc_train.lazy import tf

BLOCK_BYTES = 4 << 20
"""Of what is scattered, so many are given to MPI at a time."""


def collectives_of(world: World, groups: Sequence[Sequence[int]] = ()) -> Collectives:
    """Those of all ranks of `world`. Collective: starts Horovod, where there are several.

    Args:
        groups: Ranks of each group that `Collectives.group` will be asked for, the same on all ranks; given at the
            first call, as Horovod makes them when it starts. They may overlap. Each costs Horovod's thread a round of
            messages in each of its cycles.

    Raises:
        ValueError: No such ranks. UndeclaredGroupsError: Horovod runs without these. UserError: see World.horovod.
    """
    declared = {group_of(group, world.size) for group in groups}
    if world.size == 1:
        return OneRank()
    world.horovod(sorted(group for group in declared if 1 < len(group) < world.size))
    return HorovodCollectives(world, tuple(range(world.size)))


def _also_eagerly(exchange: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a tf.function of a method where none is traced: it returns when the exchange is over, so names recur."""

    @wraps(exchange)
    def call(self: HorovodCollectives, name: str, given: Any, *how: Any) -> Any:
        if not tf.executing_eagerly():
            return exchange(self, name, given, *how)
        eager = f"{self.prefix}.eager.{exchange.__name__}"
        key = f"{eager} {how}"
        if key not in self.functions:
            self.functions[key] = tf.function(lambda given: exchange(self, eager, given, *how), autograph=False)
        return self.functions[key](given)

    return call


class HorovodCollectives(Collectives):
    """Those of some ranks of `world`, by Horovod.

    Horovod's own wrappers (DistributedGradientTape, DistributedOptimizer) fail on Keras 3 variables (horovod#4290);
    raw tensors do not touch them. Its gradients of allgather and reducescatter are others than those of Collectives.

    A tf.function that another one calls twice has the same names twice, which Horovod refuses where the calls overlap.

    Args:
        members: Ranks in `world`, ascending, with this one; all of them, or a group that world.horovod was given.

    Attributes:
        prefix, functions: For what is called outside of a tf.function.
    """

    def __init__(self, world: World, members: tuple[int, ...]) -> None:
        self._world, self._members, self._hvd = world, members, world.horovod()
        every = len(members) == world.size
        self._set = self._hvd.global_process_set if every else world.process_sets[members]
        self.prefix, self.functions = f"set{self._set.process_set_id}", dict[str, Callable[..., Any]]()
        super().__init__(len(members), members.index(world.rank), self.prefix)

    def group(self, ranks: Sequence[int]) -> Collectives | None:
        """Of more than one rank and fewer than all of `world`: one that `collectives_of` was given."""
        members = tuple(self._members[rank] for rank in group_of(ranks, self.ranks))
        if members == self._members:
            return self
        if len(members) > 1 and members not in self._world.process_sets:
            known = ", ".join(str(list(group)) for group in self._world.process_sets) or "none"
            raise ValueError(f"group of ranks {list(members)}: Horovod was started without it; declared are: {known}")
        if self._world.rank not in members:
            return None
        return HorovodCollectives(self._world, members) if len(members) > 1 else OneRank()

    @_also_eagerly
    def _allreduce(self, name: str, tensors: list[tf.Tensor], op: Op) -> list[tf.Tensor]:
        reduced = list(tensors)
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):  # Horovod wants one in a group
            places = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
            given = [_summed_as(tensors[place]) for place in places]
            group = self._hvd.grouped_allreduce(given, op=self._op(op), **self._by(f"{name}.{dtype.name}"))
            for place, tensor in zip(places, group, strict=True):
                reduced[place] = tf.cast(tensor, dtype)
        return reduced

    @_also_eagerly
    def _reducescatter(self, name: str, tensor: tf.Tensor, op: Op) -> tf.Tensor:
        given, blocks = _summed_as(tensor), list[tf.Tensor]()
        for number, some in enumerate(self._columns(given)):
            with tf.control_dependencies(blocks[-1:]):  # one at a time
                block = given if some is None else given[:, some]
                blocks.append(self._hvd.reducescatter(block, op=self._op(op), **self._by(f"{name}.{number}")))
        return tf.cast(blocks[0] if len(blocks) == 1 else tf.concat(blocks, axis=1), tensor.dtype)

    def _columns(self, rows: tf.Tensor) -> list[slice | None]:
        """Of one row for each rank, columns to exchange one after the other; [None]: all at once.

        Open MPI's Reduce_scatter takes as much memory as it is given, and more time for memory that is new.
        """
        if rows.shape[0] != self.ranks or rows.shape.rank != 2 or tf.config.list_logical_devices("GPU"):
            return [None]
        width, most = rows.shape[1], max(1, BLOCK_BYTES // (self.ranks * rows.dtype.size))
        return [slice(begin, min(begin + most, width)) for begin in range(0, width, most)] if width > most else [None]

    @_also_eagerly
    def _allgather(self, name: str, tensor: tf.Tensor, rows: int | None) -> tf.Tensor:
        return as_dtype(tensor.dtype, self._hvd.allgather(_sent_as(tensor), **self._by(name)))

    @_also_eagerly
    def _alltoall(self, name: str, given: tuple[tf.Tensor, list[int] | tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        tensor, rows = given
        with tf.device("CPU"):
            splits = tf.cast(rows, tf.int32)
        found, received = self._hvd.alltoall(_sent_as(tensor), splits=splits, **self._by(name))
        return as_dtype(tensor.dtype, found), received

    def _op(self, op: Op) -> Any:
        return self._hvd.Sum if op == "sum" else self._hvd.Average

    def _by(self, name: str) -> dict[str, Any]:
        return {"name": name, "ignore_name_scope": True, "process_set": self._set}


def _summed_as(tensor: tf.Tensor) -> tf.Tensor:
    """Horovod cannot add bfloat16."""
    return tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor


def _sent_as(tensor: tf.Tensor) -> tf.Tensor:
    """Bits of bfloat16, which Horovod does not know, travel as float16, which NCCL can send, too."""
    return tf.bitcast(tensor, tf.float16) if tensor.dtype == tf.bfloat16 else tensor
