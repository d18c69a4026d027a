"""Cancels a job, whoever runs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpc_train.errors import SchedulerError, UserError
from hpc_train.folders import exposure, remove
from hpc_train.jobdir.paths import CANCELLED_FILE
from hpc_train.jobs.inspect import inspect_job, leftover
from hpc_train.jobs.record.status import WAITING, JobRecord, JobStatus, State, read_record
from hpc_train.jobs.record.submission import note_cancelled
from hpc_train.jobs.schedulers import backend_of
from hpc_train.processes import user_name


@dataclass(frozen=True)
class Cancellation:
    """What became of a request to cancel a job.

    Attributes:
        before: The job as it was.
        ended: The state in which it had ended already, so that there was nothing to cancel; None: it is cancelled.
        saves: Its ranks save a checkpoint first.
        left_over: It had ended already, but for what was left of it, which is ended now; it keeps its state.
    """

    before: JobStatus
    ended: State | None = None
    saves: bool = False
    left_over: bool = False


def cancel(job_dir: Path, save: bool) -> Cancellation:
    """Ends the job in `job_dir`: with `save` its ranks save first, which is not waited for, else at once.

    Writes CANCELLED_FILE, which distinguishes the end that is to come from others.

    Raises:
        UserError: It is not this user's, or `job_dir` is not the job's own folder.
        SchedulerError: Its queue does not answer; it was not cancelled.
    """
    before, record = inspect_job(job_dir), read_record(job_dir)
    _check_record(record, job_dir)
    if before.has_ended and not leftover(job_dir):
        return Cancellation(before, before.state)
    if before.note is not None:
        elsewhere = f"; {backend_of(record).cancelled_by_hand(record)}" if record.submission is None else ""
        raise SchedulerError(f"{before.name}: not cancelled: {before.note}{elsewhere}")
    _check_identity(record, job_dir)
    if before.state == "PREPARING" and record.submission is None and record.number is not None:
        raise SchedulerError(f"{before.name}: not cancelled: a run of it just starts ({before.reason}); try again then")
    scheduler, submission = backend_of(record), record.submission
    if before.finishing or (before.has_ended and before.state != "LOST"):
        scheduler.cancel(record, save=False, waits=False)
        return Cancellation(before, left_over=True)
    saves = save and before.state not in WAITING and not before.has_ended
    note_cancelled(job_dir, submission.token if submission is not None else None, user_name())
    try:
        scheduler.cancel(record, save and not before.has_ended, waits=before.state in WAITING)
    except (UserError, SchedulerError):
        remove(job_dir / CANCELLED_FILE, missing_ok=True)
        raise
    if not save:
        after = inspect_job(job_dir).state
        if after in ("SUCCEEDED", "FAILED"):  # just before
            return Cancellation(before, after)
    return Cancellation(before, saves=saves)


def _check_record(record: JobRecord, job_dir: Path) -> None:
    """UserError where `job_dir` is not that of a job."""
    if record.unreadable:
        raise UserError(f"{job_dir}: is no record of a job: {'; '.join(record.unreadable)}")
    if record.copied:
        number = f"job {record.number}" if record.number else "a job"
        raise UserError(f"{job_dir}: is a copy of the job-dir of {number}, not the job itself; nothing is cancelled")


def _check_identity(record: JobRecord, job_dir: Path) -> None:
    """UserError where it is not certain that the job that `job_dir` names is the one that made it."""
    job = f"job {record.number}" if record.number else "its job"
    remedy = "nothing is cancelled; " + backend_of(record).cancelled_by_hand(record)
    if record.folder is None:
        raise UserError(
            f"{job_dir}: does not record that it is the job-dir of {job}, as older versions did not; {remedy}"
        )
    if (owner := exposure(job_dir, group=record.number is None)) is not None:  # without a queue, a pid counts
        raise UserError(f"{job_dir}: {owner}, so that {job} may be another one; {remedy}")
