"""Which of the packs that are kept no job needs any more."""

from __future__ import annotations

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
    there: list[Path] = [job_dir for job_dir in pack.job_dirs if job_dir.is_dir()]
    for status in inspect_jobs(there):
        if status.state != "SUCCEEDED":
            return f"the job of {status.job_dir} ({status.state}) starts from it"
    return None


def remove_pack(pack: CachedPack) -> None:
    """Removes it with what is noted of it.

    Raises:
        OSError: It cannot be removed.
    """
    for path in (pack.path, *pack.notes):
        remove(path, missing_ok=True)
