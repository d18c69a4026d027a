"""Window: memory of the servers that all ranks reach by one-sided communication."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hpc_train.distributed.tensors import ALIGNMENT
from hpc_train.distributed.world import PIECE_BYTES

if TYPE_CHECKING:
    from mpi4py import MPI

SHARED_VARIABLE = "HPC_TRAIN_SHARED_WINDOW"
"""Set to 0: do without the memory that ranks of one node share."""

SPIN_SECS = 100e-6
FIRST_SLEEP_SECS, LONGEST_SLEEP_SECS = 50e-6, 5e-3


class Patience:
    """Waits a little longer each time: yields the core first, then sleeps, up to some milliseconds."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Something has happened."""
        self._since, self._sleep = time.perf_counter(), FIRST_SLEEP_SECS

    def wait(self) -> None:
        """Nothing has happened."""
        if time.perf_counter() - self._since < SPIN_SECS:
            os.sched_yield()
            return
        time.sleep(self._sleep)
        self._sleep = min(LONGEST_SLEEP_SECS, 1.1 * self._sleep)


class Window:
    """One-sided access to memory of each rank. Making and closing it is collective; a context manager.

    Where all ranks share a node, the memory does too, and no rank needs another's help; elsewhere the one that owns it
    has to call `progress` now and then (over TCP nothing moves without). One thread at a time calls MPI.

    Args:
        comm: The ranks; nbytes: of this one's memory.

    Attributes:
        memory: This rank's, uint8 `[nbytes]`, aligned to 64 bytes, zeros at first.
        shared: Whether the memory is the node's.
        alone: Whether other ranks may not come when this one closes it, which then only forgets it.

    Raises:
        mpi4py.MPI.Exception: This MPI cannot.
    """

    def __init__(self, comm: MPI.Intracomm, nbytes: int) -> None:
        from mpi4py import MPI

        self._mpi, self._comm, self._lock = MPI, comm, threading.RLock()
        self.alone = False
        room = nbytes + ALIGNMENT if nbytes else 0
        self.shared = os.environ.get(SHARED_VARIABLE) != "0" and self._on_one_node()
        try:
            allocate = MPI.Win.Allocate_shared if self.shared else MPI.Win.Allocate
            self._window = allocate(room, 1, comm=comm)
        except MPI.Exception:
            if not self.shared:
                raise
            self.shared = False
            self._window = MPI.Win.Allocate(room, 1, comm=comm)
        whole = np.asarray(self._window.tomemory()) if room else np.zeros(0, np.uint8)
        shift = -whole.ctypes.data % ALIGNMENT if room else 0
        self.memory = whole[shift : shift + nbytes]
        self.memory[:] = 0
        self._shifts = np.empty(comm.Get_size(), np.int64)
        comm.Allgather(np.array([shift], np.int64), self._shifts)
        self._window.Lock_all()
        self._word, self._found = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self.barrier()

    def _on_one_node(self) -> bool:
        node = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        alone = np.array([node.Get_size() == self._comm.Get_size()], np.int64)
        node.Free()
        self._comm.Allreduce(self._mpi.IN_PLACE, alone, op=self._mpi.MIN)
        return bool(alone[0])

    def __enter__(self) -> Window:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None and not self.alone:  # else the other ranks may not come
            self.memory = np.zeros(0, np.uint8)
            self._window.Unlock_all()
            self._window.Free()

    def barrier(self) -> None:
        """Waits until all ranks have come here, letting one-sided communication go on meanwhile. Collective."""
        request, patience = self._comm.Ibarrier(), Patience()
        while not request.Test():
            patience.wait()

    def put(self, array: np.ndarray, rank: int, offset: int) -> None:
        """Begins to write `array` (uint8, contiguous) there; it must stay as it is until `flush`."""
        self._transfer(self._window.Put, array, rank, offset)

    def get(self, array: np.ndarray, rank: int, offset: int) -> None:
        """Begins to read into `array` (uint8, contiguous); it is there after `flush`."""
        self._transfer(self._window.Get, array, rank, offset)

    def _transfer(self, begin: Callable[..., None], array: np.ndarray, rank: int, offset: int) -> None:
        byte, place = self._mpi.BYTE, int(self._shifts[rank]) + offset
        with self._lock:
            for start in range(0, array.size, PIECE_BYTES):
                part = array[start : start + PIECE_BYTES]
                begin([part, byte], rank, (place + start, part.size, byte))

    def flush(self, rank: int) -> None:
        """Waits until what was begun towards `rank` is done, there and here."""
        with self._lock:
            self._window.Flush(rank)

    def add(self, rank: int, offset: int, value: int) -> int:
        """Adds to the word (int64) there, as one operation among all ranks'; returns what was there before."""
        return self._atomic(rank, offset, value, self._mpi.SUM)

    def replace(self, rank: int, offset: int, value: int) -> int:
        """Puts `value` into the word there, likewise."""
        return self._atomic(rank, offset, value, self._mpi.REPLACE)

    def _atomic(self, rank: int, offset: int, value: int, operation: MPI.Op) -> int:
        with self._lock:
            self._word[0] = value
            place = int(self._shifts[rank]) + offset
            self._window.Fetch_and_op(self._word, self._found, rank, place, operation)
            self._window.Flush(rank)
            return int(self._found[0])

    def words(self, rank: int, offset: int, count: int = 1) -> np.ndarray:
        """Words (int64 `[count]`) from there."""
        found = np.empty(count, np.int64)
        self.get(found.view(np.uint8), rank, offset)
        self.flush(rank)
        return found

    def sync(self) -> None:
        """What this process has stored in its own memory before is seen by others before what it stores afterwards."""
        with self._lock:
            self._window.Sync()

    def progress(self) -> None:
        """Lets MPI do what others have asked this rank for."""
        with self._lock:
            self._comm.Iprobe()
