"""What the worker has the servers do between the turns, and the servers that do it."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from hpc_train.distributed.parameter_server.mailboxes import Mailbox
from hpc_train.distributed.parameter_server.server import Applied, Server

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpc_train.distributed.parameter_server.optimizer_shard import OptimizerShard

PAUSE, SERVE, ECHO, APPLY, REST, LEAVE = range(6)
"""Commands, each with a number. SERVE: until the next command. ECHO: so many times, receive a gradient and send
parameters. APPLY: after another word, so many times. REST: serve for so many milliseconds; the answer is the share of a
core."""
POLL_SECS = 2e-3


class Commander:
    """The worker's end: the servers are the ranks 0 to `servers` - 1 of `comm`."""

    def __init__(self, comm: MPI.Intracomm, servers: int) -> None:
        self._comm, self._servers = comm, range(servers)

    def begin(self, command: int, number: int = 0) -> None:
        """Has all servers begin something, and waits until they do."""
        self.say(command, number)
        self.answers()

    def say(self, command: int, number: int = 0) -> None:
        """Tells all servers."""
        for server in self._servers:
            self._comm.Send(np.array([command, number], np.int64), server)

    def answers(self) -> list[float]:
        """Waits for a number of each server."""
        found = np.zeros(len(self._servers))
        for server in self._servers:
            self._comm.Recv(found[server : server + 1], server)
        return found.tolist()


class _Called(Exception):  # noqa: N818 (it is no error)
    """Something other than serving is due."""


class _UntilCalled:
    """Serves until there is a message, or until a time."""

    def __init__(self, comm: MPI.Intracomm | None, end: float = float("inf")) -> None:
        self._comm, self._end = comm, end

    def applying(self) -> None:
        """Nothing to do."""

    def applied(self, update: Applied) -> None:
        """Nothing to do."""

    def idle(self) -> None:
        """Looks."""
        if self._comm is not None and self._comm.Iprobe():
            raise _Called
        if time.perf_counter() >= self._end:
            raise _Called


class ServingRank:
    """A server that does what the worker asks for.

    Args:
        comm: Its own messages go over it; worker: the worker's rank.
        nbytes: Of this server's part of the parameters.
    """

    def __init__(
        self, comm: MPI.Intracomm, worker: int, server: Server, shard: OptimizerShard, boxes: list[Mailbox], nbytes: int
    ) -> None:
        self._comm, self._worker, self._server, self._shard, self._boxes = comm, worker, server, shard, boxes
        self._received, self._sent = np.zeros(nbytes, np.uint8), np.ones(nbytes, np.uint8)
        self._received[:] = 1

    def follow(self) -> None:
        """Does what is asked for until the worker lets it leave."""
        while True:
            command, number = self._listen()
            self._answer(0.0)
            if command == LEAVE:
                return
            if command == SERVE:
                self._serve(_UntilCalled(self._comm))
            elif command == ECHO:
                for _ in range(number):
                    self._comm.Recv(self._received, self._worker)
                    self._comm.Send(self._sent, self._worker)
            elif command == APPLY:
                self._comm.Recv(np.empty(2, np.int64), self._worker)
                for _ in range(number):
                    self._shard.apply(self._boxes, 1.0)
                self._answer(0.0)
            elif command == REST:
                self._answer(self._rest(number / 1e3))

    def _listen(self) -> tuple[int, int]:
        """The next command. Takes next to nothing of a core, which the worker may be using."""
        while not self._comm.Iprobe(self._worker):
            time.sleep(POLL_SECS)
        said = np.empty(2, np.int64)
        self._comm.Recv(said, self._worker)
        return int(said[0]), int(said[1])

    def _answer(self, number: float) -> None:
        self._comm.Send(np.array([number]), self._worker)

    def _serve(self, events: _UntilCalled) -> None:
        with suppress(_Called):
            self._server.serve_until_released(events)

    def _rest(self, secs: float) -> float:
        self._serve(_UntilCalled(None, time.perf_counter() + 0.1))  # comes to rest
        cpu, wall = time.process_time(), time.perf_counter()
        self._serve(_UntilCalled(None, wall + secs))
        return (time.process_time() - cpu) / (time.perf_counter() - wall)
