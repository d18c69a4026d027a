"""Servers and workers with parameters of plain numpy, which count their updates: torn ones would be seen.

python parameter_server.py SERVERS BOUND STEPS [prefetch]
"""

import json
import sys
import time

import numpy as np

from hpc_train.cluster.uncaught import tell_uncaught
from hpc_train.cluster.world import join_world
from hpc_train.strategies.async_ps.clocks import may_begin
from hpc_train.strategies.async_ps.layout import server_layout
from hpc_train.strategies.async_ps.messages import Rows
from hpc_train.strategies.async_ps.partition import VariableSpec, partition
from hpc_train.strategies.async_ps.server import Peers, Server
from hpc_train.strategies.async_ps.window import Window
from hpc_train.strategies.async_ps.worker import Prefetch, Worker

CARRIED = 64


class CountingPart:
    """All parameters hold the number of updates; a gradient is ones, or a few rows of ones."""

    def __init__(self, plan, server):
        self.arrays = [np.zeros(piece.shape, piece.dtype) for piece in plan.pieces(server)]
        self.views = lambda into: [piece.view(into, plan.cuts[server]) for piece in plan.pieces(server)]
        self.touched = [np.zeros(np.atleast_1d(a).shape[0], np.int64) for a in self.arrays]

    def bind(self, boxes):
        pass

    def apply(self, boxes, rate):
        for box in boxes:
            for array, touched, gradient in zip(self.arrays, self.touched, box.gradients, strict=True):
                if isinstance(gradient, Rows):
                    n = int(gradient.count[0])
                    assert (gradient.values[:n] == gradient.numbers[:n, None] + 1).all() or n == 0, "rows are torn"
                    touched[gradient.numbers[:n]] += 1
                else:
                    assert (gradient == gradient.flat[0]).all(), "a gradient is torn"
        for array in self.arrays:
            array += 1

    def write_parameters(self, into):
        for view, array in zip(self.views(into), self.arrays, strict=True):
            view[...] = array

    def write_state(self, into):
        into[:8].view(np.int64)[0] = int(self.arrays[0].flat[0])


class Log:
    def __init__(self):
        self.updates, self.idle_calls = [], 0

    def applied(self, update):
        self.updates.append(update)

    def idle(self):
        self.idle_calls += 1


def main():
    servers, bound, steps = (int(argument) for argument in sys.argv[1:4])
    prefetching, bound = "prefetch" in sys.argv, None if bound < 0 else bound
    world = join_world("serialized")
    tell_uncaught(world)
    workers = world.size - servers
    variables = [
        VariableSpec((300, 100), np.dtype(np.float32)),
        VariableSpec((7,), np.dtype(np.float64)),
        VariableSpec((5000, 16), np.dtype(np.float32), rows=True),
        VariableSpec((), np.dtype(np.float32)),
    ]
    plan = partition(variables, servers)
    layouts = [server_layout(plan, s, workers, CARRIED, 64) for s in range(servers)]
    rank = world.rank
    with Window(world.comm, layouts[rank].nbytes if rank < servers else 0) as window:
        told = {"shared": window.shared}
        if rank < servers:
            part, log = CountingPart(plan, rank), Log()
            server = Server(window, layouts[rank], plan, rank, part, CARRIED if rank == 0 else 0, bound)
            window.barrier()
            if rank == 0:
                server.serve(log)
                states = [np.zeros(64, np.uint8) for _ in layouts[1:]]
                peers = Peers(window, layouts)
                peers.fetch_states(states)
                peers.release()
                told["peers"] = [int(state.view(np.int64)[0]) for state in states]
                told["carried"] = [None if c is None else int(c[0]) for c in server.carried]
            else:
                server.serve_until_released(log)
            told["version"], told["applied"] = server.version, server.clocks.applied
            told["staleness"] = sorted(server.clocks.histogram.items())
            told["touched"] = [int(t.sum()) for t, v in zip(part.touched, plan.pieces(rank), strict=True) if plan.variables[v.variable].rows]
        else:
            window.barrier()
            told.update(work(world, window, layouts, plan, rank - servers, workers, bound, steps, prefetching))
        window.barrier()
    print(json.dumps({"rank": rank, **told}) + "\n", end="", flush=True)


def work(world, window, layouts, plan, number, workers, bound, steps, prefetching):
    worker = Worker(window, layouts, plan, number)
    pulls, tickets, ahead = 0, [], Prefetch(worker) if prefetching else None
    rows = 0
    random = np.random.default_rng(number)
    worker.versions = worker.pull()
    while (ticket := worker.take_ticket()) < steps * (workers if bound == 0 else 1):
        tickets.append(ticket)
        while not may_begin(worker.pushed, worker.state().slowest, bound):
            time.sleep(1e-4)
        if ahead is None:
            with worker.exchange():
                worker.versions = worker.pull()
        else:
            ahead.begin()
        pulls += 1
        for server in range(len(layouts)):
            for piece in plan.pieces(server):
                view = piece.view(worker.arena)
                assert (view == worker.versions[server]).all(), f"parameters are torn: {np.unique(view)}"
        if number == 0:
            time.sleep(2e-4)
        numbers = random.permutation(5000)[: random.integers(0, 40)]
        rows += len(numbers)
        values = np.repeat((numbers[:, None] + 1).astype(np.float32), 16, axis=1)
        # each server numbers the rows from its own first one
        for server in range(len(layouts)):
            for piece in plan.pieces(server):
                if piece.variable == 2:
                    mine = (numbers >= piece.start // 16) & (numbers < piece.stop // 16)
                    values[mine] -= piece.start // 16
        gradients = [np.full((300, 100), ticket, np.float32), np.full(7, ticket, np.float64), (numbers, values), np.float32(ticket).reshape(())]
        with worker.exchange():
            worker.push(gradients, [np.full(64, number + 1, np.uint8)], 1.0, 2, 0.25)
            if ahead is None:
                worker.wait_until_taken()
        if ahead is not None:
            ahead.take()
    worker.wait_until_taken()
    worker.leave()
    worker.wait_until_taken()
    return {"tickets": tickets, "pulls": pulls, "rows": rows}


main()
