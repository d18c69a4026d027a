"""What befalls nodes of a test cluster that go on living: they are stopped for a while, slowed, or drained."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from tests.slurm.cluster import SlurmCluster

STOPPED_SECS, DRAINED_SECS = 5.0, 10.0
SLOWED_TIMES, SLOWED_SECS = 10, 0.2


def stop_node(cluster: SlurmCluster, node: str, secs: float = STOPPED_SECS) -> None:
    """All that runs on it stands still, its slurmd, too."""
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in cluster.processes_of(node):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(secs if number == signal.SIGSTOP else 0)


def slow_node(cluster: SlurmCluster, node: str) -> None:
    """It has half its time."""
    for _ in range(SLOWED_TIMES):
        stop_node(cluster, node, SLOWED_SECS)
        time.sleep(SLOWED_SECS)


def drain_node(cluster: SlurmCluster, node: str, meanwhile: Callable[[], object] = lambda: None) -> None:
    """No job gets it for a while."""
    cluster.run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test"])
    meanwhile()
    time.sleep(DRAINED_SECS)
    cluster.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])
