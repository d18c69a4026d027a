"""Submits a prepared job: copies its code, writes its job-dir, and puts it into its queue; or leaves nothing behind."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from hpc_train.errors import SchedulerError, UserError
from hpc_train.jobs import slurm_queue
from hpc_train.jobs.local_runner import kill_all, start_runner
from hpc_train.jobs.look import this_queue
from hpc_train.jobs.preparing import Prepared, Say
from hpc_train.jobs.snapshot import copy_snapshot
from hpc_train.jobs.submission import (
    CANCELLED_FILE,
    CODE,
    LOG_FILE,
    SCRIPT_FILE,
    SUBMISSION_FILE,
    Submission,
    make_job_dir,
)
from hpc_train.monitoring.files import replace_text, write_json
from hpc_train.monitoring.status import STATUS_FILE, read_status


def submit(prepared: Prepared, say: Say) -> Submission:
    """Writes the job-dir and puts the job into its queue; the submission with its number.

    Nothing is left behind where that fails: no job in the queue, and in the job-dir what was there before.

    Raises:
        UserError: The job-dir cannot be written, or Slurm refuses the job.
        SchedulerError: Slurm does not answer.
    """
    submission, job_dir = prepared.submission, prepared.job_dir
    with _new_or_as_before(job_dir, prepared.plan is not None):
        try:
            if prepared.plan is not None:
                code = asdict(copy_snapshot(prepared.plan, job_dir / CODE))
                submission = replace(submission, code=code)
            (job_dir / LOG_FILE).parent.mkdir(exist_ok=True)
            submission.save(job_dir)
            (job_dir / CANCELLED_FILE).unlink(missing_ok=True)
            kept = {k: v for k, v in read_status(job_dir).items() if k not in ("error", "exit_code", "secs_left")}
            waiting = {**kept, "state": "queued", "job_id": None, "updated": time.time()}
            write_json(job_dir / STATUS_FILE, waiting)
            if submission.backend == "local":
                return submission.with_id(_to_this_machine(submission, job_dir))
            replace_text(job_dir / SCRIPT_FILE, prepared.script)
        except OSError as error:
            raise UserError(f"{error.filename}: cannot be written: {error.strerror}") from None
        job_id = _to_slurm(submission, job_dir, say)
    numbered = submission.with_id(job_id)
    try:
        numbered.save(job_dir)
    except OSError as error:
        say(f"warning: the job is queued as {job_id}, which {error.filename} could not be told: {error.strerror}")
    return numbered


def _to_this_machine(submission: Submission, job_dir: Path) -> str:
    try:
        return start_runner(job_dir, submission, this_queue(), submission.after)
    except BaseException:  # Ctrl-C, when its runner may have started
        kill_all(submission.token)
        raise


def _to_slurm(submission: Submission, job_dir: Path, say: Say) -> str:
    options = []
    if submission.after is not None:
        options = [f"--dependency=afterok:{submission.after}", "--kill-on-invalid-dep=yes"]
    try:
        return slurm_queue.submit(job_dir / SCRIPT_FILE, submission.token, options, say)
    except BaseException as error:
        if not isinstance(error, UserError | SchedulerError):  # Ctrl-C, while sbatch may have been answered
            with suppress(SchedulerError):
                slurm_queue.cancel_all(submission.token)
        raise


@contextmanager
def _new_or_as_before(job_dir: Path, new: bool) -> Iterator[None]:
    """Makes the job-dir, if it is `new`; after an error it is gone, or what a submission replaces is back."""
    names = (SUBMISSION_FILE, SCRIPT_FILE, STATUS_FILE, CANCELLED_FILE)
    kept = {name: (job_dir / name).read_text() for name in names if (job_dir / name).is_file()}
    parents = [parent for parent in job_dir.parents if not parent.exists()]
    if new:
        make_job_dir(job_dir)
    try:
        yield
    except BaseException:
        if new:
            shutil.rmtree(job_dir, ignore_errors=True)
            for parent in parents:
                with suppress(OSError):
                    parent.rmdir()
        else:
            for name in names:
                (job_dir / name).unlink(missing_ok=True)
            for name, text in kept.items():
                replace_text(job_dir / name, text)
        raise
