"""Arrays that ranks hold in parts, read by a thread of the chief while the main threads of all do something else."""

from __future__ import annotations

import errno
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hpc_train.distributed.channel import REST_SECS, until_over
from hpc_train.distributed.layout import BLOCK_BYTES, BlockPart, Layout, place_of
from hpc_train.distributed.roles import CHIEF_RANK
from hpc_train.distributed.share import Share
from hpc_train.distributed.world import World

if TYPE_CHECKING:
    from mpi4py import MPI

_REQUEST, _ELEMENTS = 1, 2
_OVER, _CLOSED = -1, -2
"""In place of an array's number: the chief reads no more of this snapshot; of none any more."""
SHORTEST_REST_SECS = 0.0001
"""After a request, before the first look for the next; each further rest is twice as long, up to REST_SECS."""


@dataclass(frozen=True)
class RemoteArray:
    """A whole array that ranks hold in parts, which are fetched block by block, again each time that is asked for.

    Attributes:
        fetch: Gives the elements of pieces, valid until the next call. OSError: a rank that holds some is ending.
    """

    layout: Layout
    dtype: np.dtype
    fetch: Callable[[Sequence[BlockPart]], Sequence[np.ndarray]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole."""
        return self.layout.shape

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """All elements in order: how many come before, and a flat array, valid until the next one is asked for."""
        limit = BLOCK_BYTES // self.dtype.itemsize
        memory = np.empty(min(limit, math.prod(self.shape)), self.dtype)
        for block in self.layout.blocks(limit):
            flat = memory[: math.prod(block.shape)]
            array = flat.reshape(block.shape)
            for piece, elements in zip(block.pieces, self.fetch(block.pieces), strict=True):
                piece.put(array, elements)
            yield block.start, flat


class RemoteParts:
    """What the ranks of `world` hold of arrays, read by the chief between `renew` and `release`. A context manager.

    A thread of each other rank answers the chief meanwhile, and rests else. Needs MPI_THREAD_MULTIPLE.

    Args:
        held: Of each array, which part this rank holds, and that, C-contiguous, in the order of all ranks.
        copy: Overwrites what this rank holds by a newer state.

    Attributes:
        arrays: All of them, on the chief; empty elsewhere.
    """

    def __init__(self, world: World, held: Sequence[tuple[Share, np.ndarray]], copy: Callable[[], object]) -> None:
        """Collective.

        Raises:
            UserError: This MPI does not let several threads call it at once. ValueError: parts are not the whole.
        """
        world.each(lambda: world.check_threads("saving a model of which ranks hold parts") if world.comm else None)
        self._world, self._copy = world, copy
        self._held = [part.reshape(-1) for _, part in held]
        places = world.gather_arrays(np.array([place_of(share) for share, _ in held], np.int64).reshape(-1, 5))
        self.arrays: list[RemoteArray] = world.each(lambda: [] if places is None else self._arrays(held, places))
        self._comm: MPI.Intracomm | None = world.comm.Dup() if world.comm else None
        self._received = np.empty(0, np.uint8)
        self._readable = self._closing = False
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="hpc_train-parts", daemon=True)

    def _arrays(self, held: Sequence[tuple[Share, np.ndarray]], places: np.ndarray) -> list[RemoteArray]:
        return [
            RemoteArray(Layout(share.shape, places[:, number]), part.dtype, partial(self._fetch, number))
            for number, (share, part) in enumerate(held)
        ]

    def __enter__(self) -> RemoteParts:
        if not self._world.is_chief:
            self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Waits until the chief reads no more, except for an error of this rank alone: it is about to end all."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._world.is_chief:
            self._tell(_CLOSED)
        elif error is None or self._world.knows_of(error):
            self._thread.join()
        if error is None and self._comm is not None:
            self._comm.Free()

    def renew(self) -> None:
        """Copies the state of now, once the chief does not read the one before; it may read this one then. Local."""
        with self._changed:
            self._changed.wait_for(lambda: not self._readable or self._failure is not None)
        if self._failure is not None:
            raise self._failure
        self._copy()
        with self._changed:
            self._readable = True
            self._changed.notify_all()

    def release(self) -> None:
        """The chief reads no more of this state. For the chief, in any thread."""
        self._tell(_OVER)
        with self._changed:
            self._readable = False
            self._changed.notify_all()

    def _tell(self, word: int) -> None:
        for rank in range(self._world.size):
            if rank != CHIEF_RANK and self._comm is not None:
                self._comm.Send(np.array([word, 0, 0], np.int64), rank, _REQUEST)

    def _fetch(self, number: int, pieces: Sequence[BlockPart]) -> list[np.ndarray]:
        """What ranks hold of the array `number`; all are asked at once."""
        dtype = self._held[number].dtype
        found, requests, at = [], {}, 0
        if not self._received.size:
            self._received = np.empty(BLOCK_BYTES, np.uint8)
        for piece in pieces:
            if piece.rank == CHIEF_RANK or self._comm is None:
                found.append(self._held[number][piece.first : piece.last])
                continue
            end = at + (piece.last - piece.first) * dtype.itemsize
            requests[piece.rank] = self._comm.Irecv(self._received[at:end], piece.rank, _ELEMENTS)
            self._comm.Send(np.array([number, piece.first, piece.last], np.int64), piece.rank, _REQUEST)
            found.append(self._received[at:end].view(dtype))
            at = end
        refused = [rank for rank, request in requests.items() if not _received_bytes(request)]
        if refused:  # not an error that passes, and that a save is tried again for
            raise OSError(errno.ECANCELED, f"rank {refused[0] + self._world.offset} is ending, and sends no state")
        return found

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._readable or self._closing)
                if self._answer(self._readable) == _CLOSED:
                    return
                with self._changed:
                    self._readable = False
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _answer(self, readable: bool) -> int:
        """Sends the chief what it asks for until it says that it reads no more; returns which word it said.

        Args:
            readable: Whether that is the state that the chief is to read; else it is sent nothing, which is a refusal.
        """
        assert self._comm is not None, "one rank has no such thread"
        request, rest = np.empty(3, np.int64), SHORTEST_REST_SECS
        while True:
            if not self._comm.Iprobe(CHIEF_RANK, _REQUEST):
                time.sleep(rest)
                rest = min(2 * rest, REST_SECS)
                continue
            self._comm.Recv(request, CHIEF_RANK, _REQUEST)
            number, first, last = map(int, request)
            if number < 0:
                return number
            elements = self._held[number][first : last if readable else first].view(np.uint8)
            _wait(until_over(self._comm.Isend(elements, CHIEF_RANK, _ELEMENTS)))
            rest = SHORTEST_REST_SECS


def _received_bytes(request: MPI.Request) -> int:
    """Waits for a message, and returns its size."""
    from mpi4py import MPI

    status = MPI.Status()
    _wait(until_over(request, status))
    return status.Get_count()


def _wait(rests: Iterator[float]) -> None:
    for rest in rests:
        time.sleep(rest)
