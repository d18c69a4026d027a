"""Cancels a job, whoever runs it."""

from __future__ import annotations

import getpass
from pathlib import Path

from hpc_train.errors import SchedulerError, UserError
from hpc_train.jobdir.paths import CANCELLED_FILE
from hpc_train.jobs.inspect import look
from hpc_train.jobs.record.status import Standing
from hpc_train.jobs.record.submission import note_cancelled, read_submission
from hpc_train.jobs.schedulers.local import runner as local_runner
from hpc_train.jobs.schedulers.local.queue import LocalQueue
from hpc_train.jobs.schedulers.slurm import queue as slurm_queue


def cancel(job_dir: Path, save: bool, queue: LocalQueue) -> tuple[Standing, bool]:
    """Ends the job in `job_dir`: with `save` its ranks save first, else at once.

    Returns:
        How it stood, and whether there was something to cancel.

    Writes CANCELLED_FILE, by which the end that is to come is told from others.

    Raises:
        UserError: It is not this user's, or was started by hand.
        SchedulerError: Its queue does not answer; it was not cancelled.
    """
    submission, before = read_submission(job_dir), look(job_dir, queue)
    if before.state == "LOST" and submission is not None and submission.backend == "local":
        outlived = local_runner.processes_of(submission.token)  # ranks whose runner was killed
        if outlived and local_runner.kill_all(submission.token):
            note_cancelled(job_dir, submission.token, getpass.getuser())
            return before, True
    if before.has_ended:
        return before, False
    if before.note is not None:
        raise SchedulerError(f"{before.name}: not cancelled: {before.note}")
    if before.backend == "by hand":
        raise UserError(
            f"{before.name}: was started by hand, without a queue; stop the process that started it on {before.where}"
        )
    waits = before.state in ("QUEUED", "REQUEUED")
    note_cancelled(job_dir, submission.token if submission is not None else None, getpass.getuser())
    try:
        if before.backend == "slurm" and before.job_id is not None:
            slurm_queue.cancel(before.job_id, "save" if save and not waits else "now")
        elif submission is not None and submission.backend == "slurm":
            slurm_queue.cancel_all(submission.token)
        elif submission is not None:
            _cancel_local(job_dir, submission.token, save, queue)
    except (UserError, SchedulerError):
        (job_dir / CANCELLED_FILE).unlink(missing_ok=True)
        raise
    return before, True


def _cancel_local(job_dir: Path, token: str, save: bool, queue: LocalQueue) -> None:
    mine = [ticket for ticket in queue.tickets() if ticket.job_dir == str(job_dir)]
    if not mine:
        local_runner.kill_all(token)
    elif mine[0].started is not None and not local_runner.stop(mine[0], token, save) and not save:
        left = ", ".join(str(process.pid) for process in local_runner.processes_of(token))
        raise SchedulerError(f"{job_dir.name}: its processes could not be ended: {left}")
