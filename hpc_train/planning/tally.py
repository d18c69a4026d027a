"""Collectives that exchange nothing: a step is traced with them, and what it would exchange is noted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpc_train.distributed.collectives import Collectives, Op, group_of
from hpc_train.distributed.groups import Groups
from hpc_train.distributed.mesh import Mesh
from hpc_train.lazy import tf
from hpc_train.planning.graph_memory import most_elements
from hpc_train.planning.traffic import Call, Kind


class Tally(Collectives):
    """Those of the first of so many ranks, in a process of its own: results have the shapes that they would have.

    Attributes:
        calls: What was asked for.
    """

    def __init__(self, ranks: int, label: str = "tally", calls: list[Call] | None = None) -> None:
        super().__init__(ranks, 0, label)
        self.calls: list[Call] = [] if calls is None else calls

    def group(self, ranks: Sequence[int]) -> Collectives | None:
        """Notes in the same list."""
        members = group_of(ranks, self.ranks)
        return Tally(len(members), f"{self.label}.{len(members)}", self.calls) if 0 in members else None

    def _note(self, kind: Kind, tensor: Any, times: int = 1) -> None:
        if self.ranks > 1:
            nbytes = most_elements(tensor) * tensor.dtype.size * times
            self.calls.append(Call(kind, nbytes, self.ranks, "layers"))

    def _allreduce(self, name: str, tensors: list[tf.Tensor], op: Op) -> list[tf.Tensor]:
        for tensor in tensors:
            self._note("allreduce", tensor)
        return [tf.identity(tensor) for tensor in tensors]

    def _reducescatter(self, name: str, tensor: tf.Tensor, op: Op) -> tf.Tensor:
        self._note("reducescatter", tensor)
        return tensor[: -(-tensor.shape[0] // self.ranks)]

    def _allgather(self, name: str, tensor: tf.Tensor, rows: int | None) -> tf.Tensor:
        self._note("allgather", tensor, self.ranks)
        return self._open(tf.concat([tensor] * self.ranks, axis=0))

    def _alltoall(self, name: str, given: tuple[tf.Tensor, list[int] | tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        tensor, rows = given
        self._note("alltoall", tensor)
        return self._open(tensor), tf.convert_to_tensor(rows, tf.int64)

    def _open(self, tensor: tf.Tensor) -> tf.Tensor:
        """`tensor`, its rows not known: a caller knows how many there would be."""
        return tf.compat.v1.placeholder_with_default(tensor, [None, *tensor.shape[1:]])


def groups_of(mesh: Mesh) -> tuple[Groups, list[Call]]:
    """The groups of a mesh's first rank, and the list in which their exchanges are noted."""
    every = Tally(mesh.size)
    return Groups.of(every, mesh), every.calls
