"""What Slurm's commands report of jobs, parsed. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hpc_train.jobdir.paths import SCRIPT_FILE
from hpc_train.jobs.record.status import QueueState

_WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "REQUEUE_FED", "RESV_DEL_HOLD")
_RUNNING = ("RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING")


@dataclass(frozen=True)
class SlurmJob:
    """A job as `scontrol show job` reports it. Times are seconds since 1970, None where unknown.

    Attributes:
        output: The file of its standard output. batch: it is a script's, not an allocation of salloc or srun.
    """

    job_id: str
    state: str
    reason: str | None
    requeues: int
    exit_code: int
    signal: int
    start: float | None
    end: float | None
    nodes: str | None
    command: str
    output: str | None = None
    batch: bool = True


def parse_job(line: str) -> SlurmJob:
    """A line of `scontrol --oneliner show job`, with times as seconds since 1970. Pure."""

    def field(name: str) -> str:
        match = re.search(rf"(?:^|\s){name}=(\S*)", line)
        return match[1] if match else ""

    def number(name: str) -> float | None:
        return float(field(name)) if field(name).isdigit() else None

    code, _, signal = field("ExitCode").partition(":")
    reason = field("Reason")
    command = re.search(r"(?:^|\s)Command=(.*?) WorkDir=", line)
    requeues, output = field("Restarts"), re.search(r"(?:^|\s)StdOut=(/.*?)(?: \w+=|\s*$)", line)
    return SlurmJob(
        job_id=field("JobId"),
        state=field("JobState"),
        reason=reason if reason not in ("", "None") else None,
        requeues=int(requeues) if requeues.isdigit() else 0,
        exit_code=int(code) if code.isdigit() else 0,
        signal=int(signal) if signal.isdigit() else 0,
        start=number("StartTime"),
        end=number("EndTime") if field("TimeLimit") != "UNLIMITED" else None,
        nodes=field("NodeList") if field("NodeList") not in ("", "(null)") else None,
        command=command[1] if command else "",
        output=output[1] if output else None,
        batch=field("BatchFlag") != "0",
    )


def job_dir_of(job: SlurmJob) -> Path | None:
    """The job-dir of a job that `hpc-train submit` has put into the queue; None of another. Pure."""
    script = job.command.rpartition(" ")[0]
    path = Path(script)
    return path.parent if path.name == SCRIPT_FILE and path.is_absolute() else None


def seen_of(job: SlurmJob) -> QueueState:
    """What Slurm knows of a job, from the output of scontrol."""
    if job.state in _WAITING:
        return QueueState("waiting", job.reason or "waiting to be scheduled", job.requeues, where=None)
    if job.state in _RUNNING:
        ends = f"Slurm ends it (COMPLETING on {job.nodes})" if job.state == "COMPLETING" else None
        return QueueState("running", ends, job.requeues, job.start, job.end, where=job.nodes)
    return QueueState(
        "ended",
        None if job.state == "COMPLETED" else _ending(job.state, job.reason, job.exit_code, job.signal),
        job.requeues,
        job.start,
        cancelled=job.state == "CANCELLED",
        exit_code=job.exit_code,
        signal=job.signal,
        where=job.nodes,
    )


def _ending(state: str, reason: str | None, code: int, signal: int) -> str:
    words = state if reason in (None, "NonZeroExitCode") else f"{state} ({reason})"
    return f"Slurm: {words}" + (f", exit code {code}" if code else f", signal {signal}" if signal else "")


def parse_accounting(line: str) -> QueueState:
    """A line of sacct's: `CANCELLED by 1000|0:15`. Pure."""
    words, _, codes = line.partition("|")
    code, _, signal = codes.partition(":")
    state = words.split()[0] if words.split() else ""
    if not re.fullmatch("[A-Z_]+", state) or state in _WAITING + _RUNNING:
        return QueueState("forgotten")
    numbers = [int(text) if text.isdigit() else 0 for text in (code, signal)]
    ending = None if state == "COMPLETED" else _ending(state, None, *numbers)
    return QueueState("ended", ending, cancelled=state == "CANCELLED", exit_code=numbers[0], signal=numbers[1])
