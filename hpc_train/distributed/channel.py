"""Channel: messages and arrays between two ranks, while the main threads of both do something else."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpc_train.distributed.world import World, pieces_of

if TYPE_CHECKING:
    from mpi4py import MPI

_HEADER, _TEXT, _ARRAY = 1, 2, 3
REST_SECS = 0.002
"""Between two looks for a message, or for the end of a transfer."""

CLOSE_SECS = 5.0
"""What the thread is given to end after an error."""

Message = dict[str, Any]


class Channel:
    """One end of a channel to the rank `peer` of `world`. A context manager; needs MPI_THREAD_MULTIPLE.

    A thread sends what was given to `send`, in order, and receives what the other end sends. It helps MPI along, which
    makes no progress of its own over TCP. Leaving the context waits until all is sent.

    Args:
        room: Gives the arrays that those of a message are received into, of the same sizes; may wait until they are
            free. Called in the thread. None: the other end sends no arrays.
    """

    def __init__(self, world: World, peer: int, room: Callable[[], Sequence[np.ndarray]] | None = None) -> None:
        """Collective over all ranks of `world`, of which two hold an end, and the others none."""
        assert world.comm is not None
        self._comm: MPI.Intracomm = world.comm.Dup()
        self._peer, self._room = peer, room
        self._outbox: deque[tuple[Message, Sequence[np.ndarray]]] = deque()
        self._inbox: queue.Queue[Message] = queue.Queue()
        self._closing, self._idle = threading.Event(), threading.Event()
        self._idle.set()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="hpc_train-channel", daemon=True)

    def __enter__(self) -> Channel:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.wait_until_sent(lambda: None)
        self._closing.set()
        self._thread.join(None if error is None else CLOSE_SECS)

    def send(self, message: Message, arrays: Sequence[np.ndarray] = ()) -> None:
        """Sends `message` (JSON) and `arrays` (C-contiguous), which stay as they are until `wait_until_sent`."""
        self._check()
        self._outbox.append((message, arrays))
        self._idle.clear()  # after that: the thread, which finds nothing to send, may just be setting it

    def wait_until_sent(self, moved: Callable[[], None]) -> None:
        """Waits until all that was given to `send` has left; `moved` is called now and then."""
        while not self._idle.wait(0.5):
            self._check()
            moved()
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
            while not self._closing.is_set():
                sent, received = self._send_one(), self._receive_one()
                if not sent and not received:
                    time.sleep(REST_SECS)
        except BaseException as error:
            self._failure = error
            self._idle.set()

    def _send_one(self) -> bool:
        if not self._outbox:
            self._idle.set()
            if self._outbox:
                self._idle.clear()
            return False
        message, arrays = self._outbox[0]
        text = np.frombuffer(json.dumps(message).encode(), np.uint8)
        header = np.array([text.size, len(arrays)], np.int64)
        for piece, tag in [(header, _HEADER), (text, _TEXT), *((piece, _ARRAY) for piece in pieces_of(arrays))]:
            # The other end may be sending, too: whoever waits takes what comes.
            self._pass(self._comm.Isend(piece, self._peer, tag), self._receive_one)
        self._outbox.popleft()
        return True

    def _receive_one(self) -> bool:
        if not self._comm.Iprobe(self._peer, _HEADER):
            return False
        header = np.empty(2, np.int64)
        self._pass(self._comm.Irecv(header, self._peer, _HEADER))
        text = np.empty(int(header[0]), np.uint8)
        self._pass(self._comm.Irecv(text, self._peer, _TEXT))
        if header[1]:
            assert self._room is not None
            for piece in pieces_of(self._room()):
                self._pass(self._comm.Irecv(piece, self._peer, _ARRAY))
        self._inbox.put(json.loads(text.tobytes()))
        return True

    def _pass(self, request: MPI.Request, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Waits for a transfer; sleeps where it takes longer than an instant."""
        spins = 0
        while not request.Test():
            if self._closing.is_set():
                return
            spins += 1
            meanwhile()
            time.sleep(0 if spins < 100 else 0.0002)
