"""The status of jobs, from their job-dirs and from whoever runs them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hpc_train.jobs.record.status import JobRecord, JobStatus, QueueState, job_status, read_record
from hpc_train.jobs.schedulers import backend_of
from hpc_train.jobs.schedulers.base import Backend

READ_AT_ONCE = 8


def query(job_dirs: Sequence[Path]) -> list[JobStatus]:
    """The status of the job in each job-dir; every backend is asked once for all of its jobs."""
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:  # a shared file system takes its time
        records = list(pool.map(read_record, job_dirs))
    groups: dict[str, tuple[Backend, list[JobRecord]]] = {}
    for record in records:
        backend = backend_of(record)
        groups.setdefault(backend.name, (backend, []))[1].append(record)
    found: dict[Path, JobStatus] = {}
    for backend, mine in groups.values():
        asked = [record for record in mine if not record.has_reported_end]
        seen = dict(zip((record.job_dir for record in asked), backend.query_all(asked), strict=True))
        for record in mine:
            known = seen.get(record.job_dir)
            if known is None:
                known = QueueState("forgotten", requeues=record.status.get("requeues", 0))
            elif known.phase in ("forgotten", "ended"):
                record = read_record(record.job_dir)  # it may have ended between the two
            found[record.job_dir] = job_status(record, backend.name, known, time.time())
    return [found[record.job_dir] for record in records]
