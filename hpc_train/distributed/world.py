"""World: this process among its peers. The one place that starts MPI and Horovod, pins devices, and aborts."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import numpy as np

from hpc_train.distributed import launch_env
from hpc_train.distributed.devices import nvidia_device_count
from hpc_train.distributed.roles import CHIEF_RANK
from hpc_train.errors import RankError, UserError
from hpc_train.telemetry import units

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")
Threads = Literal["multiple", "serialized"]

PIECE_BYTES = 1 << 30
"""MPI-3 counts are 32-bit."""
NODES_NAMED = 8
"""Nodes that a note lists; the rest are counted."""
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


_joined: World | None = None


def join_world(threads: Threads = "multiple") -> World:
    """Joins the ranks that the launcher started: sets what makes them fast, then starts MPI. Collective.

    Args:
        threads: How threads may call MPI: `"multiple"`, as Horovod needs it, or `"serialized"`, one at a time, as Open
            MPI 4 wants it for one-sided communication over TCP (open-mpi/ompi#5200).

    The first call does the work; later ones return the same World. Environment variables that the user has set
    are left alone: TF_CPP_MIN_LOG_LEVEL, OMP_NUM_THREADS, HOROVOD_CYCLE_TIME, HOROVOD_FUSION_THRESHOLD,
    OMPI_MCA_mpi_yield_when_idle.
    A process that no MPI launcher started is a world of one, and MPI is not started. With several ranks, a program
    calls install_excepthook (excepthook.py) next, so that an exception that nobody catches ends all of them.

    Raises:
        UserError: The launcher and MPI disagree about the number of ranks, or Keras is set to another backend.
    """
    global _joined
    if _joined is not None:
        return _joined
    if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        raise UserError(f"KERAS_BACKEND is {os.environ['KERAS_BACKEND']!r}; unset it, or set it to tensorflow")
    place = launch_env.launch_place(os.environ)
    mask = sorted(os.sched_getaffinity(0))
    gpus = nvidia_device_count()
    free = _free_bytes(Path(launch_env.SHARED_FOLDER))
    lacking = launch_env.lacks_shared_memory(os.environ, place, free)
    for name, value in launch_env.settings_before_mpi(os.environ, len(mask), place, gpus, free).items():
        os.environ.setdefault(name, value)
    device = launch_env.visible_device(os.environ, gpus, place)
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    world = World(_start_mpi(place, threads), place.local_rank, place.local_size)
    hosts, masks = world.all_gather(world.host), world.all_gather(mask)
    here = [rank for rank, host in enumerate(hosts) if host == world.host]
    fair = launch_env.fair_cores([masks[rank] for rank in here], here.index(world.rank))
    world.cores = launch_env.threads_wanted(os.environ) or fair
    os.environ.setdefault("OMP_NUM_THREADS", str(world.cores))
    lacks = world.all_gather(lacking)
    world.notes += _notes([host for host, lacking in zip(hosts, lacks, strict=True) if lacking])
    _joined = world
    return world


def _notes(without_memory: Sequence[str]) -> list[str]:
    """What to tell of the hosts whose ranks have no room to exchange messages in memory."""
    nodes = sorted(set(without_memory))
    if not nodes:
        return []
    shown = ", ".join(nodes[:NODES_NAMED]) + (f" and {len(nodes) - NODES_NAMED} more" if nodes[NODES_NAMED:] else "")
    wanted = units.size(launch_env.MESSAGE_BYTES)
    return [
        f"{launch_env.SHARED_FOLDER} has less than {wanted} free on {shown}: ranks of one node exchange messages over "
        "the network, which is slower; free some of it, or make it larger (docker run --shm-size=2g)"
    ]


def _free_bytes(folder: Path) -> int | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _start_mpi(place: launch_env.LaunchPlace, threads: Threads) -> MPI.Intracomm | None:
    if not place.launched:
        return None
    _bind_mpi_at_once()
    import mpi4py

    mpi4py.rc.thread_level = threads
    from mpi4py import MPI

    size = MPI.COMM_WORLD.Get_size()
    if size != place.size:
        raise UserError(
            f"the launcher started {place.size} ranks, but MPI sees {size}: they were started by another MPI's mpirun, "
            "or by an srun that this MPI was not built for; use the mpirun of the MPI in use"
        )
    return MPI.COMM_WORLD.Dup() if size > 1 else None


def _bind_mpi_at_once() -> None:
    """Loads the Open MPI of this environment, where it has one, before mpi4py's wheel does.

    Open MPI and TensorFlow each bring an hwloc. The wheel loads MPI so that functions are bound at their first call:
    Open MPI would begin with its own hwloc, end with TensorFlow's, and crash in MPI_Finalize. ctypes binds all at
    once, as the import of an mpi4py that was built from source does.
    """
    library = Path(sys.prefix) / "lib" / "libmpi.so.40"
    if library.exists():
        ctypes.CDLL(str(library))
