"""The status of jobs with what the user wants to know beside it: the last lines of a failure, processes left behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from hpc_train.jobdir.paths import LOG_FILE, LOGS
from hpc_train.jobs.launch.error_excerpt import RunOutput, end_of, last_words, lines_around
from hpc_train.jobs.record.status import JobStatus, read_record
from hpc_train.jobs.schedulers import backend_of
from hpc_train.jobs.schedulers.base import Scheduler
from hpc_train.jobs.schedulers.query import READ_AT_ONCE, query, reported_end

FINISH_SECS = 60.0
"""How long a job that has reported its end is waited for: a process in the kernel, or a lost node, may stay."""


def inspect_job(job_dir: Path) -> JobStatus:
    """The status of the job in `job_dir` now."""
    return inspect_jobs([job_dir])[0]


def inspect_jobs(job_dirs: Sequence[Path]) -> list[JobStatus]:
    """The status of several jobs, asked for at once."""
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        return list(pool.map(_explained, query(job_dirs)))


def with_queue_energy(found: JobStatus) -> JobStatus:
    """`found` with `queue_joules` in its `energy`, where the job has ended not wholly measured, and its queue counts.

    That is of all that ran under the job's number: asked for only where `hpc-train submit` has queued this job as that.
    """
    if not found.has_ended or (found.energy or {}).get("complete") is True:
        return found
    record = read_record(Path(found.job_dir))
    submission = record.submission
    if record.copied or submission is None or submission.job_id != record.status.get("job_id"):
        return found
    joules = backend_of(record).joules(record)
    return found if joules is None else replace(found, energy={**(found.energy or {}), "queue_joules": joules})


def leftover(job_dir: Path) -> list[int]:
    """Processes that still run of a job that has ended, or whose scheduler no longer knows it."""
    record = read_record(job_dir)
    backend, submission = backend_of(record), record.submission
    if submission is None or record.copied or not isinstance(backend, Scheduler):
        return []
    return backend.leftover([submission])[0]


def output_elsewhere(job_dir: Path) -> str | None:
    """Where a job that was not submitted prints, for people; None of one that was."""
    record = read_record(job_dir)
    return backend_of(record).output_by_hand(record) if record.submission is None and record.status else None


class Patience:
    """Decides for those who wait for a job when to wait no more.

    Args:
        clock: In seconds, from whatever point; steadily rising.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since = clock, 0.0
        self._finishing = False

    def with_(self, status: JobStatus) -> JobStatus:
        """`status`, just asked for; once the job has been finishing for FINISH_SECS, as its job-dir alone records it.

        Then `note` says what of the job is still there.
        """
        if not status.finishing:
            self._finishing = False
            return status
        if not self._finishing:
            self._finishing, self._since = True, self._clock()
        if self._clock() - self._since < FINISH_SECS:
            return status
        found = _explained(reported_end(Path(status.job_dir)))
        return replace(found, note=f"{status.name} has reported its end, but is still {status.reason}")


def _explained(found: JobStatus) -> JobStatus:
    job_dir = Path(found.job_dir)
    if found.state == "LOST" and (left := leftover(job_dir)):
        reason = (
            f"what looked after it was killed; {len(left)} of its processes still run: hpc-train cancel {found.name}"
        )
        return replace(found, reason=reason)
    if found.error is not None and found.state == "FAILED" and "lines" not in found.error:
        lines = _failure_lines(job_dir, found)
        return replace(found, error={**found.error, "lines": lines}) if lines else found
    return found


def _failure_lines(job_dir: Path, found: JobStatus) -> list[str]:
    """The last that the job printed, with the error's own message: of its traceback, or of the error in its output."""
    try:
        newest = max((job_dir / LOGS).glob("failure-*.txt"), key=lambda path: path.stat().st_mtime, default=None)
        if newest is not None and found.started is not None and newest.stat().st_mtime >= found.started:
            message = str((found.error or {}).get("message", ""))
            return list(lines_around(end_of(newest).decode(errors="replace"), message))
    except OSError:
        pass
    return list(last_words(RunOutput(job_dir / LOG_FILE)).lines)
