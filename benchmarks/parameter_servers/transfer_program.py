"""One rank of the bandwidth measurements: the first ranks are servers, the last one is the worker, which measures.

    mpirun -np 2 python -m parameter_servers.transfer_program --servers 1 --nbytes 1000000 … --out FILE

FILE: for each size what each way reached, and the share of a core that waiting servers took.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from support.timing import Competitor, interleave

from hpc_train.distributed.excepthook import install_excepthook
from hpc_train.distributed.parameter_server.mailboxes import mailboxes
from hpc_train.distributed.parameter_server.partition import Partition, VariableSpec, partition
from hpc_train.distributed.parameter_server.server import Server
from hpc_train.distributed.parameter_server.window import Window
from hpc_train.distributed.parameter_server.window_layout import ServerLayout, server_layout
from hpc_train.distributed.parameter_server.worker import Worker
from hpc_train.distributed.world import World, join_world
from parameter_servers.commands import APPLY, ECHO, LEAVE, PAUSE, REST, SERVE, Commander, ServingRank
from parameter_servers.parts import PlainShard, sgd_shard
from parameter_servers.settings import APPLIED, MEMCPY, OURS, SEND_RECV, VARIABLES

GRADIENT = 1e-3
LINE_NUMBERS = 16


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
        self._comm, self._worker, self._plan, self._repeats = world.comm, worker, plan, repeats
        self._servers = Commander(world.comm, servers)
        self._ranges = list(zip(plan.cuts, plan.cuts[1:], strict=False))
        self._flat = np.full(plan.nbytes // 4, GRADIENT, np.float32)
        self._gradients = np.split(self._flat, len(plan.variables))
        self._copy = np.ones(plan.nbytes, np.uint8)
        self._work = 2 * plan.nbytes * repeats
        self._checked = False

    def memcpy(self) -> Competitor:
        """As many bytes between two touched arrays, while the servers rest."""
        source = self._flat.view(np.uint8)

        def run() -> int:
            for _ in range(2 * self._repeats):
                np.copyto(self._copy, source)
            return self._work

        return Competitor(MEMCPY, run, prepare=lambda: self._servers.begin(PAUSE))

    def ours(self, checked: bool) -> Competitor:
        """Push, wait until it is taken, pull; `checked`: the number pushed last has to come back."""
        worker, number = self._worker, self._flat[-1:]
        pulled = worker.arena[-4:].view(np.float32)

        def run() -> int:
            for _ in range(self._repeats):
                if checked:
                    number[0] += 1
                worker.push(self._gradients, [], 0.0, 1, None)
                worker.wait_until_taken()
                worker.versions = worker.pull()
                if any(version != worker.pushed for version in worker.versions) or (checked and pulled != number):
                    raise RuntimeError("what was pulled is not what came of the push: not comparable")
            return self._work

        return Competitor(OURS, run, prepare=lambda: self._servers.begin(SERVE))

    def send_recv(self) -> Competitor:
        """The same bytes between the same ranks, two-sided; several servers at a time."""
        from mpi4py import MPI

        gradient, parameters = self._flat.view(np.uint8), self._copy
        waitall = MPI.Request.Waitall

        def one() -> int:
            for _ in range(self._repeats):
                self._comm.Send(gradient, 0)
                self._comm.Recv(parameters, 0)
            return self._work

        def several() -> int:
            for _ in range(self._repeats):
                waitall([self._comm.Isend(gradient[i:j], s) for s, (i, j) in enumerate(self._ranges)])
                waitall([self._comm.Irecv(parameters[i:j], s) for s, (i, j) in enumerate(self._ranges)])
            return self._work

        run = one if len(self._ranges) == 1 else several
        return Competitor(SEND_RECV, run, prepare=lambda: self._servers.begin(ECHO, self._repeats))

    def apply(self) -> Competitor:
        """What the servers do between push and pull, alone: the optimizer, on the gradient that was pushed last."""

        def run() -> int:
            self._servers.say(APPLY)
            self._servers.answers()
            return self._work // 2

        return Competitor(APPLIED, run, prepare=lambda: self._servers.begin(APPLY, self._repeats))

    def rest(self, secs: float) -> float:
        """The share of a core that a server takes while there is nothing to do; of several, the highest."""
        self._servers.begin(REST, round(1e3 * secs))
        return max(self._servers.answers())

    def leave(self) -> None:
        """Lets the servers leave."""
        self._servers.begin(LEAVE)


def measure(args: argparse.Namespace, world: World, plan: Partition, repeats: int) -> dict[str, object] | None:
    """One size; None on servers. Collective."""
    assert world.comm is not None
    layouts = [server_layout(plan, server, 1, 0, 64) for server in range(args.servers)]
    with Window(world.comm, layouts[world.rank].nbytes if world.rank < args.servers else 0) as window:
        if world.rank < args.servers:
            serve(args, world, window, layouts[world.rank], plan)
            return None
        window.barrier()
        exchanges = Exchanges(world, Worker(window, layouts, plan, 0), plan, args.servers, repeats)
        plain = args.optimizer == "none"
        others = [exchanges.send_recv()] if plain else [exchanges.apply()]
        rates = interleave([exchanges.memcpy(), exchanges.ours(checked=plain), *others], args.rounds)
        rests = [exchanges.rest(args.rest_secs) for _ in range(args.rests)]
        exchanges.leave()
        return {"rates": {way: asdict(found) for way, found in rates.items()}, "rests": rests, "shared": window.shared}


def serve(args: argparse.Namespace, world: World, window: Window, layout: ServerLayout, plan: Partition) -> None:
    """A server's side of `measure`."""
    assert world.comm is not None
    shard = PlainShard(plan, world.rank) if args.optimizer == "none" else sgd_shard(plan, world.rank)
    server = Server(window, layout, plan, world.rank, shard)
    boxes = mailboxes(window.memory, layout, plan, world.rank, 0)
    window.barrier()
    ServingRank(world.comm, args.servers, server, shard, boxes, plan.nbytes_of(world.rank)).follow()


def variables_of(nbytes: int) -> list[VariableSpec]:
    """Float32 variables that take `nbytes` or a little less, without gaps between them."""
    size = nbytes // (4 * VARIABLES * LINE_NUMBERS) * LINE_NUMBERS
    return [VariableSpec((size,), np.dtype(np.float32))] * VARIABLES


def main() -> None:
    args = arguments()
    world = join_world("serialized")
    install_excepthook(world)
    if args.optimizer == "sgd" and world.rank < args.servers:
        from hpc_train.distributed.world import set_up_tensorflow

        set_up_tensorflow(world)
    found = []
    for nbytes in args.nbytes:
        plan = partition(variables_of(nbytes), args.servers)
        repeats = max(1, args.run_bytes // (2 * nbytes))
        found.append(measure(args, world, plan, repeats))
    if world.rank == args.servers:
        args.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
