"""Whether a job may write in a job-dir that is there: nobody else does, and nothing in it leads elsewhere."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hpc_train.errors import UserError
from hpc_train.files import require_regular
from hpc_train.folders import exposure
from hpc_train.jobdir.paths import CHECKPOINTS, EXPORTS, LOG_FILE, LOGS

_FOLDERS = re.compile(f"{CHECKPOINTS}|{EXPORTS}|{LOGS}|train|ranks|eval(_.*)?")
"""What a job makes in its job-dir, and removes old files from."""


def check_job_dir(job_dir: Path) -> str | None:
    """Looks at the folder `job_dir`, which is there. Returns a warning where others may write in it, or None. Local.

    Raises:
        UserError: All users may write in it; or a folder in it is a link, so that the job would write and remove files
            elsewhere.
    """
    by = exposure(job_dir)
    if by is not None and exposure(job_dir, group=False) is not None and not by.startswith("belongs"):
        raise UserError(
            f"{job_dir}: the job-dir {by}, who could replace what the job writes; chmod go-w it, or take another one"
        )
    entries = (entry for entry in os.scandir(job_dir) if entry.is_symlink() and entry.is_dir())
    links = [entry.path for entry in entries if _FOLDERS.fullmatch(entry.name)]
    if links:
        first = min(links)
        raise UserError(
            f"{first}: is a symbolic link to {os.readlink(first)}, where the job would write and remove files; move "
            "the folder here, or put the whole job-dir there (--job-dir)"
        )
    if os.path.lexists(log := job_dir / LOG_FILE):  # which Slurm itself opens
        try:
            require_regular(log)
        except OSError as error:
            raise UserError(f"{log}: {error.strerror}; remove it: the job's output is appended there") from None
    return None if by is None else f"{job_dir}: the job-dir {by}, who could replace what the job writes"
