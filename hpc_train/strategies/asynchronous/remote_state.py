"""What is saved of a job whose parameters lie on servers. For the chief."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpc_train.checkpoint.format import Snapshot
from hpc_train.data.loading.tf_dataset import OpenInput
from hpc_train.data.sampling.sampler import DataOrder, DataProgress
from hpc_train.distributed.parameter_server.optimizer_shard import OptimizerShard
from hpc_train.distributed.parameter_server.peers import Peers
from hpc_train.distributed.parameter_server.server import Server
from hpc_train.distributed.partition import Piece
from hpc_train.distributed.remote_parts import RemoteParts
from hpc_train.distributed.tensors import aligned_zeros, dtype_of, nbytes_of, places
from hpc_train.model.model_state import ModelState
from hpc_train.strategies.asynchronous.parts import AsyncParts, carried_places


@dataclass(frozen=True)
class RemoteInput:
    """How far the workers have read their data, on the whole: each goes at its own pace. See checkpointing.Read."""

    data: OpenInput
    first_step: int
    batches_a_step: int

    @property
    def order(self) -> DataOrder | None:
        return self.data.order

    def progress_at(self, step: int) -> DataProgress:
        return self.data.progress_at(step, (step - self.first_step) * self.batches_a_step)


class RemoteState:
    """The state of a job whose parameters lie on servers, as a checkpoint has it. For the first server.

    Batch-norm averages and the like are the means of what the workers that are left carried last; random states and
    other integers are those of the first one of them.

    Args:
        shard: Of this server. at: called with what this process does.
    """

    layers: Sequence[Any] = ()
    parts: RemoteParts | None = None

    def __init__(
        self, parts: AsyncParts, shard: OptimizerShard, server: Server, state: ModelState, at: Callable[[str], None]
    ) -> None:
        self._at = at
        self._state, self._shard, self._server = state, shard, server
        self._whole, self._carried, self._trainable = parts.optimizer, parts.carried, parts.trainable
        self.peers = Peers(parts.window, parts.layouts)
        self._pieces = [parts.partition.pieces(peer) for peer in range(len(parts.layouts))]
        self._fetched = [aligned_zeros(self._places(pieces)[1]) for pieces in self._pieces]
        self._copies: dict[int, np.ndarray] = {}

    def average(self) -> None:
        """Nothing: `snapshot` does it."""

    def snapshot(self, about: Snapshot) -> Snapshot:
        """`about` with a copy of all variables, in memory that the next snapshot takes over; without random states."""
        self._copies = self._copies or self._state.copy()  # what nobody trains stays as it is
        self._shard.write_state(self._fetched[0])
        self._at("waiting for the other servers' state")
        self.peers.fetch_states(self._fetched[1:], self._server.version)
        self._at("checkpoint")
        for pieces, fetched in zip(self._pieces, self._fetched, strict=True):
            self._spread(pieces, fetched)
        self._spread_carried()
        return self._state.copied(replace(about, rng={}))

    def _places(self, pieces: Sequence[Piece]) -> tuple[list[int], int]:
        """Where OptimizerShard.write_state puts a server's pieces, their slots, and what is common."""
        sizes = [piece.nbytes for piece in pieces]
        slots = [piece.nbytes for piece in pieces for _ in self._whole.slots[piece.variable]]
        return places([*sizes, *slots, *map(nbytes_of, self._whole.common)])

    def _spread(self, pieces: Sequence[Piece], fetched: np.ndarray) -> None:
        targets = [(self._trainable[piece.variable], piece) for piece in pieces]
        targets += [(slot, piece) for piece in pieces for slot in self._whole.slots[piece.variable]]
        offsets = self._places(pieces)[0]
        for (variable, piece), offset in zip(targets, offsets, strict=False):
            flat = self._copies[id(variable)].reshape(-1)
            flat[piece.start : piece.stop] = fetched[offset : offset + piece.nbytes].view(piece.dtype)
        if pieces is self._pieces[0]:
            for variable, offset in zip(self._whole.common, offsets[len(targets) :], strict=True):
                copy = self._copies[id(variable)]
                copy[...] = fetched[offset : offset + copy.nbytes].view(copy.dtype).reshape(copy.shape)

    def _spread_carried(self) -> None:
        known = {worker: array for worker, array in enumerate(self._server.carried) if array is not None}
        left = [worker for worker in range(len(self._server.carried)) if worker not in self._server.lost]
        received = [known[worker] for worker in left if worker in known] or [*known.values()]
        first = self._server.carried[left[0]] if left else None
        offsets, _ = carried_places(self._carried)
        for variable, offset in zip(self._carried, offsets, strict=True):
            copy, dtype = self._copies[id(variable)], dtype_of(variable)

            def value_in(array: np.ndarray, at: int = offset, like: np.ndarray = copy) -> np.ndarray:
                return array[at : at + like.nbytes].view(like.dtype).reshape(like.shape)

            if np.issubdtype(dtype, np.integer) or dtype == np.bool_:
                if first is not None:
                    copy[...] = value_in(first)
            elif received:
                copy[...] = np.mean([np.asarray(value_in(array), np.float64) for array in received], axis=0).astype(
                    dtype
                )
