"""Looks at a job: reads its job-dir, asks its queue, and says how it stands."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpc_train.distributed.world import nvidia_device_count
from hpc_train.jobdir.paths import CANCELLED_FILE, LOG_FILE, LOGS
from hpc_train.jobs.launch.error_excerpt import Printed, last_words
from hpc_train.jobs.record.status import Seen, Standing, standing
from hpc_train.jobs.record.submission import Submission, cancelled_by, read_submission
from hpc_train.jobs.schedulers.local.queue import LocalQueue, queue_folder
from hpc_train.jobs.schedulers.local.runner import processes_of
from hpc_train.jobs.schedulers.slurm import queue as slurm_queue
from hpc_train.telemetry.status import read_status

ASKED_AT_ONCE = 8
FEW_JOBS = 3
"""Of more, it is asked at once which ones Slurm knows."""
LONG_CANCELLED_SECS = 3600.0
LONGEST_TIME = 1e11
BEING_SUBMITTED_SECS = 2 * slurm_queue.SUBMIT_SECS
"""For so long a submission without a number may still be on its way."""

_NUMBER = (int, float)
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("state", "host", "job_id"), (str,)),
    **dict.fromkeys(("step", "max_steps", "ranks", "requeues", "restarts", "exit_code", "pid"), (int,)),
    **dict.fromkeys(("loss", "examples_per_sec", "secs_left", "started", "updated"), _NUMBER),
    **dict.fromkeys(("evaluation", "error"), (dict,)),
    "exports": (list,),
    "program": (bool,),
}
"""The types of what is read of status.json."""


def this_queue() -> LocalQueue:
    """The queue of this machine's jobs."""
    cores = len(os.sched_getaffinity(0))
    return LocalQueue(queue_folder(os.environ, Path.home()), cores, nvidia_device_count())


def job_dir_in_queues(number: str) -> Path | None:
    """The job-dir of the job with this number, as far as the queues tell."""
    return this_queue().job_dir_of(number) or slurm_queue.job_dir_in_slurm(number)


def look(job_dir: Path, queue: LocalQueue, known: set[str] | None = None) -> Standing:
    """How the job in `job_dir` stands now.

    Args:
        queue: This machine's.
        known: The numbers of all jobs that Slurm knows, where they have been asked for.
    """
    submission, status = _read(job_dir)
    by = cancelled_by(job_dir, submission)
    seen = _seen(job_dir, submission, status, queue, known)
    if seen.phase in ("forgotten", "ended"):
        submission, status = _read(job_dir)  # it may have ended between the two
    found = standing(job_dir, submission, status, by, seen, time.time())
    lost_here = submission is not None and submission.backend == "local" and found.state == "LOST"
    if submission is not None and lost_here and (left := processes_of(submission.token)):
        reason = (
            f"what looked after it was killed; {len(left)} of its processes still run: hpc-train cancel {found.name}"
        )
        found = replace(found, reason=reason)
    if found.state == "FAILED" and found.error is not None and "lines" not in found.error and submission is not None:
        lines = _failure_lines(job_dir, found)
        found = replace(found, error={**found.error, "lines": lines}) if lines else found
    return found


def look_at_all(job_dirs: Sequence[Path], queue: LocalQueue) -> list[Standing]:
    """How the jobs stand, several asked after at once, since Slurm takes its time."""
    known = None
    if len(job_dirs) > FEW_JOBS and slurm_queue.is_here():
        known = slurm_queue.known_jobs()
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        return list(pool.map(lambda path: look(path, queue, known), job_dirs))


def _read(job_dir: Path) -> tuple[Submission | None, dict[str, Any]]:
    """What the job-dir says. A submission that was cut off before it had noted its number takes that of its ranks."""
    submission, status = read_submission(job_dir), sound(read_status(job_dir))
    if submission is not None and submission.job_id is None and status.get("job_id"):
        submission = submission.with_id(status["job_id"])
    return submission, status


def sound(status: dict[str, Any]) -> dict[str, Any]:
    """`status` without what is not of the type that this version writes: another version or program may have. Pure."""

    def fits(name: str, value: Any) -> bool:
        kinds = _KINDS.get(name, ())
        if isinstance(value, int | float) and name in ("started", "updated", "secs_left"):
            return not isinstance(value, bool) and 0 <= value < LONGEST_TIME
        return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))

    found = {name: value for name, value in status.items() if fits(name, value)}
    if "exports" in found and not all(isinstance(path, str) for path in found["exports"]):
        del found["exports"]
    error = found.get("error")
    if error is not None:
        if not all(isinstance(line, str) for line in error.get("lines") or []):
            error = {**error, "lines": []}
        rank = error.get("rank")
        message = str(error.get("message") or "unknown")
        found["error"] = {**error, "message": message, "rank": rank if isinstance(rank, int) else None}
    return found


def _seen(
    job_dir: Path, submission: Submission | None, status: dict[str, Any], queue: LocalQueue, known: set[str] | None
) -> Seen:
    if submission is not None and has_said_its_end(submission, status):
        return Seen("forgotten", requeues=status.get("requeues", 0))
    if submission is not None and submission.backend == "local":
        return queue.seen(submission, socket.gethostname())
    if submission is not None and _was_cancelled_long_ago(job_dir):
        return Seen("forgotten")
    job_id = submission.job_id if submission is not None else status.get("job_id")
    if submission is not None and job_id is None:
        job_id = slurm_queue.number_of(submission.token)
        if job_id is None and time.time() - submission.submitted < BEING_SUBMITTED_SECS:
            return Seen("waiting", "it is being submitted")
        if job_id is None:
            return Seen("forgotten", "its submission was cut short")
        with suppress(OSError):
            submission.with_id(job_id).save(job_dir)
    if job_id is not None and (submission is not None or status.get("state") in ("running", "requeued")):
        return slurm_queue.seen(str(job_id), submission.token if submission is not None else None, known)
    return Seen("forgotten") if job_id is not None else _seen_by_hand(status)


def _was_cancelled_long_ago(job_dir: Path) -> bool:
    """Whether a cancelled job must have ended, so that its queue need not be asked."""
    try:
        return time.time() - (job_dir / CANCELLED_FILE).stat().st_mtime > LONG_CANCELLED_SECS
    except OSError:
        return False


def has_said_its_end(submission: Submission, status: dict[str, Any]) -> bool:
    """Whether the job-dir alone tells how the job ended, so that a queue need not be asked about old jobs. Pure."""
    if submission.job_id is None or status.get("job_id") != submission.job_id:
        return False
    said = status.get("state")
    return said in ("succeeded", "cancelled") or (
        said in ("failed", "stopped") and isinstance(status.get("exit_code"), int)
    )


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
        newest = max((job_dir / LOGS).glob("failure-*.txt"), key=lambda path: path.stat().st_mtime, default=None)
        if newest is not None and found.started is not None and newest.stat().st_mtime >= found.started:
            return newest.read_text(errors="replace").splitlines()[-20:]
    except OSError:
        pass
    return list(last_words(Printed(job_dir / LOG_FILE)).lines)
