"""This machine as a scheduler: what it has to give, a queue of files, and a runner for each job."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hpc_train.config.resources import Resources
from hpc_train.distributed.binding import cpus_of_the_queue
from hpc_train.distributed.devices import nvidia_device_count
from hpc_train.errors import SchedulerError, UserError
from hpc_train.jobs.record.status import JobRecord, QueueState
from hpc_train.jobs.record.submission import Submission
from hpc_train.jobs.schedulers.base import Limits, ReportLine, Scheduler
from hpc_train.jobs.schedulers.local.queue import LocalQueue, queue_folder
from hpc_train.jobs.schedulers.local.runner import TOKEN_VARIABLE, kill_all, start_of_job, start_runner, stop
from hpc_train.processes import home_folder, with_variable
from hpc_train.telemetry.units import counted


class Machine(NamedTuple):
    """Cores and GPUs of one machine."""

    cores: int
    gpus: int


def this_machine() -> Machine:
    """The one that this process runs on, as far as it may use it."""
    return Machine(len(cpus_of_the_queue(os.environ)), nvidia_device_count())


def machine_shortfalls(resources: Resources, machine: Machine) -> list[str]:
    """What `machine` cannot give, each a sentence: what is wanted, what there is, and what to change. Pure.

    All of a job's nodes are the one machine. Ranks share its cores, however few, but have GPUs of their own.
    """
    if resources.roles:
        return [
            f"{resources.roles[0]}: roles on nodes of their own are for Slurm, and this machine is one; leave it out"
        ]
    wanted = resources.nodes * resources.gpus_per_node
    if wanted <= machine.gpus:
        return []
    of_nodes = f" ({resources.nodes} nodes of {resources.gpus_per_node})" if resources.nodes > 1 else ""
    what = f"gpus_per_node: {counted(wanted, 'GPU')} wanted{of_nodes}, but this machine has {machine.gpus or 'none'}"
    return [f"{what}; ask for fewer, or use a tier without GPUs"]


def this_queue() -> LocalQueue:
    """The queue of this machine's jobs."""
    return LocalQueue(queue_folder(os.environ, home_folder()), *this_machine())


class LocalScheduler(Scheduler):
    """Runs jobs on this machine, each once its cores are free."""

    name, words = "local", "local job"

    def absence(self) -> None:
        return None

    def limits(self) -> Limits:
        machine = this_machine()
        return lambda wants: machine_shortfalls(wants, machine)

    def script(self, submission: Submission, job_dir: Path) -> str:
        start = start_of_job(job_dir, submission.masked, job_dir / "logs/run-0")
        words = ["env", *(f"{name}={value}" for name, value in start.settings.items()), *start.command]
        return f"cd {shlex.quote(str(start.cwd))}\n{shlex.join(words)}\n"

    def submit(
        self, job_dir: Path, submission: Submission, script: str, report: ReportLine, interrupted: Callable[[], bool]
    ) -> Submission:
        numbered = start_runner(job_dir, submission, this_queue())
        if interrupted():
            kill_all(submission.token)
            raise KeyboardInterrupt
        return numbered

    def query(self, record: JobRecord) -> QueueState:
        assert record.submission is not None, "no other job is in this queue"
        try:
            return this_queue().seen(record.submission, socket.gethostname())
        except UserError as error:  # the queue cannot be read
            return QueueState("unasked", note=str(error))

    def cancelled_by_hand(self, record: JobRecord) -> str:
        return f"to end it, send SIGTERM to its runner, `python -m {__package__} {record.job_dir}`"

    def cancel(self, record: JobRecord, save: bool, waits: bool) -> None:
        assert record.submission is not None, "no other job is in this queue"
        token = record.submission.token
        places = (record.number, str(record.job_dir))  # which may have been renamed, or has no number yet
        mine = next((t for t in this_queue().tickets() if str(t.number) in places or t.job_dir in places), None)
        if mine is not None and mine.started is None:
            return  # its runner finds that it is cancelled
        ended = stop(mine, token, save) if mine is not None else kill_all(token)
        if not ended and not save:
            left = ", ".join(map(str, self.leftover([record.submission])[0]))
            raise SchedulerError(f"{record.job_dir.name}: its processes could not be ended: {left}")

    def job_dir_of(self, number: str) -> Path | None:
        with suppress(UserError):  # a queue that cannot be used
            return this_queue().job_dir_of(number)
        return None

    def leftover(self, submissions: Sequence[Submission]) -> list[list[int]]:
        found = with_variable(TOKEN_VARIABLE, {submission.token for submission in submissions})
        return [[process.pid for process in found[submission.token]] for submission in submissions]
