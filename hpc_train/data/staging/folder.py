"""The folder of a node that shards are copied to, and how much there may be in it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from hpc_train.data.memory import available_bytes
from hpc_train.errors import UserError
from hpc_train.files import read_bytes

SHARED_MEMORY = "/dev/shm"
MAX_MOUNTS_BYTES = 16 << 20
# fmt: off
REMOTE = frozenset([
    "9p", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "coda", "fhgfs", "gfs2", "glusterfs", "gpfs", "lustre",
    "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs",
])
# fmt: on
"""Types of file systems that several nodes share; FUSE's are taken for such, too."""
IN_MEMORY = frozenset(("tmpfs", "ramfs", "devtmpfs"))
MEMORY_PART, DISK_PART = 0.5, 0.95
"""Of what is free, what copies may take."""


def choose(given: str | None, environment: Mapping[str, str]) -> tuple[Path, str]:
    """The folder to copy to, and what has named it.

    That is `stage_dir`, else the scratch of the site file, else $SLURM_TMPDIR, else this node's shared memory.

    $TMPDIR is not asked: at many sites it lies on a file system that nodes share.
    """
    if given is not None:
        return Path(given), "stage_dir"
    for variable in ("HPC_TRAIN_SCRATCH", "SLURM_TMPDIR"):
        if environment.get(variable):
            return Path(environment[variable]), f"${variable}"
    return Path(SHARED_MEMORY), "stage"


def check(folder: Path, named_by: str) -> str:
    """The type of the file system of `folder`.

    Raises:
        UserError: It is missing, cannot be written, or is not this node's own.
    """
    where = f"data.train.{named_by}" if not named_by.startswith("$") else f"data.train.stage: {named_by}"
    advice = "give a folder on a disk of the node as stage_dir, or leave `stage` out"
    try:
        is_folder = folder.is_dir()
    except OSError as error:  # below one that this user may not enter, or too long a name
        raise UserError(f"{where}: {folder}: cannot be looked at: {error.strerror}; {advice}") from None
    if not is_folder:
        raise UserError(f"{where}: {folder}: is no folder of this node; {advice}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{where}: {folder}: cannot be written; {advice}")
    kind = type_of(folder)
    if kind in REMOTE or kind.partition(".")[0] in ("fuse", "fuseblk"):
        raise UserError(f"{where}: {folder}: lies on a file system ({kind}) that is not the node's own; {advice}")
    return kind


def type_of(folder: Path) -> str:
    """The type of the file system that `folder` lies on, as the kernel calls it."""
    mounts = read_bytes("/proc/self/mountinfo", MAX_MOUNTS_BYTES).decode(errors="surrogateescape")
    return type_among(mounts, os.path.realpath(folder))


def type_among(mounts: str, path: str) -> str:
    """The type of the last of `mounts`, lines of mountinfo, that holds `path` most closely; "" where none does."""
    found, longest = "", 0
    for line in mounts.splitlines():
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4]).rstrip("/")
        if (path + "/").startswith(point + "/") and len(point) + 1 >= longest:
            found, longest = after.split(" ")[0], len(point) + 1
    return found


def room_bytes(folder: Path, kind: str) -> int:
    """What copies may still take in `folder`, in bytes: of memory, too, where it lies there."""
    status = os.statvfs(folder)
    room = int(status.f_bavail * status.f_frsize * DISK_PART)
    return min(room, int(available_bytes() * MEMORY_PART)) if kind in IN_MEMORY else room
