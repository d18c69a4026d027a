"""The status of jobs, from their job-dirs and from whoever runs them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from hpc_train.jobs.record.status import JobRecord, JobStatus, QueueState, job_status, read_record
from hpc_train.jobs.schedulers import backend_of
from hpc_train.jobs.schedulers.base import Backend
from hpc_train.resilience.job_lock import holder_of
from hpc_train.resilience.lock_holder import Record, describe

READ_AT_ONCE = 8
MAX_NAMED = 5


def query(job_dirs: Sequence[Path]) -> list[JobStatus]:
    """The status of the job in each job-dir; every backend is asked once for all of its jobs.

    A job that has reported its end has ended once its queue has let go of it and none of its processes runs any more;
    of one that did so long ago (SETTLED_SECS) that is taken for granted.
    """
    now = time.time()
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:  # a shared file system takes its time
        records = list(pool.map(read_record, job_dirs))
    groups: dict[str, tuple[Backend, list[JobRecord]]] = {}
    for record in records:
        backend = backend_of(record)
        groups.setdefault(backend.name, (backend, []))[1].append(record)
    found: dict[Path, JobStatus] = {}
    for backend, mine in groups.values():
        asked = [record for record in mine if record.is_fresh(now) or not record.has_reported_end]
        seen = dict(zip((record.job_dir for record in asked), backend.query_all(asked), strict=True))
        gone = ("forgotten", "ended")
        left = _left_by([r for r in asked if r.has_reported_end or seen[r.job_dir].phase in gone], backend)
        for record in mine:
            known = seen.get(record.job_dir)
            if known is not None and known.phase in gone:
                record = read_record(record.job_dir)  # it may have ended between the two
            if known is None or (record.has_reported_end and known.phase not in ("waiting", "running")):
                known = QueueState("forgotten", requeues=record.status.get("requeues", 0))
            if known.phase == "forgotten" and record.submission is None and (holder := holder_of(record.job_dir)):
                record, known = _held_by_hand(record, holder)
            elif known.phase == "forgotten" and (record.has_reported_end or record.cancelled_by is not None):
                known = _leaving(record, left.get(record.job_dir, [])) or known
            found[record.job_dir] = job_status(record, backend.name, known, now)
    return [found[record.job_dir] for record in records]


def reported_end(job_dir: Path) -> JobStatus:
    """The status of a job that has reported its end, by its job-dir alone, though something of it may still run."""
    record = read_record(job_dir)
    known = QueueState("forgotten", requeues=record.status.get("requeues", 0))
    return job_status(record, backend_of(record).name, known, time.time())


def _held_by_hand(record: JobRecord, holder: Record) -> tuple[JobRecord, QueueState]:
    """A job that was started by hand and has ended, or is lost, while `holder` has its lock: it, or its next run."""
    if all(holder.get(name) == record.status.get(name) for name in ("host", "pid", "process_start")):
        return record, QueueState("leaving", f"its job-dir is still in use ({describe(holder)})")
    status = {name: value for name, value in record.status.items() if name in ("step", "max_steps")}
    return replace(record, status=status), QueueState("running", describe(holder), where=str(holder.get("host"))[:255])


def _left_by(records: Sequence[JobRecord], backend: Backend) -> dict[Path, list[int]]:
    """The processes of jobs, by job-dir: all are looked for at once."""
    submissions = {record.job_dir: record.submission for record in records if record.submission is not None}
    return dict(zip(submissions, backend.leftover(list(submissions.values())), strict=True)) if submissions else {}


def _leaving(record: JobRecord, left: Sequence[int]) -> QueueState | None:
    """The phase of a job that has ended, of which the processes `left` still run; None where there are none."""
    if not left:
        return None
    named = ", ".join(map(str, left[:MAX_NAMED])) + (" …" if len(left) > MAX_NAMED else "")
    reason = f"processes of it still run ({named})"
    return QueueState("leaving", reason, record.status.get("requeues", 0), where=record.status.get("host"))
