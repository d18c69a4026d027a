"""XGBoost's own collective over the ranks of a job: how they find each other, and signals while it works."""

from __future__ import annotations

import io
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.resilience.signals import STOP_SIGNALS
from hpc_train.trees.booster import xgboost


@contextmanager
def joined(world: World) -> Iterator[None]:
    """Joins all ranks in XGBoost's collective, numbered as those of MPI; one rank alone needs none. Collective.

    The chief starts a tracker, whose address the others get by MPI; they then communicate over the network on which
    they reach it, on ports that the system assigns.

    Raises:
        UserError: The other ranks cannot reach the chief.
    """
    if world.size == 1:
        yield
        return
    from xgboost.tracker import RabitTracker

    hosts = world.all_gather(world.host)
    trackers: list[Any] = []

    def start() -> dict[str, Any]:
        tracker = RabitTracker(world.size, _reachable_address(hosts), sortby="task")
        tracker.start()
        trackers.append(tracker)
        arguments: dict[str, Any] = tracker.worker_args()
        return arguments

    where = world.on_chief(start)
    collective = xgboost().collective
    with redirect_stdout(io.StringIO()):  # each worker prints its rank
        collective.init(dmlc_task_id=f"{world.rank:08d}", **where)
    try:
        yield
    finally:  # also where a signal stops the job: a chief that left before the others had taken leave would fail them
        collective.finalize()
        for tracker in trackers:
            tracker.wait_for()


def _reachable_address(hosts: list[str]) -> str:
    """The address of this host, the first of `hosts`, by which the others reach it.

    Where there are others, that from which this host would send to one of them; what its own name stands for is
    127.0.1.1 on many systems.
    """
    others = [host for host in hosts if host != hosts[0]]
    if not others:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((others[0], 9))  # sends nothing
        except OSError as error:
            raise UserError(f"{hosts[0]} does not reach {others[0]}, which XGBoost needs: {error.strerror}") from None
        address = str(probe.getsockname()[0])
    if address.startswith("127."):
        raise UserError(
            f"{others[0]} cannot reach {hosts[0]} at {address}, which XGBoost needs; see that the hosts' names stand "
            "for addresses in a network that all have"
        )
    return address


@contextmanager
def signals_kept_out() -> Iterator[None]:
    """Stop signals wait until `let_in`: XGBoost's collective fails where one interrupts its calls. Local.

    The threads that XGBoost starts meanwhile have the same mask.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def let_in() -> None:
    """Has the signals that wait handled, between two calls of XGBoost."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
