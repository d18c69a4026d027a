"""Channel: messages and arrays between two ranks, while the main threads of both do something else."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpc_train.distributed.world import World, pieces_of

if TYPE_CHECKING:
    from mpi4py import MPI

_HEADER, _TEXT, _ARRAY = 1, 2, 3
REST_SECS = 0.002
"""Between two looks for a message to be sent, for one that comes, and for room."""

TRANSFER_REST_SECS = 0.0002
"""Between two looks for the end of a transfer that takes longer than an instant."""

CLOSE_SECS = 5.0
"""What the thread is given to end after an error."""

Message = dict[str, Any]


class Channel:
    """One end of a channel to the rank `peer` of `world`. A context manager; needs MPI_THREAD_MULTIPLE.

    A thread sends what was given to `send`, in order, and receives what the other end sends, in turns: neither waits
    for the other. It helps MPI along, which makes no progress of its own over TCP. Leaving the context waits until all
    is sent.

    Args:
        room: Gives the arrays that those of a message are received into, of the same sizes, or None as long as they are
            not free: what comes after that message then waits, what is sent does not. Called in the thread, again and
            again. None: the other end sends no arrays.
    """

    def __init__(self, world: World, peer: int, room: Callable[[], Sequence[np.ndarray] | None] | None = None) -> None:
        """Collective over all ranks of `world`, of which two hold an end, and the others none."""
        assert world.comm is not None
        self._comm: MPI.Intracomm = world.comm.Dup()
        self._peer, self._room = peer, room
        self._outbox: deque[tuple[Message, Sequence[np.ndarray]]] = deque()  # the first is being sent
        self._inbox: queue.Queue[Message] = queue.Queue()
        self._closing = threading.Event()
        self._sent = threading.Condition()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="hpc_train-channel", daemon=True)

    def __enter__(self) -> Channel:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.wait_until_sent()
        self._closing.set()
        self._thread.join(None if error is None else CLOSE_SECS)

    def send(self, message: Message, arrays: Sequence[np.ndarray] = ()) -> None:
        """Sends `message` (JSON) and `arrays` (C-contiguous), which stay as they are until `wait_until_sent`."""
        self._check()
        self._outbox.append((message, arrays))

    def wait_until_sent(self) -> None:
        """Waits until all that was given to `send` has left."""
        with self._sent:
            self._sent.wait_for(lambda: not self._outbox or self._failure is not None)
        self._check()

    def take(self, wait_secs: float = 0.0) -> Message | None:
        """The next message from the other end, its arrays having been received; None where there is none yet."""
        self._check()
        try:
            return self._inbox.get(wait_secs > 0, wait_secs or None)
        except queue.Empty:
            return None

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            sending, receiving = self._sending(), self._receiving()
            while not self._closing.is_set():
                time.sleep(min(next(sending), next(receiving)))
        except BaseException as error:
            with self._sent:
                self._failure = error
                self._sent.notify_all()

    def _sending(self) -> Iterator[float]:
        """Sends what is in the outbox, without end; yields how many seconds it can do without the thread."""
        while True:
            while not self._outbox:
                yield REST_SECS
            message, arrays = self._outbox[0]
            text = np.frombuffer(json.dumps(message).encode(), np.uint8)
            header = np.array([text.size, len(arrays)], np.int64)
            for piece, tag in [(header, _HEADER), (text, _TEXT), *((piece, _ARRAY) for piece in pieces_of(arrays))]:
                yield from until_over(self._comm.Isend(piece, self._peer, tag))
            with self._sent:
                self._outbox.popleft()
                self._sent.notify_all()
            yield 0.0

    def _receiving(self) -> Iterator[float]:
        """Receives into the inbox, without end; yields as `_sending`."""
        while True:
            while not self._comm.Iprobe(self._peer, _HEADER):
                yield REST_SECS
            header = np.empty(2, np.int64)
            yield from until_over(self._comm.Irecv(header, self._peer, _HEADER))
            text = np.empty(int(header[0]), np.uint8)
            yield from until_over(self._comm.Irecv(text, self._peer, _TEXT))
            if header[1]:
                assert self._room is not None
                while (room := self._room()) is None:
                    yield REST_SECS
                for piece in pieces_of(room):
                    yield from until_over(self._comm.Irecv(piece, self._peer, _ARRAY))
            self._inbox.put(json.loads(text.tobytes()))
            yield 0.0


def until_over(request: MPI.Request, status: MPI.Status | None = None) -> Iterator[float]:
    """Yields how many seconds to rest before the next look, until `request` is over; `status` is then what came."""
    spins = 0
    while not request.Test(status):
        spins += 1
        yield 0.0 if spins < 100 else TRANSFER_REST_SECS
