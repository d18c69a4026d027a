"""What a scheduler is to the rest of hpc_train: the few verbs that every batch system has; and jobs without one."""

from __future__ import annotations

import shlex
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_train.config.resources import Resources
from hpc_train.errors import SchedulerError, UserError
from hpc_train.jobs.record.status import JobRecord, QueueState
from hpc_train.jobs.record.submission import Submission
from hpc_train.jobs.schedulers.starter import starter_of, stop
from hpc_train.processes import is_alive
from hpc_train.resilience.job_lock import holder_of

Limits = Callable[[Resources], list[str]]
"""What cannot be given of some resources, each a sentence: what is wanted, what there is, and what to change."""
ReportLine = Callable[[str], None]
"""Called with a line that the user should know."""


class AbsentError(SchedulerError):
    """There is no such scheduler here, which trying again does not change."""


class Backend(ABC):
    """Who runs jobs: what can be asked about them.

    Attributes:
        name: As in submission.json, in the JSON of the commands, and for `--backend`.
        words: What a job is called before its number, as in "Slurm job 17"; None: its jobs have no numbers.
    """

    name: str
    words: str | None

    @abstractmethod
    def query(self, record: JobRecord) -> QueueState:
        """What is known of a job; "unasked", with a note, where that cannot be asked. Raises nothing."""

    def cancelled_by_hand(self, record: JobRecord) -> str:
        """How a user ends a job without this package, as the end of a sentence."""
        return "end the processes that run it"

    def output_by_hand(self, record: JobRecord) -> str:
        """Where a job prints that was started without this package's queues, and how a user sees it."""
        if (output := record.status.get("output")) is not None:
            return f"it prints into {output}"
        return (
            "it prints where it was started: in that terminal, or into a pipe; with `hpc-train launch … > train.log "
            "2>&1`, or hpc-train submit, `hpc-train logs` shows it"
        )

    def joules(self, record: JobRecord) -> float | None:
        """What the nodes of an ended job have used, as its queue has counted; None: it has not. Raises nothing."""
        return None

    def cancel(self, record: JobRecord, save: bool, waits: bool) -> None:
        """Ends a job and all of its processes, at once; with `save`, its ranks save first, which is not waited for.

        Called once the job-dir records that the job is cancelled.

        Args:
            waits: Whether it was waiting in the queue just before; it may have started since.

        Raises:
            UserError: That is refused, as for a job of somebody else's.
            SchedulerError: The scheduler does not answer, or processes could not be ended.
        """
        raise SchedulerError(f"{record.job_dir.name}: not cancelled: {self.cancelled_by_hand(record)}")

    def leftover(self, submissions: Sequence[Submission]) -> list[list[int]]:
        """For each job the processes that still run though its queue has forgotten it: none is resumed beside them."""
        return [[] for _ in submissions]

    def query_all(self, records: Sequence[JobRecord]) -> list[QueueState]:
        """The same of many jobs, in their order."""
        return [self.query(record) for record in records]


class ByHand(Backend):
    """Jobs that were started without a queue: whether the chief still runs, if that is on this machine."""

    name, words = "by hand", None

    def query(self, record: JobRecord) -> QueueState:
        status, requeues = record.status, int(record.status.get("requeues") or 0)
        runs, host = status.get("state") == "running", status.get("host")
        if host != socket.gethostname():
            note = f"it was started by hand on {host}, which cannot be asked from here"
            return QueueState("unasked", note=note) if runs else QueueState("forgotten")
        if runs and is_alive(status, status.get("started")):
            return QueueState("running", None, requeues, where=host)
        if is_alive(supervisor := status.get("supervisor", {})):  # until it has decided whether to
            reason = f"hpc-train launch (pid {supervisor['pid']}) may start it again"
            return QueueState("running", reason, requeues, where=host)
        return QueueState("forgotten", "its process has ended, and left no end" if runs else None)

    def cancelled_by_hand(self, record: JobRecord) -> str:
        host = record.status.get("host")
        if host != socket.gethostname():
            return f"to cancel it, type on {host}: hpc-train cancel {shlex.quote(str(record.job_dir))}"
        starter = starter_of(_living(record))
        return "its processes have ended" if starter is None else f"to end it, type: {starter.command(save=False)}"

    def cancel(self, record: JobRecord, save: bool, waits: bool) -> None:
        living = _living(record)
        if (starter := starter_of(living)) is not None:
            stop(starter, living, save)


def _living(record: JobRecord) -> Mapping[str, Any]:
    """Which process runs the job: that of its status, the one that has begun a run, or the one that may begin it."""
    status = record.status
    if is_alive(status, status.get("started")):
        return status
    return holder_of(record.job_dir) or status.get("supervisor", {})


class Unknown(Backend):
    """Jobs of a scheduler that this version of hpc_train does not have."""

    def __init__(self, name: str) -> None:
        self.name, self.words = name, f"{name} job"

    def query(self, record: JobRecord) -> QueueState:
        return QueueState("unasked", note=f"this version of hpc_train knows no scheduler {self.name!r}")


@dataclass(frozen=True)
class DriverJobs:
    """Jobs that run the trials of a study.

    Attributes:
        name: The study's.
        folder: For their script and output; it is there, and this user's alone.
        words: Of the command of hpc-train that each of them is.
        wants: What each of them runs on.
        count: How many there are.
    """

    name: str
    folder: Path
    words: tuple[str, ...]
    wants: Resources
    count: int


@dataclass(frozen=True)
class NodeKind:
    """Nodes that are alike, of one partition of a scheduler that is open.

    Attributes:
        default: Jobs that name no partition go there.
        count: How many there are.
        cores, gpus: Of each; `gpu` is the GPUs' name, or "".
        max_time_secs: The longest time limit; None: any.
        max_nodes: What one job may have; None: all.
    """

    partition: str
    default: bool
    count: int
    cores: int
    gpus: int
    gpu: str
    max_time_secs: int | None
    max_nodes: int | None


class Scheduler(Backend):
    """Who queues and runs jobs that are submitted to it.

    A job runs `record.submission.job_command` on each rank, in the folder CODE of its job-dir, with its number and the
    count of its requeues as `telemetry.status.job_fields` reads them. All that it prints is appended to LOG_FILE there.
    Once its ranks have ended, `launch.record_end` notes their exit code. A job that is stopped for others, or at its
    time limit, goes back into the queue by itself.
    """

    words: str

    @abstractmethod
    def absence(self) -> str | None:
        """Why no job can be submitted from here, and what to do; None where one can."""

    @abstractmethod
    def limits(self) -> Limits:
        """What there is to give, asked for once.

        Raises:
            AbsentError: There is no such scheduler here.
            SchedulerError: It does not answer, so that nothing is known.
        """

    def node_kinds(self) -> list[NodeKind]:
        """The nodes that it runs jobs on, those of the default partition first; none where it has no partitions.

        Raises:
            SchedulerError: It does not answer.
        """
        return []

    def completed(self, wants: Resources, env: Mapping[str, str]) -> Resources:
        """`wants` with what `env` sets where neither the tier nor the job file does.

        Raises:
            UserError: What `env` sets is not allowed.
        """
        return wants

    @abstractmethod
    def script(self, submission: Submission, job_dir: Path) -> str:
        """What is run for the job, as a shell script; for people, and for schedulers that take one.

        Raises:
            UserError: A path or a word cannot be written into a script.
        """

    @abstractmethod
    def submit(
        self, job_dir: Path, submission: Submission, script: str, report: ReportLine, interrupted: Callable[[], bool]
    ) -> Submission:
        """Queues a job, to start once the job `submission.after` has succeeded; the submission with its number.

        The job-dir is there, with the copy of the code and SUBMISSION_FILE, in which the number is noted. After an
        error the job is not in the queue.

        Args:
            script: As `script` gave it.
            report: Called with what the user should know meanwhile.
            interrupted: Whether the user wants the job no more.

        Raises:
            UserError: The job is refused, or its job-dir cannot be written.
            SchedulerError: The scheduler does not answer.
            KeyboardInterrupt: `interrupted`.
        """

    def submit_drivers(self, jobs: DriverJobs, report: ReportLine) -> str:
        """Queues jobs that each run trials of a study until there are no more; their number in the queue.

        Raises:
            UserError: They are refused, or the study's folder cannot be written, or this scheduler has no such jobs.
            SchedulerError: The scheduler does not answer.
        """
        raise UserError(
            f"--as-jobs: the queue of {self.words}s has no arrays of jobs; leave it out, and all runs on this machine, "
            "as much at once as there is room for"
        )

    @abstractmethod
    def cancel(self, record: JobRecord, save: bool, waits: bool) -> None: ...

    @abstractmethod
    def job_dir_of(self, number: str) -> Path | None:
        """The job-dir of the job with this number; None where there is none, or nobody to ask."""

    def runs_unsubmitted(self, status: Mapping[str, Any]) -> bool:
        """Whether a job that nobody submitted by hpc-train, and whose ranks have left `status`, is in this queue.

        The first scheduler of the registry that says so has it; ranks that name their job (`job_id`) are Slurm's.
        """
        return False
