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

from hpc_train.distributed.affinity import Binding
from hpc_train.distributed.roles import CHIEF_RANK
from hpc_train.errors import RankError, UserError
from hpc_train.lazy import tf

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")
Threads = Literal["multiple", "serialized"]

PIECE_BYTES = 1 << 30
"""MPI-3 counts are 32-bit."""
ASLEEP_SECS = 0.005
"""Between two looks of a rank that waits asleep."""


class UndeclaredGroupsError(RuntimeError):
    """Horovod runs without groups of ranks that are needed now: it makes them when it starts."""


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
        devices: What ranks of this node have as CUDA_VISIBLE_DEVICES, None for one without it; of a node with GPUs.
            None: its ranks may open different ones, so that a number is another GPU for each.
        binding: The CPUs that it is bound to, and by whom.
        process_sets: Horovod's, by their ranks, once it runs.
        notes: What the user should know of how the ranks were joined; the same on all.
        apart: Whether each rank leaves by itself, and without MPI_Finalize, since one may be lost: with `leave`.
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
        self.binding = Binding()
        self.devices: list[str | None] | None = []
        self._known: BaseException | None = None
        self.apart = False

    @staticmethod
    def alone() -> World:
        """This process without the others, for what it does by itself with code that is made for several ranks."""
        return World(None, 0, 1)

    def part(self, first: int) -> World | None:
        """The ranks from `first` on as a world of their own; None on the others. Collective."""
        assert self.comm is not None, "one rank has no part"
        world = self.split(0 if self.rank >= first else 1)
        if self.rank < first:
            world.free()
            return None
        world.cores, world.binding, world.offset = self.cores, self.binding, first
        world.on_wait = lambda begins: self.on_wait(begins)
        return world

    def split(self, number: int) -> World:
        """The ranks with the same `number` (from 0 on, below 2^31) as a world of their own. Collective."""
        if self.comm is None:
            return World(None, self.local_rank, self.local_size)
        comm: Any = self.comm.Split(number, self.rank)
        if comm.Get_size() > 1:
            return World(comm, self.local_rank, self.local_size)
        comm.Free()
        return World(None, self.local_rank, self.local_size)

    def free(self) -> None:
        """Gives the communicator back; for a world that `split` made, and that is not used any more. Collective."""
        if self.comm is not None:
            self.comm.Free()

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
            UserError: This MPI does not let several threads call it at once, as Horovod's and ours do; Horovod cannot
                be imported; or it runs over other ranks.
            UndeclaredGroupsError: One that the first call was not given.
        """
        if self._horovod is None:
            assert self.comm is not None, "one rank has nobody to reduce with"
            self.check_threads("Horovod")
            hvd = self.each(_horovod_module)
            running = hvd.size() if hvd.is_initialized() else 0
            on_chief = self.broadcast(running)
            other = self.first(running if running not in (0, self.size) or running != on_chief else None)
            if other is not None:  # ranks that start it now would wait for ever for others
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
            raise UndeclaredGroupsError(
                f"Horovod runs without the groups of ranks {missing}: give them where it is started first"
            )
        return self._horovod

    def check_threads(self, what: str) -> None:
        """UserError where this MPI does not let several threads call it at once, as `what` does. Local."""
        from mpi4py import MPI

        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise UserError(
                f"{mpi_library()}: does not provide MPI_THREAD_MULTIPLE, which {what} "
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
        return self._broadcast(value, CHIEF_RANK)

    def _broadcast(self, value: T, root: int) -> T:
        if self.comm is None:
            return value
        data = np.frombuffer(json.dumps(value).encode() if self.rank == root else b"", np.uint8)
        length = np.array([data.size], np.int64)
        with self._waiting() as comm:
            comm.Bcast(length, root=root)
            data = data.copy() if self.rank == root else np.empty(int(length[0]), np.uint8)
            comm.Bcast(data, root=root)
        sent: T = json.loads(data.tobytes())
        return sent

    def first(self, value: T | None) -> T | None:
        """The `value` (anything JSON can hold) of the lowest rank that has one, on every rank. Collective.

        None where no rank has one, which costs an allreduce of one number.
        """
        lowest = self.lowest(self.size if value is None else self.rank)
        return self._broadcast(value, lowest) if lowest < self.size else None

    def lowest(self, number: int) -> int:
        """The lowest `number` (int64) of any rank, on every rank. Collective."""
        if self.comm is None:
            return number
        from mpi4py import MPI

        own = np.array([number], np.int64)
        found = np.empty_like(own)
        with self._waiting() as comm:
            comm.Allreduce(own, found, op=MPI.MIN)
        return int(found[0])

    def gather(self, value: T) -> list[T] | None:
        """Every rank's `value` (anything JSON can hold), by rank, on the chief; None on the others. Collective."""
        if self.comm is None:
            return [value]
        from mpi4py import MPI

        data = json.dumps(value).encode()
        own, longest = np.array([len(data)], np.int64), np.empty(1, np.int64)
        with self._waiting() as comm:
            comm.Allreduce(own, longest, op=MPI.MAX)
        padded = np.frombuffer(data.ljust(int(longest[0])), np.uint8)  # blanks mean nothing to JSON
        rows = self.gather_arrays(padded)
        return None if rows is None else [json.loads(row.tobytes()) for row in rows]

    def all_gather(self, value: T) -> list[T]:
        """Every rank's `value` (anything JSON can hold), by rank, on every rank. Collective.

        What each rank gets grows with their number: for what is rare. See `first`, `gather` and `sum`.
        """
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
        rows = None if stacked is None else stacked.reshape(-1).view(np.uint8).reshape(self.size, -1)
        end = 0
        for piece in pieces_of([array]):
            begin, end, received = end, end + piece.size, rows
            if rows is not None and piece.size < array.nbytes:
                received = np.empty((self.size, piece.size), np.uint8)
            with self._waiting() as comm:
                comm.Gather(piece, received, root=CHIEF_RANK)
            if rows is not None and received is not None and received is not rows:
                rows[:, begin:end] = received
        return stacked

    def scatter_arrays(self, stacked: np.ndarray | None, own: np.ndarray) -> None:
        """Overwrites every rank's `own` (C-contiguous, one shape and dtype) with its row of the chief's. Collective.

        Args:
            stacked: By rank, C-contiguous, on the chief; None elsewhere. The reverse of `gather_arrays`.
        """
        if self.comm is None:
            assert stacked is not None
            np.copyto(own, stacked[0])
            return
        sent = None if stacked is None else stacked.reshape(-1).view(np.uint8)
        with self._waiting() as comm:
            comm.Scatter(sent, own.reshape(-1).view(np.uint8), root=CHIEF_RANK)

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
        failed = self.first(None if failure is None else [self.rank, *_describe(failure)])
        if failed is None:
            return result
        rank, of_user, message = failed
        if rank != self.rank or failure is None:
            failure = UserError(message) if of_user else RankError(f"rank {rank + self.offset}: {message}")
        self._known = failure
        raise failure

    def knows_of(self, error: BaseException) -> bool:
        """Whether every rank is raising on account of `error`, so that none is left waiting when this one leaves."""
        return self.size == 1 or error is self._known or getattr(error, "of_all_ranks", False)

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
        if self.comm is not None and not self.apart:
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


def mpi_library() -> str:
    """The name and version of the MPI in use, as in "Open MPI v4.1.8, package: …". Local."""
    from mpi4py import MPI

    return MPI.Get_library_version().splitlines()[0].strip("\0 ")


def _horovod_module() -> Any:
    try:
        import horovod.tensorflow as hvd
    except (ImportError, OSError, tf.errors.OpError) as error:  # such as one that was built for another TensorFlow
        why = str(error).splitlines()[0]
        raise UserError(
            f"Horovod cannot be imported ({why}): set run.allreduce: mpi, by which a job trains without it, or run "
            "`make setup HOROVOD=yes`, which builds it"
        ) from None
    return hvd


def pieces_of(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The bytes of `arrays` (C-contiguous), in views of as many as one MPI call takes."""
    flat = [array.reshape(-1).view(np.uint8) for array in arrays]
    return [f[start : start + PIECE_BYTES] for f in flat for start in range(0, f.size, PIECE_BYTES)]


def _describe(failure: BaseException) -> list[Any]:
    if isinstance(failure, UserError):
        return [True, str(failure)]
    return [False, f"{type(failure).__name__}: {failure}"]
