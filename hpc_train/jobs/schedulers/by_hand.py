"""Jobs that no scheduler here looks after: those that somebody has started by hand, and those of another version."""

from __future__ import annotations

import socket

from hpc_train.jobs.record.job_record import JobRecord
from hpc_train.jobs.record.status import QueueState
from hpc_train.jobs.schedulers.base import Backend
from hpc_train.processes import is_alive


class ByHand(Backend):
    """Jobs that were started without a queue: whether the chief still runs, if that is on this machine."""

    name, words = "by hand", None

    def query(self, record: JobRecord) -> QueueState:
        status = record.status
        if status.get("state") != "running":
            return QueueState("forgotten")
        if status.get("host") != socket.gethostname():
            return QueueState(
                "unasked", note=f"it was started on {status.get('host')}, which cannot be asked from here"
            )
        requeues = int(status.get("requeues") or 0)
        if is_alive(status, status.get("started")):
            return QueueState("running", None, requeues, where=status.get("host"))
        return QueueState("forgotten", "its process has ended, and left no end")


class Unknown(Backend):
    """Jobs of a scheduler that this version of hpc_train does not have."""

    def __init__(self, name: str) -> None:
        self.name, self.words = name, f"{name} job"

    def query(self, record: JobRecord) -> QueueState:
        return QueueState("unasked", note=f"this version of hpc_train knows no scheduler {self.name!r}")
