"""The state of the workers as a dedicated chief has it: received into its memory while it does something else."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from hpc_train.checkpoint.format import Snapshot
from hpc_train.data.sampling.sampler import DataOrder, DataProgress
from hpc_train.distributed.remote_parts import RemoteParts
from hpc_train.engine.checkpointing import Read
from hpc_train.model import rng_state
from hpc_train.model.model_state import ModelState


def snapshot_message(step: int, data: Read, time: float) -> dict[str, Any]:
    """What goes with the arrays of a snapshot."""
    progress, order = data.progress_at(step), data.order
    return {
        "kind": "snapshot",
        "step": step,
        "progress": [progress.step, progress.rows_read, [list(pair) for pair in progress.sizes]],
        "order": asdict(order) if order else None,
        "time": time,
    }


class RemoteState:
    """The last snapshot received, as Checkpointing wants a state and its data.

    The channel's thread asks for `room` until it gets it, which is once nobody reads the snapshot before.

    Args:
        readers: Ranks that train; each sends the states of its random generators and of its stateful layers.
    """

    layers: Sequence[Any] = ()
    parts: RemoteParts | None = None

    def __init__(self, state: ModelState, readers: int) -> None:
        self._state, self._rng = state, rng_state.room(readers, state.layers)
        self._lock = threading.Lock()
        self._readers, self._receiving = 0, False
        self._progress: DataProgress | None = None
        self.order: DataOrder | None = None
        self._time = 0.0
        self._made: Snapshot | None = None

    def room(self) -> list[np.ndarray] | None:
        """The memory that the next snapshot is received into; for the channel's thread.

        None until the snapshot before has been taken, and nobody reads it any more.
        """
        with self._lock:
            if self._readers or self._receiving:
                return None
            self._receiving = True
        return [*self._state.room, *self._rng.values()]

    def take(self, message: dict[str, Any]) -> int:
        """A snapshot has come, with `message`; returns its step. Somebody reads it until `give_back`."""
        step, rows_read, sizes = message["progress"]
        self._progress = DataProgress(step, rows_read, tuple((int(r), int(n)) for r, n in sizes))
        self.order = DataOrder(**message["order"]) if message["order"] else None
        self._time = message["time"]
        with self._lock:
            self._receiving, self._readers = False, self._readers + 1
        return int(message["step"])

    def borrow(self, step: int) -> Snapshot | None:
        """See background_evaluation.SnapshotSource."""
        with self._lock:
            if self._made is None or self._made.step != step or self._receiving:
                return None
            self._readers += 1
            return self._made

    def give_back(self) -> None:
        """One reader less."""
        with self._lock:
            self._readers -= 1

    def progress_at(self, step: int) -> DataProgress:
        """How far the data was read; of the snapshot's step alone."""
        assert self._progress is not None
        assert self._progress.step == step
        return self._progress

    def average(self) -> None:
        """Nothing: the workers have done it."""

    def snapshot(self, about: Snapshot) -> Snapshot:
        """`about` with the workers' variables and random states; it lies in memory that the next one takes over."""
        readers = len(next(iter(self._rng.values())))
        self._made = replace(self._state.copied(about), time=self._time, world_size=readers, rng=self._rng)
        return self._made
