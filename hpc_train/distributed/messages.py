"""Bytes of any number from one rank to another."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpc_train.distributed.world import PIECE_BYTES, World

TAG = 4713


def send(world: World, data: bytes, rank: int) -> None:
    """Sends `data` to `rank`, which calls `receive`."""
    comm: Any = world.comm
    array = np.frombuffer(data, np.uint8)
    comm.Send(np.array([array.size], np.int64), dest=rank, tag=TAG)
    for start in range(0, array.size, PIECE_BYTES):
        comm.Send(array[start : start + PIECE_BYTES], dest=rank, tag=TAG)


def receive(world: World, rank: int) -> bytes:
    """What `rank` sends; waits for it."""
    comm: Any = world.comm
    length = np.empty(1, np.int64)
    world.on_wait(True)
    comm.Recv(length, source=rank, tag=TAG)
    array = np.empty(int(length[0]), np.uint8)
    for start in range(0, array.size, PIECE_BYTES):
        comm.Recv(array[start : start + PIECE_BYTES], source=rank, tag=TAG)
    world.on_wait(False)
    return array.tobytes()


def broadcast(world: World, data: bytes) -> bytes:
    """The chief's `data` on all ranks. Collective."""
    length = world.broadcast(len(data))
    array = np.frombuffer(data, np.uint8).copy() if world.is_chief else np.empty(length, np.uint8)
    world.broadcast_arrays([array])
    return array.tobytes()
