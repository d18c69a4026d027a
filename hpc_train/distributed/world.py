"""World: this process among its peers, what they exchange, and how they end. It starts Horovod."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import numpy as np

from hpc_train.distributed.roles import CHIEF_RANK
from hpc_train.errors import RankError, UserError

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")
Threads = Literal["multiple", "serialized"]

PIECE_BYTES = 1 << 30
"""MPI-3 counts are 32-bit."""
ASLEEP_SECS = 0.005
"""Between two looks of a rank that waits asleep."""


class World:
    """The ranks of one job, seen from one of them.

    Methods marked *collective* must be called by all ranks in the same order. Objects travel as JSON, arrays as
    they are; nothing is pickled. With one rank, no method needs MPI.

    Attributes:
        comm: The communicator of all ranks, for what the methods cannot do; None with one rank.
        rank, size: This rank's number, and how many there are.
        local_rank, local_size: The same on this node.
        host: Name of this node.
        offset: What is to be added to this world's rank numbers to name them to a user (see `part`).
        on_wait: Called with True before a method waits for the other ranks, and with False afterwards.
        cores: Cores that this rank may keep busy; TensorFlow is given as many threads.
        process_sets: Horovod's, by their ranks, once it runs.
        notes: What the user should know of how the ranks were joined; the same on all.
    """

    def __init__(self, comm: MPI.Intracomm | None, local_rank: int, local_size: int) -> None:
        self.comm = comm
        self.rank: int = comm.Get_rank() if comm else 0
        self.size: int = comm.Get_size() if comm else 1
        self.local_rank, self.local_size, self.cores = local_rank, local_size, 1
        self.host, self.offset = socket.gethostname(), 0
        self.on_wait: Callable[[bool], None] = lambda begins: None
        self._horovod: Any = None
        self.process_sets: dict[tuple[int, ...], Any] = {}
        self.notes: list[str] = []
        self._known: BaseException | None = None

    @staticmethod
    def alone() -> World:
        """This process without the others, for what it does by itself with code that is made for several ranks."""
        return World(None, 0, 1)

    def part(self, first: int) -> World | None:
        """The ranks from `first` on as a world of their own; None on the others. Collective."""
        assert self.comm is not None, "one rank has no part"
        comm: Any = self.comm.Split(0 if self.rank >= first else 1, self.rank)
        if self.rank < first:
            comm.Free()
            return None
        world = World(comm if comm.Get_size() > 1 else None, self.local_rank, self.local_size)
        world.cores, world.offset = self.cores, first
        world.on_wait = lambda begins: self.on_wait(begins)
        return world

    def wait_asleep(self) -> None:
        """Waits for all ranks without keeping a core busy. Collective."""
        if self.comm is None:
            return
        with self._waiting() as comm:
            request = comm.Ibarrier()
            while not request.Test():
                time.sleep(ASLEEP_SECS)

    @property
    def is_chief(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == CHIEF_RANK

    def horovod(self, groups: Sequence[tuple[int, ...]] = ()) -> Any:
        """Horovod's TensorFlow module, started over all ranks at the first call. Collective.

        Args:
            groups: Ranks of each process set, ascending; more than one, and fewer than all. One order on all ranks.

        Raises:
            UserError: This MPI does not let several threads call it at once, as Horovod's and ours do; or Horovod runs
                over other ranks.
            RuntimeError: A group that the first call was not given.
        """
        if self._horovod is None:
            assert self.comm is not None, "one rank has nobody to reduce with"
            self.check_threads("Horovod")
            import horovod.tensorflow as hvd

            running = set(self.all_gather(hvd.size() if hvd.is_initialized() else 0))
            if running - {0, self.size} or len(running) > 1:  # ranks that start it now would wait for ever for others
                raise UserError(
                    "Horovod runs in this program already, over other ranks, which an earlier job with another "
                    "`run.chief` has started; train such jobs in programs of their own"
                )
            affinity = os.sched_getaffinity(0)
            self.process_sets = {group: hvd.ProcessSet(group) for group in groups}
            hvd.init(comm=self.comm, process_sets=self.process_sets.values())
            # hvd.init() can shrink the affinity of the process (horovod#2804).
            os.sched_setaffinity(0, affinity)
            self._horovod = hvd
        if missing := [list(group) for group in groups if group not in self.process_sets]:
            raise RuntimeError(
                f"Horovod runs without the groups of ranks {missing}: give them where it is started first"
            )
        return self._horovod

    def check_threads(self, what: str) -> None:
        """UserError where this MPI does not let several threads call it at once, as `what` does. Local."""
        from mpi4py import MPI

        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise UserError(
                f"{MPI.Get_library_version().splitlines()[0]}: does not provide MPI_THREAD_MULTIPLE, which {what} "
                "needs; load another MPI, or set HPC_TRAIN_MPI=wheel and run `make setup` again"
            )

    @contextmanager
    def _waiting(self) -> Iterator[MPI.Intracomm]:
        assert self.comm is not None
        self.on_wait(True)
        yield self.comm
        self.on_wait(False)

    def broadcast(self, value: T) -> T:
        """The chief's `value` (anything JSON can hold), on every rank. Collective."""
        if self.comm is None:
            return value
        data = np.frombuffer(json.dumps(value).encode() if self.is_chief else b"", np.uint8)
        length = np.array([data.size], np.int64)
        with self._waiting() as comm:
            comm.Bcast(length, root=CHIEF_RANK)
            data = data.copy() if self.is_chief else np.empty(int(length[0]), np.uint8)
            comm.Bcast(data, root=CHIEF_RANK)
        sent: T = json.loads(data.tobytes())
        return sent

    def all_gather(self, value: T) -> list[T]:
        """Every rank's `value` (anything JSON can hold), by rank. Collective."""
        if self.comm is None:
            return [value]
        data = np.frombuffer(json.dumps(value).encode(), np.uint8)
        lengths = np.empty(self.size, np.int64)
        with self._waiting() as comm:
            comm.Allgather(np.array([data.size], np.int64), lengths)
            gathered = np.empty(int(lengths.sum()), np.uint8)
            comm.Allgatherv(data, [gathered, lengths])
        ends = np.cumsum(lengths)
        return [json.loads(gathered[end - n : end].tobytes()) for end, n in zip(ends, lengths, strict=True)]

    def broadcast_arrays(self, arrays: list[np.ndarray]) -> None:
        """Overwrites every rank's `arrays` (C-contiguous, same shapes and dtypes) with the chief's. Collective."""
        if self.comm is None:
            return
        for piece in pieces_of(arrays):
            with self._waiting() as comm:
                comm.Bcast(piece, root=CHIEF_RANK)

    def gather_arrays(self, array: np.ndarray) -> np.ndarray | None:
        """Every rank's `array` (C-contiguous, one shape and dtype) stacked by rank, on the chief alone. Collective."""
        if self.comm is None:
            return np.stack([array])
        stacked = np.empty((self.size, *array.shape), array.dtype) if self.is_chief else None
        with self._waiting() as comm:
            received = None if stacked is None else stacked.reshape(-1).view(np.uint8)
            comm.Gather(array.reshape(-1).view(np.uint8), received, root=CHIEF_RANK)
        return stacked

    def sum(self, array: np.ndarray) -> np.ndarray:
        """The sum of every rank's `array` (float64, one shape on all ranks). Collective."""
        if self.comm is None:
            return array
        total = np.empty_like(array)
        with self._waiting() as comm:
            comm.Allreduce(array, total)
        return total

    def each(self, action: Callable[[], T]) -> T:
        """Runs `action` on every rank; gives each its own result. Collective.

        A rank that raises does not leave the others waiting: they all receive it here, at the end.

        Raises:
            Whatever `action` raised, on the lowest rank where it did; on the others UserError with the same
            message where it was one, else RankError. What is raised here is known to all ranks: `knows_of`.
        """
        failure: BaseException | None = None
        try:
            result = action()
        except BaseException as error:  # also SystemExit: a rank must not leave before it has informed the others
            failure = error
        for rank, failed in enumerate(self.all_gather(_describe(failure))):
            if failed is None:
                continue
            if rank != self.rank or failure is None:
                failure = UserError(failed[1]) if failed[0] else RankError(f"rank {rank + self.offset}: {failed[1]}")
            self._known = failure
            raise failure
        return result

    def knows_of(self, error: BaseException) -> bool:
        """Whether every rank is raising on account of `error`, so that none is left waiting when this one leaves."""
        return self.size == 1 or error is self._known

    def on_chief(self, action: Callable[[], T]) -> T:
        """Runs `action` on the chief and gives its result (anything JSON can hold) to all. Collective.

        Raises: As `each`.
        """
        return self.broadcast(self.each(lambda: action() if self.is_chief else None))  # type: ignore[return-value]

    def leave(self, code: int) -> NoReturn:
        """Ends this process with `code`, whatever its threads do; for one that the others do not wait for any more."""
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        if self._horovod is not None:
            self._horovod.shutdown()
        if self.comm is not None:
            from mpi4py import MPI

            MPI.Finalize()
        os._exit(code)

    def abort(self, code: int) -> NoReturn:
        """Ends all ranks at once with exit status `code`; MPI's own way out of a job that cannot go on."""
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        if self.comm is not None:
            from mpi4py import MPI

            MPI.COMM_WORLD.Abort(code)
        os._exit(code)


def pieces_of(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The bytes of `arrays` (C-contiguous), in views of as many as one MPI call takes."""
    flat = [array.reshape(-1).view(np.uint8) for array in arrays]
    return [f[start : start + PIECE_BYTES] for f in flat for start in range(0, f.size, PIECE_BYTES)]


def _describe(failure: BaseException | None) -> list[Any] | None:
    if failure is None:
        return None
    if isinstance(failure, UserError):
        return [True, str(failure)]
    return [False, f"{type(failure).__name__}: {failure}"]
