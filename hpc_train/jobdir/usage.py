"""What a job-dir takes on the disk, and of which kind that is."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from hpc_train.folders import held
from hpc_train.jobdir.paths import CHECKPOINTS, CODE, EXPORTS, INSTALLATION, LOGS

Kind = Literal["checkpoints", "exports", "logs", "code", "tensorboard", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_FOLDERS: dict[str, Kind] = {
    CHECKPOINTS: "checkpoints",
    EXPORTS: "exports",
    LOGS: "logs",
    CODE: "code",
    INSTALLATION: "code",
}
_EVENTS = re.compile("train|ranks|eval(_.*)?")
BLOCK = 512
"""Bytes of what stat calls a block."""

Inodes = set[tuple[int, int]]


@dataclass
class Usage:
    """Bytes that a job-dir takes, by kind: what is allocated, so that of a sparse file only what is written counts.

    Attributes:
        unread: Folders that cannot be read, whose content is not counted.
    """

    bytes: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    unread: int = 0

    @property
    def total(self) -> int:
        """Of all kinds."""
        return sum(self.bytes.values())


def usage_of(job_dir: Path, seen: Inodes | None = None) -> Usage:
    """What `job_dir`, which may be written meanwhile, takes on the disk. Local; follows no link in it.

    Args:
        seen: Files that have been counted, and are not again (hard links); those of `job_dir` are added.

    Raises:
        OSError: It cannot be read.
    """
    seen = set() if seen is None else seen
    usage = Usage()
    with held(job_dir, follow=True) as place, os.scandir(place) as entries:
        usage.bytes["other"] += _size(place.stat(), seen)
        for entry in entries:
            size, unread = _taken(entry, seen)
            usage.bytes[kind_of(entry.name) if entry.is_dir(follow_symlinks=False) else "other"] += size
            usage.unread += unread
    return usage


def bytes_of(path: Path) -> int:
    """What a file or folder takes; 0 where there is none, or it cannot be looked at."""
    seen: Inodes = set()
    try:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            return _size(found, seen)
        return usage_of(path, seen).total
    except OSError:
        return 0


def kind_of(folder: str) -> Kind:
    """What a folder of this name in a job-dir is for. Pure."""
    return "tensorboard" if _EVENTS.fullmatch(folder) else _FOLDERS.get(folder, "other")


def _taken(entry: os.DirEntry[str], seen: Inodes) -> tuple[int, int]:
    """Bytes of an entry of a folder with all that is in it, and the folders that cannot be read. Needs no recursion."""
    size = unread = 0
    try:
        size = _size(entry.stat(follow_symlinks=False), seen)
        if not entry.is_dir(follow_symlinks=False):
            return size, 0
    except OSError:  # removed meanwhile
        return size, 0

    def note(error: OSError) -> None:
        nonlocal unread
        unread += not isinstance(error, FileNotFoundError)

    for _, folders, files, inner in os.fwalk(entry.path, onerror=note, follow_symlinks=False):
        for name in (*folders, *files):
            try:
                size += _size(os.stat(name, dir_fd=inner, follow_symlinks=False), seen)
            except OSError:
                continue
    return size, unread


def _size(found: os.stat_result, seen: Inodes) -> int:
    if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
        if (found.st_dev, found.st_ino) in seen:
            return 0
        seen.add((found.st_dev, found.st_ino))
    return found.st_blocks * BLOCK
