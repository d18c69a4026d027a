"""The status of jobs with what the user wants to know beside it: the last lines of a failure, processes left behind."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from hpc_train.jobdir.paths import LOG_FILE, LOGS
from hpc_train.jobs.launch.error_excerpt import MAX_LINE_CHARS, MAX_LINES, RunOutput, end_of, last_words
from hpc_train.jobs.record.status import JobStatus, read_record
from hpc_train.jobs.schedulers import backend_of
from hpc_train.jobs.schedulers.base import Scheduler
from hpc_train.jobs.schedulers.query import READ_AT_ONCE, query


def inspect_job(job_dir: Path) -> JobStatus:
    """The status of the job in `job_dir` now."""
    return inspect_jobs([job_dir])[0]


def inspect_jobs(job_dirs: Sequence[Path]) -> list[JobStatus]:
    """The status of several jobs, asked for at once."""
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        return list(pool.map(_explained, query(job_dirs)))


def leftover(job_dir: Path) -> list[int]:
    """Processes that still run of a job that has ended, or whose scheduler no longer knows it."""
    record = read_record(job_dir)
    backend, submission = backend_of(record), record.submission
    if submission is None or record.copied or not isinstance(backend, Scheduler):
        return []
    return backend.leftover(submission)


def _explained(found: JobStatus) -> JobStatus:
    job_dir = Path(found.job_dir)
    if found.state == "LOST" and (left := leftover(job_dir)):
        reason = (
            f"what looked after it was killed; {len(left)} of its processes still run: hpc-train cancel {found.name}"
        )
        return replace(found, reason=reason)
    if found.error is not None and found.state == "FAILED" and found.submitted and "lines" not in found.error:
        lines = _failure_lines(job_dir, found)
        return replace(found, error={**found.error, "lines": lines}) if lines else found
    return found


def _failure_lines(job_dir: Path, found: JobStatus) -> list[str]:
    """The last that the job printed: the traceback or the error in it."""
    try:
        newest = max((job_dir / LOGS).glob("failure-*.txt"), key=lambda path: path.stat().st_mtime, default=None)
        if newest is not None and found.started is not None and newest.stat().st_mtime >= found.started:
            lines = end_of(newest).decode(errors="replace").rstrip("\n").split("\n")
            return [line[:MAX_LINE_CHARS] for line in lines[-MAX_LINES:]]
    except OSError:
        pass
    return list(last_words(RunOutput(job_dir / LOG_FILE)).lines)
