"""Names of what is measured, and how much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BENCHMARK = "parameter_server"
OURS, MEMCPY, SEND_RECV, APPLIED = "push and pull", "memcpy", "Send/Recv", "apply alone"
PLAIN_HOROVOD, SYNC, ASYNC, PREFETCH = "plain Horovod", "sync", "async", "async, prefetching"
BOUNDED, SLOW = "async, max_staleness 2", "one slow worker"
BARE, JOB = "bare", "of a job"
"""Ways."""
ONE_NODE, WITHOUT_CMA = "one node", "one node, no CMA"
TWO_HOSTS, ONE_HOST_TCP = "two hosts, TCP", "one host, TCP"
"""Places."""
TRANSFER, OPTIMIZER, TRAINING, SLOW_WORKER = "transfer", "transfer, SGD", "training", "slow worker"
TO_LOSS, IDLE = "time to loss", "idle server"
"""What is measured."""

SIZES: Mapping[str, int] = {"1 MB": 10**6, "8 MB": 8 * 10**6, "67 MB": 67 * 10**6, "256 MB": 256 * 10**6}
"""Bytes of parameters, by name."""
VARIABLES = 8
"""The parameters are so many variables of the same size."""
BATCH = 64
"""Rows a rank and step."""
WORKERS = 2
LEARNING_RATE, MOMENTUM = 2e-4, 0.9
"""The learning rate is that of updates made of one batch; those made of several have as many times it (Goyal et al.,
"Accurate, large minibatch SGD", arXiv:1706.02677), so that as many rows have as much effect."""


@dataclass(frozen=True)
class Transfers:
    """Of pushes and pulls.

    Attributes:
        sizes: Names of SIZES.
        run_bytes: About so many are moved in a repeat; `rounds` A B B A rounds, two repeats each.
        rest_secs: Of a repeat in which a server waits, `rests` of them at each size.
    """

    sizes: tuple[str, ...]
    run_bytes: int
    rounds: int
    rest_secs: float = 0.0
    rests: int = 0


@dataclass(frozen=True)
class Jobs:
    """Of training jobs.

    Attributes:
        rows: Of the training data.
        examples: That a job trains on; slow_examples: one with a slow worker.
        warm_up_secs: Of each job, which are not counted.
        passes, slow_passes: Over all jobs of a group, there and back again in turn: A B, B A; one repeat each.
        loss: What the training loss is to fall below.
        watch_secs: For so long a job's server that has next to nothing to do is watched.
    """

    rows: int = 32_768
    examples: int = 80_000
    slow_examples: int = 24_000
    warm_up_secs: float = 1.5
    passes: int = 2
    slow_passes: int = 1
    loss: float = 0.9
    watch_secs: float = 5.0


@dataclass(frozen=True)
class Settings:
    """All of it. `tcp` is what goes over TCP, `optimizer` what a server's Keras optimizer takes part in."""

    node: Transfers
    optimizer: Transfers
    tcp: Transfers
    training: Jobs
    quick: bool = False


FULL = Settings(
    node=Transfers(tuple(SIZES), run_bytes=512 * 10**6, rounds=3, rest_secs=2.0, rests=1),
    optimizer=Transfers(tuple(SIZES), run_bytes=256 * 10**6, rounds=3),
    tcp=Transfers(("1 MB", "8 MB", "67 MB"), run_bytes=128 * 10**6, rounds=3, rest_secs=2.0, rests=1),
    training=Jobs(),
)
QUICK = Settings(
    node=Transfers(("1 MB", "8 MB"), run_bytes=4 * 10**6, rounds=1, rest_secs=0.2, rests=1),
    optimizer=Transfers(("1 MB",), run_bytes=4 * 10**6, rounds=1),
    tcp=Transfers(("1 MB",), run_bytes=4 * 10**6, rounds=1, rest_secs=0.2, rests=1),
    training=Jobs(2_048, 4_000, 1_500, warm_up_secs=0.0, passes=1, loss=2.3, watch_secs=1.0),
    quick=True,
)
