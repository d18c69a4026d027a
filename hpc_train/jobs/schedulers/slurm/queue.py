"""Slurm's commands: submit one job and never two, ask for a job's status, signal and cancel it."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from hpc_train.errors import SchedulerError, UserError
from hpc_train.jobs.record.status import QueueState
from hpc_train.jobs.schedulers.base import AbsentError
from hpc_train.jobs.schedulers.slurm.limits import Partition, parse_sinfo, sinfo_command
from hpc_train.jobs.schedulers.slurm.records import SlurmJob, job_dir_of, parse_accounting, parse_job, seen_of
from hpc_train.telemetry.status import JOB_NUMBER

log = logging.getLogger(__name__)

ASK_SECS = 30.0
"""What one command may take. Slurm's own patience with its controller is some 10 s (MessageTimeout)."""
SUBMIT_SECS = 90.0
RETRY_SECS = 5.0
SETTLE_SECS = 2.0
"""How long a submission whose answer got lost may take to show in the queue, once the controller answers."""

_DOWN = re.compile(
    "Unable to contact slurm controller|Socket timed out|Connection refused|connect failure|Transport endpoint|"
    "Zero Bytes were transmitted|backup controller|Communication connection failure|Message receive failure|"
    "Insane message|slurm_persist_conn|Unable to establish|temporarily unable to accept|Protocol authentication error",
    re.IGNORECASE,
)
_NOT_CONFIGURED = "configuration source"
_MISLEADING = re.compile(
    "(SINFO|SQUEUE|SCONTROL|SACCT|SCANCEL|SBATCH)_.*|SLURM_CLUSTERS|SLURM_(CPUS|NTASKS|MEM|GPUS?|TRES).*"
)
"""Variables that would give the commands other options than those here, such as those of a job that this runs in."""
_UNKNOWN = re.compile(r"Invalid job id specified|Job \S+ not found")  # the second of an array's task


def is_here() -> bool:
    """Whether there is an sbatch on PATH."""
    return shutil.which("sbatch") is not None


def run(command: Sequence[str], secs: float = ASK_SECS) -> subprocess.CompletedProcess[str]:
    """Runs one of Slurm's commands.

    Raises:
        SchedulerError: It is not there, takes too long, or cannot reach the controller.
    """
    wanted = {name: value for name, value in os.environ.items() if not _MISLEADING.fullmatch(name)}
    env = {**wanted, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
    log.debug(f"running {shlex.join(command)}")
    try:
        done = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=secs,
            start_new_session=True,  # the terminal's Ctrl-C is not for it: its answer would be lost
        )
    except FileNotFoundError:
        raise AbsentError(f"there is no {command[0]} on PATH: is this a node of the cluster?") from None
    except subprocess.TimeoutExpired:
        raise SchedulerError(f"{command[0]} has not answered for {secs:.0f} s") from None
    if done.returncode != 0 and _NOT_CONFIGURED in done.stderr:
        raise AbsentError(
            f"{command[0]} finds no Slurm here ({_last_line(done.stderr)}): submit from a node of the cluster, or take "
            "--backend local to run jobs on this machine"
        )
    if done.returncode != 0 and _DOWN.search(done.stderr):
        raise SchedulerError(f"Slurm does not answer: {_last_line(done.stderr)}")
    return done


def checked(job_id: str) -> str:
    """`job_id`, a job's number, which may come from a file.

    Raises:
        UserError: It is none; Slurm's commands would take it for an option, or for many jobs.
    """
    if not JOB_NUMBER.fullmatch(job_id):
        raise UserError(f"{job_id[:40]!r} is not the number of a job; allowed: 17, or 17_3 of an array")
    return job_id


def partitions() -> list[Partition]:
    """What sinfo reports of the partitions.

    Raises:
        SchedulerError: It cannot be asked.
    """
    done = run(sinfo_command())
    if done.returncode != 0:
        raise SchedulerError(f"sinfo: {_last_line(done.stderr)}")
    return parse_sinfo(done.stdout)


def nodes() -> set[str] | None:
    """The names of all nodes of the cluster; None where Slurm does not answer."""
    with suppress(SchedulerError):
        done = run(["sinfo", "--all", "--noheader", "--Node", "--format=%N"])
        return set(done.stdout.split()) if done.returncode == 0 else None
    return None


def submit(
    script: Path,
    token: str,
    options: Sequence[str] = (),
    report: Callable[[str], None] = lambda _: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> str:
    """Submits `script` with the argument `token`, and returns the job's number.

    Where the controller does not answer, tries again for SUBMIT_SECS. A submission whose answer was lost is found in
    the queue by its token, so that the job is never there twice.

    Args:
        report: Called each time that Slurm does not answer.
        interrupted: Whether the user wants it no more; what was queued by then is cancelled.

    Raises:
        UserError: sbatch refuses the job; its own message is in the text.
        SchedulerError: The controller does not answer; the job is not in the queue, as far as can be known.
        KeyboardInterrupt: `interrupted`.
    """
    command = ["sbatch", "--parsable", *options, "--", str(script), token]
    deadline = time.monotonic() + SUBMIT_SECS
    asked = 0
    while True:
        try:
            if interrupted():
                if asked:
                    cancel_all(token)
                raise KeyboardInterrupt
            if asked and (found := _in_queue(token)):
                return found
            asked += 1
            done = run(command, ASK_SECS)
        except AbsentError:
            raise
        except SchedulerError as error:
            if interrupted() or time.monotonic() > deadline:
                raise SchedulerError(
                    f"{error}; the job is not queued. Should Slurm have heard of it all the same, it ends as soon as "
                    "it is started"
                ) from None
            report(f"{error}; trying again for {max(0, deadline - time.monotonic()):.0f} s")
            _sleep(RETRY_SECS, interrupted)
            continue
        if done.returncode != 0:
            raise UserError(f"sbatch refuses the job: {_messages(done.stderr)}")
        job_id = checked(done.stdout.strip().partition(";")[0])
        try:
            if interrupted():
                cancel_all(token)
                raise KeyboardInterrupt
            if asked > 1:
                cancel_all(token, but=job_id)
        except SchedulerError as error:
            report(f"{error}; job {job_id} is queued; should squeue show a second one of its name, cancel that")
        return job_id


def _sleep(secs: float, interrupted: Callable[[], bool]) -> None:
    end = time.monotonic() + secs
    while time.monotonic() < end and not interrupted():
        time.sleep(min(0.2, secs))


def _in_queue(token: str) -> str | None:
    """The number of the job that was submitted with `token`, or None; asked twice, since it may be on its way."""
    for _ in range(2):
        if found := _jobs_of(token):
            return found[0]
        time.sleep(SETTLE_SECS)
    return None


def number_of(token: str) -> str | None:
    """The number of the job that was submitted with `token`; None also where Slurm does not answer."""
    with suppress(SchedulerError):
        return next(iter(_jobs_of(token)), None)
    return None


def known_jobs() -> set[str] | None:
    """The numbers of all of this user's jobs that Slurm knows; None where it does not answer."""
    with suppress(SchedulerError):
        done = run(["squeue", "--noheader", "--states=all", "--me", "--format=%i"])
        return {_number(word) for word in done.stdout.split()} if done.returncode == 0 else None
    return None


def _number(word: str) -> str:
    """Of a job. A heterogeneous one has that of its first component, `17+0`; those of others are no jobs' numbers."""
    return word.removesuffix("+0")


def _jobs_of(token: str) -> list[str]:
    done = run(["squeue", "--noheader", "--states=all", "--me", "--format=%i %o"])
    if done.returncode != 0:
        raise SchedulerError(f"squeue: {_last_line(done.stderr)}")
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    numbers = (_number(word) for word, _, command in lines if token in command.split())
    found = (number for number in numbers if JOB_NUMBER.fullmatch(number))
    return sorted(found, key=lambda number: (len(number), number))


def cancel_all(token: str, but: str | None = None) -> None:
    """Cancels what submissions with this token have put into the queue, `but` for one number.

    Raises:
        SchedulerError: It cannot be asked.
    """
    for number in _jobs_of(token):
        if number != but:
            run(["scancel", "--", checked(number)])


def show(job_id: str) -> SlurmJob | None:
    """What Slurm knows of a job; None where it does not know it (any more).

    Raises:
        SchedulerError: It cannot be asked.
    """
    done = run(["scontrol", "--oneliner", "show", "job", checked(job_id)])
    if done.returncode != 0:
        if _UNKNOWN.search(done.stderr + done.stdout):
            return None
        raise SchedulerError(f"scontrol: {_last_line(done.stderr)}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("JobId=")]
    return parse_job(lines[0]) if lines else None


def job_dir_in_slurm(job_id: str) -> Path | None:
    """The job-dir of the job with this number; None also where Slurm is not here, or does not answer."""
    with suppress(SchedulerError):
        if is_here() and (job := show(job_id)) is not None:
            return job_dir_of(job)
    return None


def seen(job_id: str, token: str | None = None, known: set[str] | None = None) -> QueueState:
    """What Slurm knows of the job with this number, which was submitted with `token`, if it was by hpc-train submit.

    `known` are the numbers of all jobs that it knows, where they have been asked for.
    """
    try:
        job = show(job_id) if known is None or job_id in known else None
        if job is not None and token is not None and token not in job.command.split():
            return QueueState("forgotten", "Slurm has given its number to another job")
        return _from_accounting(job_id) if job is None else seen_of(job)
    except SchedulerError as error:
        return QueueState("unasked", note=str(error))


def _from_accounting(job_id: str) -> QueueState:
    """What sacct knows of a job that slurmctld has forgotten, where there is a sacct and accounting."""
    if shutil.which("sacct") is None:
        return QueueState("forgotten")
    command = [
        "sacct",
        "--noheader",
        "--parsable2",
        "--allocations",
        f"--jobs={checked(job_id)}",
        "--format=State,ExitCode",
    ]
    try:
        done = run(command)
    except SchedulerError as error:  # where there is no accounting, or its server is down
        return QueueState("forgotten", note=f"sacct: {error}" if not isinstance(error, AbsentError) else None)
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return parse_accounting(lines[-1]) if lines else QueueState("forgotten")


def cancel(job_id: str, save: bool = False) -> None:
    """Cancels a job; with `save`, its script is asked to have the ranks save first, and to leave then.

    Raises:
        UserError: Slurm refuses, as with a job of somebody else's.
        SchedulerError: It cannot be asked.
    """
    options = ["--batch", "--signal=TERM"] if save else []
    done = run(["scancel", *options, "--", checked(job_id)])
    if done.returncode != 0 and not _UNKNOWN.search(done.stderr):
        raise UserError(f"scancel refuses: {_messages(done.stderr)}")


def _messages(text: str) -> str:
    """What a command of Slurm's complains of, on one line."""
    lines = [re.sub(r"^\w+: error: ", "", line).strip() for line in text.splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(lines)) or "it does not say why"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
