"""One exporter's folder: exports appear whole, under rising numbers, and old ones are removed. For the chief."""

from __future__ import annotations

import errno
import math
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_train.checkpoint.disk_io import sync_to_disk
from hpc_train.folders import held, make_folder, make_new_folder, remove_folder, remove_tree, rename
from hpc_train.processes import identity, is_alive
from hpc_train.telemetry.json_files import read_json

ABOUT_FILE = "hpc_train.json"
"""In each export: what it was made of. It marks the folders that this package made, and may remove."""


@dataclass(frozen=True)
class Export:
    """An export, and what its `hpc_train.json` records."""

    path: Path
    about: dict[str, Any]

    @property
    def metrics(self) -> dict[str, float]:
        """Of the evaluation that it was made after; JSON has null for what was not finite."""
        metrics = self.about.get("metrics") or {}
        return {name: math.nan if value is None else value for name, value in metrics.items()}


class ExportFolder:
    """`path`, with exports called by the second in which they were made. Making one touches nothing on disk.

    Args:
        sole: No other process writes here, so that all temporary folders are left-overs.
        job_dir: The one that `path` lies in: no link on the way is followed then; None: the user has named `path`.
    """

    def __init__(self, path: Path, sole: bool = True, job_dir: Path | None = None) -> None:
        self.path, self._sole, self._job_dir = path, sole, job_dir

    def exports(self) -> list[Export]:
        """What this package exported here, oldest first."""
        paths = [self.path / str(number) for number in self._numbers()]
        found = [Export(path, read_json(path / ABOUT_FILE)) for path in paths]
        return [export for export in found if "checkpoint_time" in export.about]

    def exported_from(self, checkpoint_time: float) -> Path | None:
        """The newest export of the checkpoint taken at `checkpoint_time`, or None where there is none."""
        of_it = [e.path for e in self.exports() if e.about.get("checkpoint_time") == checkpoint_time]
        return of_it[-1] if of_it else None

    def write(self, fill: Callable[[Path], None]) -> Path:
        """Has `fill` write an export into a new folder, which then gets its number, higher than all that are there.

        Raises:
            OSError, and what `fill` raises; nothing is left of the attempt.
        """
        existed = self.path.is_dir()
        make_folder(self.path, top=self._job_dir, follow=self._job_dir is None)
        self._clean()
        temporary = self.path / f".{int(time.time())}.{_owner()}.tmp"
        try:
            make_new_folder(temporary)
            with held(temporary) as folder:
                fill(folder)
            for file in temporary.rglob("*"):
                sync_to_disk(file)
            final = self._commit(temporary)
            sync_to_disk(self.path)
        except BaseException:
            remove_tree(temporary)
            if not existed:
                with suppress(OSError):
                    remove_folder(self.path)
            raise
        return final

    def _commit(self, temporary: Path) -> Path:
        while True:
            final = self.path / str(max([int(time.time()), *(number + 1 for number in self._numbers())]))
            try:
                rename(temporary, final)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    continue  # another process was faster
                raise
            return final

    def prune(self, keep: int | None) -> None:
        """Removes all exports but the newest `keep`; what cannot be removed stays."""
        exports = self.exports() if keep is not None else []
        for export in exports[: max(0, len(exports) - (keep or 0))]:
            with suppress(OSError):
                gone = export.path.with_name(f".{export.path.name}.{_owner()}.tmp")
                rename(export.path, gone)
                remove_tree(gone)

    def _numbers(self) -> list[int]:
        names = os.listdir(self.path) if self.path.is_dir() else []
        return sorted(int(name) for name in names if name.isascii() and name.isdigit() and name == str(int(name)))

    def _clean(self) -> None:
        """Removes what killed runs left behind."""
        for path in self.left_over():
            remove_tree(path)

    def left_over(self) -> list[Path]:
        """What killed runs left behind."""
        parts = ((path, path.name.split(".", 2)) for path in self.path.glob(".*.tmp"))
        ours = [path for path, part in parts if len(part) == 3 and part[1].isdigit()]
        return [path for path in ours if self._sole or _is_dead(path)]


def _owner() -> str:
    """This process: `<node>-<pid>@<start>@<boot>`; older versions wrote `<node>-<pid>`."""
    me = identity()
    return f"{me['host']}-{me['pid']}@{me['process_start']}@{me['boot_id']}"


def _is_dead(path: Path) -> bool:
    """Whether the owner of this folder was a process of this node that is no more."""
    place, _, began = path.name.split(".", 2)[2].removesuffix(".tmp").partition("@")
    node, _, pid = place.rpartition("-")
    start, _, boot = began.partition("@")
    if node != socket.gethostname() or not pid.isdigit():
        return False
    known = {"process_start": int(start), "boot_id": boot} if start.isdigit() else {}
    try:
        return not is_alive({"pid": int(pid), **known}, path.stat().st_mtime)
    except FileNotFoundError:  # its owner has just finished it
        return False
