"""Looks at a job: reads its job-dir, asks its queue, and says how it stands."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpc_train.jobs import slurm_queue
from hpc_train.jobs.last_words import Printed, last_words
from hpc_train.jobs.local_queue import LocalQueue, queue_folder
from hpc_train.jobs.state import Seen, Standing, standing
from hpc_train.jobs.submission import LOG_FILE, Submission, cancelled_by, read_submission
from hpc_train.monitoring.status import read_status

ASKED_AT_ONCE = 8
BEING_SUBMITTED_SECS = 2 * slurm_queue.SUBMIT_SECS
"""For so long a submission without a number may still be on its way."""


def this_queue() -> LocalQueue:
    """The queue of this machine's jobs."""
    return LocalQueue(queue_folder(os.environ, Path.home()), len(os.sched_getaffinity(0)))


def look(job_dir: Path, queue: LocalQueue) -> Standing:
    """How the job in `job_dir` stands now; `queue` is this machine's."""
    submission = read_submission(job_dir)
    status = read_status(job_dir)
    seen = _seen(submission, status, queue)
    if seen.phase in ("forgotten", "ended"):
        status = read_status(job_dir)  # it may have ended between the two
    found = standing(job_dir, submission, status, cancelled_by(job_dir, submission), seen, time.time())
    if found.state == "FAILED" and found.error is not None and "lines" not in found.error and submission is not None:
        lines = _failure_lines(job_dir, found)
        found = replace(found, error={**found.error, "lines": lines}) if lines else found
    return found


def look_at_all(job_dirs: Sequence[Path], queue: LocalQueue) -> list[Standing]:
    """How the jobs stand, several asked after at once, since Slurm takes its time."""
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        return list(pool.map(lambda path: look(path, queue), job_dirs))


def _seen(submission: Submission | None, status: dict[str, Any], queue: LocalQueue) -> Seen:
    if submission is not None and has_said_its_end(submission, status):
        return Seen("forgotten", requeues=int(status.get("requeues") or 0))
    if submission is not None and submission.backend == "local":
        return queue.seen(submission, socket.gethostname())
    job_id = submission.job_id if submission is not None else status.get("job_id")
    if submission is not None and job_id is None:
        if time.time() - submission.submitted < BEING_SUBMITTED_SECS:
            return Seen("waiting", "it is being submitted")
        return Seen("forgotten", "its submission was cut short")
    if job_id is not None and (submission is not None or status.get("state") in ("running", "requeued")):
        return slurm_queue.seen(str(job_id), submission.token if submission is not None else None)
    return Seen("forgotten") if job_id is not None else _seen_by_hand(status)


def has_said_its_end(submission: Submission, status: dict[str, Any]) -> bool:
    """Whether the job-dir alone tells how the job ended, so that a queue need not be asked about old jobs. Pure."""
    if submission.job_id is None or status.get("job_id") != submission.job_id:
        return False
    said = status.get("state")
    return said == "succeeded" or (said in ("failed", "stopped") and isinstance(status.get("exit_code"), int))


def _seen_by_hand(status: dict[str, Any]) -> Seen:
    """Of a job that somebody has started without a queue: whether its chief still runs, if that is on this machine."""
    if status.get("state") != "running":
        return Seen("forgotten")
    if status.get("host") != socket.gethostname():
        return Seen("unasked", note=f"it was started on {status.get('host')}, which cannot be asked from here")
    requeues = int(status.get("requeues") or 0)
    if Path(f"/proc/{status.get('pid')}").exists():
        return Seen("running", None, requeues, where=status.get("host"))
    return Seen("forgotten", "its process has ended, and left no end")


def _failure_lines(job_dir: Path, found: Standing) -> list[str]:
    """The last that the job printed: the traceback or the error in it."""
    try:
        newest = max((job_dir / "logs").glob("failure-*.txt"), key=lambda path: path.stat().st_mtime, default=None)
        if newest is not None and found.started is not None and newest.stat().st_mtime >= found.started:
            return newest.read_text(errors="replace").splitlines()[-20:]
    except OSError:
        pass
    return list(last_words(Printed(job_dir / LOG_FILE)).lines)
