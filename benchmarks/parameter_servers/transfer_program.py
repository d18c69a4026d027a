"""One rank of the bandwidth measurements: the first ranks are servers, the last one is the worker, which measures.

    mpirun -np 2 python -m parameter_servers.transfer_program --servers 1 --nbytes 1000000 … --out FILE

FILE: for each size what each way reached, and the share of a core that waiting servers took.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from support.timing import Competitor, interleave

from hpc_train.distributed.devices import set_up_tensorflow
from hpc_train.distributed.excepthook import install_excepthook
from hpc_train.distributed.parameter_server.server import Applied, Server
from hpc_train.distributed.parameter_server.window import Window
from hpc_train.distributed.parameter_server.window_layout import Mailbox, mailboxes, server_layout
from hpc_train.distributed.parameter_server.worker import Worker
from hpc_train.distributed.partition import Partition, VariableSpec, partition
from hpc_train.distributed.startup import join_world
from hpc_train.distributed.world import World
from parameter_servers.settings import APPLIED, LEARNING_RATE, MEMCPY, MOMENTUM, OURS, SEND_RECV, VARIABLES

if TYPE_CHECKING:
    from hpc_train.distributed.parameter_server.optimizer_shard import OptimizerShard

GRADIENT = 1e-3
LINE_NUMBERS = 16
PAUSE, SERVE, ECHO, APPLY, REST, LEAVE = range(6)
"""Commands of the worker, each with a number. SERVE: until the next command. ECHO: so many times, receive a gradient
and send parameters. APPLY: after another word, so many times. REST: serve for so many milliseconds; the answer to the
next command is the share of a core."""
POLL_SECS = 2e-3


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, required=True)
    parser.add_argument("--nbytes", type=int, nargs="+", required=True, help="of the parameters, for each size")
    parser.add_argument("--run-bytes", type=int, required=True, help="moved in a repeat, about")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--rest-secs", type=float, required=True)
    parser.add_argument("--rests", type=int, required=True)
    parser.add_argument("--optimizer", choices=["none", "sgd"], required=True)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


class Exchanges:
    """The worker's ways to move a gradient to the servers and parameters back."""

    def __init__(self, world: World, worker: Worker, plan: Partition, servers: int, repeats: int) -> None:
        assert world.comm is not None
        self._comm, self._worker, self._repeats, self._servers = world.comm, worker, repeats, range(servers)
        self._ranges = list(zip(plan.cuts, plan.cuts[1:], strict=False))
        self._flat = np.full(plan.nbytes // 4, GRADIENT, np.float32)
        self._gradients = np.split(self._flat, len(plan.variables))
        self._copy = np.ones(plan.nbytes, np.uint8)
        self._work = 2 * plan.nbytes * repeats

    def ask(self, command: int, number: int = 0) -> list[float]:
        """Tells all servers, and waits for a number of each, which has begun then."""
        found = np.zeros(len(self._servers))
        for server in self._servers:
            self._comm.Send(np.array([command, number], np.int64), server)
        for server in self._servers:
            self._comm.Recv(found[server : server + 1], server)
        return found.tolist()

    def _competitor(self, name: str, once: Callable[[], object], command: int, times: int = 1) -> Competitor:
        """`once` moves all bytes, both ways; or one of them, `times` = 2."""

        def run() -> int:
            for _ in range(times * self._repeats):
                once()
            return self._work

        return Competitor(name, run, prepare=lambda: self.ask(command, self._repeats))

    def memcpy(self) -> Competitor:
        """As many bytes between two touched arrays, while the servers rest."""
        source = self._flat.view(np.uint8)
        return self._competitor(MEMCPY, lambda: np.copyto(self._copy, source), PAUSE, times=2)

    def ours(self, checked: bool) -> Competitor:
        """Push, wait until it is taken, pull; `checked`: the number pushed last has to come back."""
        worker, number = self._worker, self._flat[-1:]
        pulled = worker.arena[-4:].view(np.float32)

        def once() -> None:
            if checked:
                number[0] += 1
            worker.push(self._gradients, [], 0.0, 1, None)
            worker.wait_until_taken()
            worker.versions = worker.pull()
            if any(version != worker.pushed for version in worker.versions) or (checked and pulled != number):
                raise RuntimeError("what was pulled is not what came of the push: not comparable")

        return self._competitor(OURS, once, SERVE)

    def send_recv(self) -> Competitor:
        """The same bytes between the same ranks, two-sided; several servers at a time."""
        from mpi4py import MPI

        comm, gradient, parameters = self._comm, self._flat.view(np.uint8), self._copy

        def one() -> None:
            comm.Send(gradient, 0)
            comm.Recv(parameters, 0)

        def several() -> None:
            MPI.Request.Waitall([comm.Isend(gradient[i:j], s) for s, (i, j) in enumerate(self._ranges)])
            MPI.Request.Waitall([comm.Irecv(parameters[i:j], s) for s, (i, j) in enumerate(self._ranges)])

        return self._competitor(SEND_RECV, one if len(self._ranges) == 1 else several, ECHO)

    def apply(self) -> Competitor:
        """What the servers do between push and pull, alone: the optimizer, on the gradient that was pushed last."""

        def run() -> int:
            self.ask(APPLY)
            return self._work // 2

        return Competitor(APPLIED, run, prepare=lambda: self.ask(APPLY, self._repeats))

    def rest(self, secs: float) -> float:
        """The share of a core that a server takes while there is nothing to do; of several, the highest."""
        self.ask(REST, round(1e3 * secs))
        return max(self.ask(PAUSE))


class _Called(Exception):  # noqa: N818 (it is no error)
    """Something other than serving is due."""


class ServingRank:
    """A server that does what the worker asks for: the events of a `Server` that serves until it is called away."""

    def __init__(
        self,
        world: World,
        worker: int,
        server: Server,
        shard: OptimizerShard | PlainShard,
        boxes: list[Mailbox],
        nbytes: int,
    ):
        assert world.comm is not None
        self._comm, self._worker, self._server, self._shard, self._boxes = world.comm, worker, server, shard, boxes
        self._received, self._sent = np.full(nbytes, 1, np.uint8), np.ones(nbytes, np.uint8)
        self._end: float | None = None

    def applying(self) -> None:
        """Nothing to do."""

    def applied(self, update: Applied) -> None:
        """Nothing to do."""

    def idle(self) -> None:
        """Looks whether there is a message; or the time, where there is an end."""
        if self._comm.Iprobe() if self._end is None else time.perf_counter() >= self._end:
            raise _Called

    def follow(self) -> None:
        """Does what is asked for until the worker lets it leave."""
        answer, command = 0.0, PAUSE
        while command != LEAVE:
            command, number = self._listen()
            self._comm.Send(np.array([answer]), self._worker)
            answer = 0.0
            if command == SERVE:
                self._serve(None)
            elif command == ECHO:
                for _ in range(number):
                    self._comm.Recv(self._received, self._worker)
                    self._comm.Send(self._sent, self._worker)
            elif command == APPLY:
                self._comm.Recv(np.empty(2, np.int64), self._worker)
                for _ in range(number):
                    self._shard.apply(self._boxes, 1.0)
                self._comm.Send(np.array([0.0]), self._worker)
            elif command == REST:
                answer = self._rest(number / 1e3)

    def _listen(self) -> tuple[int, int]:
        """The next command. Takes next to nothing of a core, which the worker may be using."""
        while not self._comm.Iprobe(self._worker):
            time.sleep(POLL_SECS)
        said = np.empty(2, np.int64)
        self._comm.Recv(said, self._worker)
        return int(said[0]), int(said[1])

    def _serve(self, secs: float | None) -> None:
        self._end = None if secs is None else time.perf_counter() + secs
        with suppress(_Called):
            self._server.serve(self, until_released=True)

    def _rest(self, secs: float) -> float:
        self._serve(0.1)  # comes to rest
        cpu, wall = time.process_time(), time.perf_counter()
        self._serve(secs)
        return (time.process_time() - cpu) / (time.perf_counter() - wall)


class PlainShard:
    """Bytes that are published as they are; no optimizer.

    The last number of a gradient becomes the last of the parameters, so that the worker sees its own come back.
    """

    def __init__(self, partition: Partition, server: int) -> None:
        self.memory = np.zeros(partition.nbytes_of(server), np.uint8)

    def bind(self, boxes: Sequence[Mailbox]) -> None:
        """Nothing to do."""

    def apply(self, boxes: Sequence[Mailbox], rate: float) -> None:
        """Takes over the last number."""
        last = boxes[-1].gradients[-1]
        assert isinstance(last, np.ndarray)
        self.memory[-4:] = last[-1:].view(np.uint8)

    def write_parameters(self, into: np.ndarray) -> None:
        """Copies all of it."""
        np.copyto(into, self.memory)

    def write_state(self, into: np.ndarray) -> None:
        """Nothing to do."""


def sgd_shard(partition: Partition, server: int) -> OptimizerShard:
    """The variables of `partition` with Keras's SGD and momentum."""
    import keras

    from hpc_train.distributed.parameter_server.optimizer_shard import OptimizerShard

    variables = [keras.Variable(np.zeros(v.shape, v.dtype), dtype="float32") for v in partition.variables]
    optimizer = keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)
    return OptimizerShard(variables, optimizer, partition, server, [True] * len(variables))


def measure(args: argparse.Namespace, world: World, plan: Partition, repeats: int) -> dict[str, object] | None:
    """One size; None on servers. Collective."""
    assert world.comm is not None
    plain, serves = args.optimizer == "none", world.rank < args.servers
    layouts = [server_layout(plan, server, 1, 0, 64) for server in range(args.servers)]
    with Window(world.comm, layouts[world.rank].nbytes if serves else 0) as window:
        if serves:
            layout = layouts[world.rank]
            shard = PlainShard(plan, world.rank) if plain else sgd_shard(plan, world.rank)
            server = Server(window, layout, plan, world.rank, shard)
            boxes = mailboxes(window.memory, layout, plan, world.rank, 0)
            window.barrier()
            ServingRank(world, args.servers, server, shard, boxes, plan.nbytes_of(world.rank)).follow()
            return None
        window.barrier()
        exchanges = Exchanges(world, Worker(window, layouts, plan, 0), plan, args.servers, repeats)
        others = [exchanges.send_recv()] if plain else [exchanges.apply()]
        rates = interleave([exchanges.memcpy(), exchanges.ours(checked=plain), *others], args.rounds)
        rests = [exchanges.rest(args.rest_secs) for _ in range(args.rests)]
        exchanges.ask(LEAVE)
        return {"rates": {way: asdict(found) for way, found in rates.items()}, "rests": rests, "shared": window.shared}


def variables_of(nbytes: int) -> list[VariableSpec]:
    """Float32 variables that take `nbytes` or a little less, without gaps between them."""
    size = nbytes // (4 * VARIABLES * LINE_NUMBERS) * LINE_NUMBERS
    return [VariableSpec((size,), np.dtype(np.float32))] * VARIABLES


def main() -> None:
    args = arguments()
    world = join_world("serialized")
    install_excepthook(world)
    if args.optimizer == "sgd" and world.rank < args.servers:
        set_up_tensorflow(world)
    found = []
    for nbytes in args.nbytes:
        plan = partition(variables_of(nbytes), args.servers)
        found.append(measure(args, world, plan, max(1, args.run_bytes // (2 * nbytes))))
    if world.rank == args.servers:
        args.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
