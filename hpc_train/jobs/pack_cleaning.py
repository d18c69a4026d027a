"""Which of the packs that are kept no job needs any more."""

from __future__ import annotations

import errno
import time
from pathlib import Path

from hpc_train.folders import remove
from hpc_train.jobs.inspect import inspect_jobs
from hpc_train.packs.cache import CachedPack

SETTLED_SECS = 3600.0
"""For so long a pack may be somebody's who submits, or writes it."""


def use_of(pack: CachedPack) -> str | None:
    """Why a pack is to stay, or None. A job that has not succeeded may start, or be resumed, from its pack."""
    if pack.unused_secs < SETTLED_SECS:
        return "a job was submitted with it within the last hour"
    if pack.unread is not None:
        return pack.unread
    there: list[Path] = []
    for job_dir in pack.job_dirs:
        if job_dir.is_dir():
            there.append(job_dir)
        elif not job_dir.parent.is_dir():
            return f"the job of {job_dir}, which cannot be seen here, may start from it"
    for status in inspect_jobs(there):
        if status.state != "SUCCEEDED":
            return f"the job of {status.job_dir} ({status.state}) starts from it"
    return None


def remove_pack(pack: CachedPack) -> None:
    """Removes it with what is noted of it, unless a job has been submitted with it meanwhile.

    Raises:
        OSError: It cannot be removed.
    """
    if time.time() - pack.path.lstat().st_mtime < SETTLED_SECS:
        raise BlockingIOError(errno.EBUSY, "a job has just been submitted with it", str(pack.path))
    for path in (pack.path, *pack.notes):
        remove(path, missing_ok=True)
