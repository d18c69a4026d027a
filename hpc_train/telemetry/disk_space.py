"""What a write needed that a full disk refused, and what the disk had, for messages."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from hpc_train.telemetry.units import size

FULL = (errno.ENOSPC, errno.EDQUOT)


def shortage(number: int | None, path: Path, needed_bytes: int | None = None) -> str:
    """What is to be added to an error's message where it is that of a full disk; empty where it is another's. Local.

    Args:
        number: The error's errno.
        path: What was to be written; it need not be there.
        needed_bytes: Of what was to be written; None: not known.

    As in " (needed 67.1 MB; 1.2 MB free on /scratch)". What is free is asked for now: what had been written of the
    file should be removed before.
    """
    if number not in FULL:
        return ""
    needed = [] if needed_bytes is None else [f"needed {size(needed_bytes)}"]
    with suppress(OSError):
        place = _mount_of(path)
        found = os.statvfs(place)
        free = f"{size(found.f_bavail * found.f_frsize)} free on {place}"
        if number == errno.EDQUOT:
            free += ", of which the quota leaves less: `quota -s` or your site's own command shows it"
        elif found.f_files and not found.f_favail:
            free += ", but no inode: it holds as many files as it can"
        needed.append(free)
    return f" ({'; '.join(needed)})" if needed else ""


def errno_in(text: str) -> int | None:
    """The errno of a full disk, if a library's message has its words, as TensorFlow's errors do. Pure."""
    return next((number for number in FULL if os.strerror(number) in text), None)


def _mount_of(path: Path) -> Path:
    """Where the file system is mounted that `path` lies on, or would."""
    place = path.absolute()
    while not place.is_dir():
        place = place.parent
    while not os.path.ismount(place):
        place = place.parent
    return place
