"""Servers and workers with parameters of plain numpy, which count their updates: torn ones would be seen.

python parameter_server.py SERVERS BOUND STEPS [prefetch] [slow] [dawdle] [idle] [early]

BOUND -1: none. slow: the last server takes its time, and so does the first worker. dawdle: parameters are read slowly
now and then, while others update them. idle: workers wait before they leave. early: the first worker leaves after a
third of its steps. With BOUND 0 workers let each other know numbers at each step.
"""

import json
import sys
import time

import numpy as np

from hpc_train.distributed.excepthook import install_excepthook
from hpc_train.distributed.parameter_server.clocks import may_begin
from hpc_train.distributed.parameter_server.peers import Peers
from hpc_train.distributed.parameter_server.server import Server
from hpc_train.distributed.parameter_server.window import Window
from hpc_train.distributed.parameter_server.window_layout import Rows, server_layout
from hpc_train.distributed.parameter_server.worker import Prefetch, Worker
from hpc_train.distributed.partition import VariableSpec, partition
from hpc_train.distributed.startup import join_world

CARRIED_NBYTES = 64
STATE_NBYTES = 64
EXCHANGED = 3
IDLE_SECS = 3
SLOW_SECS = 3e-3
DAWDLING_SECS, MANY_BYTES = 5e-3, 100_000
ROWS, COLUMNS, EMBEDDING = 5000, 16, 2
VARIABLES = [
    VariableSpec((300, 100), np.dtype(np.float32)),
    VariableSpec((7,), np.dtype(np.float64)),
    VariableSpec((ROWS, COLUMNS), np.dtype(np.float32), rows=True),
    VariableSpec((), np.dtype(np.float32)),
]


class DawdlingWindow(Window):
    """Reads parameters in two halves, and lets others go on between them."""

    def __init__(self, comm, nbytes, often):
        super().__init__(comm, nbytes)
        self.often, self.reads, self.random = often, 0, np.random.default_rng(comm.Get_rank())

    def get(self, array, rank, offset):
        if array.size > MANY_BYTES:
            self.reads += 1
            if self.random.random() < self.often:
                super().get(array[: array.size // 2], rank, offset)
                self.flush(rank)
                time.sleep(DAWDLING_SECS)
                offset, array = offset + array.size // 2, array[array.size // 2 :]
        super().get(array, rank, offset)


class CountingShard:
    """All parameters hold the number of updates; a gradient is the same number throughout, or rows with theirs."""

    def __init__(self, plan, server, slow):
        self.pieces, self.origin, self.slow = plan.pieces(server), plan.cuts[server], slow
        self.arrays = [np.zeros(piece.shape, piece.dtype) for piece in self.pieces]
        self.touched = 0

    def bind(self, boxes):
        pass

    def apply(self, boxes, rate):
        for box in boxes:
            for piece, gradient in zip(self.pieces, box.gradients, strict=True):
                if isinstance(gradient, Rows):
                    n = int(gradient.count[0])
                    numbers = gradient.numbers[:n, None] + piece.start // COLUMNS
                    assert (gradient.values[:n] == numbers + 1).all(), "rows are torn"
                    self.touched += n
                else:
                    assert (gradient == gradient.flat[0]).all(), "a gradient is torn"
        if self.slow:
            time.sleep(SLOW_SECS)
        for array in self.arrays:
            array += 1

    def write_parameters(self, into):
        for piece, array in zip(self.pieces, self.arrays, strict=True):
            piece.view(into, self.origin)[...] = array

    def write_state(self, into):
        into[:8].view(np.int64)[0] = int(self.arrays[0].flat[0])


class Log:
    """What a server sees beside its updates.

    spread: how far workers were apart, in gradients. load: how much of a core this process uses in the quietest second
    without an update.
    """

    def __init__(self, workers):
        self.workers, self.clocks = workers, None
        self.spread, self.load = 0, 1.0
        self.begin()

    def begin(self):
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def applying(self):
        pass

    def applied(self, update):
        self.begin()
        if len(self.clocks.training) == self.workers:
            self.spread = max(self.spread, max(self.clocks.applied) - min(self.clocks.applied))

    def idle(self):
        secs = time.perf_counter() - self.wall
        if secs > 1:
            self.load = min(self.load, (time.process_time() - self.cpu) / secs)
            self.begin()


def serve(window, layouts, plan, rank, bound, slow):
    shard, log = CountingShard(plan, rank, slow and rank == len(layouts) - 1), Log(layouts[rank].workers)
    server = Server(window, layouts[rank], plan, rank, shard, CARRIED_NBYTES if rank == 0 else 0, bound)
    log.clocks = server.clocks
    window.barrier()
    told = {}
    if rank == 0:
        server.serve(log)
        states = [np.zeros(STATE_NBYTES, np.uint8) for _ in layouts[1:]]
        peers = Peers(window, layouts)
        peers.fetch_states(states, server.version)
        peers.release()
        told["peers"] = [int(state.view(np.int64)[0]) for state in states]
        told["carried"] = [None if array is None else array.tolist() for array in server.carried]
    else:
        server.serve(log, until_released=True)
    told.update(
        load=log.load, spread=log.spread, version=server.version, applied=server.clocks.applied, touched=shard.touched
    )
    return {**told, "staleness": sorted(server.clocks.histogram.items())}


def assert_mean(worker, number, workers):
    """What all workers let each other know in this step."""
    own = np.array([number, worker.pushed, number * worker.pushed], np.float64)
    mean, middle = worker.mean(own), (workers - 1) / 2
    expected = own if worker.dismissed else [middle, worker.pushed, middle * worker.pushed]
    np.testing.assert_allclose(mean, expected, rtol=1e-15)


def work(window, layouts, plan, number, bound, tickets, prefetching, slow, idle, most):
    window.barrier()
    worker = Worker(window, layouts, plan, number)
    ahead = Prefetch(worker) if prefetching else None
    random = np.random.default_rng(number)
    taken, rows = [], 0
    worker.versions = worker.pull()
    while worker.pushed < most and (ticket := worker.take_ticket()) < tickets:
        taken.append(ticket)
        while not may_begin(worker.pushed, worker.state().slowest, bound):
            time.sleep(1e-4)
        if ahead is None:
            worker.versions = worker.pull()
        else:
            ahead.begin()
        for server, version in enumerate(worker.versions):
            for piece in plan.pieces(server):
                view = piece.view(worker.arena)
                assert (view == version).all(), f"parameters are torn: {np.unique(view)}"
        if number == 0:
            time.sleep(SLOW_SECS if slow else 2e-4)
        if bound == 0:
            assert_mean(worker, number, layouts[0].workers)
            if worker.dismissed:
                break
        numbers = random.permutation(ROWS)[: random.integers(0, 40)]
        values = np.repeat(numbers[:, None] + 1, COLUMNS, axis=1).astype(np.float32)
        rows += len(numbers)
        gradients = [np.full(v.shape, ticket, v.dtype) for v in plan.variables]
        gradients[EMBEDDING] = numbers, values
        if ahead is not None:
            ahead.wait()
        worker.push(gradients, [np.full(CARRIED_NBYTES, number + 1, np.uint8)], 1.0, 2, None)
        if ahead is None:
            worker.wait_until_taken()
        else:
            ahead.take()
    worker.wait_until_taken()
    time.sleep(IDLE_SECS if idle else 0)
    worker.leave()
    worker.wait_until_taken()
    return {
        "tickets": taken,
        "rows": rows,
        "dismissed": worker.dismissed,
        "read_again": window.reads - len(layouts) * (1 + len(taken)),
    }


def main():
    servers, bound, steps = (int(argument) for argument in sys.argv[1:4])
    prefetching, slow, dawdling, idle = (word in sys.argv for word in ("prefetch", "slow", "dawdle", "idle"))
    early = "early" in sys.argv
    bound = None if bound < 0 else bound
    world = join_world("serialized")
    install_excepthook(world)
    workers, rank = world.size - servers, world.rank
    plan = partition(VARIABLES, servers)
    layouts = [
        server_layout(plan, s, workers, CARRIED_NBYTES, STATE_NBYTES, EXCHANGED * (bound == 0)) for s in range(servers)
    ]
    tickets = steps * workers if bound == 0 else steps
    nbytes = layouts[rank].nbytes if rank < servers else 0
    with DawdlingWindow(world.comm, nbytes, 0.1 if dawdling else 0) as window:
        told = {"rank": rank, "shared": window.shared}
        if rank < servers:
            told.update(serve(window, layouts, plan, rank, bound, slow))
        else:
            number, most = rank - servers, steps // 3 if early and rank == servers else steps
            told.update(work(window, layouts, plan, number, bound, tickets, prefetching, slow, idle, most))
        window.barrier()
    print(json.dumps(told) + "\n", end="", flush=True)


main()
