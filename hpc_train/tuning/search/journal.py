"""The journal of a study: its decisions in order, each a file of its own, which several processes append to.

A decision is written to a file nobody else sees, brought to the disk, and linked to the next number. `link` fails where
that number is taken, on NFS as on a disk, so of several processes that append at once one succeeds, and the others read
what it has decided before they try again. There is no lock that a dead process could keep, and no half of a decision.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hpc_train.errors import UserError
from hpc_train.files import create, link_new, read_bytes, unforeseen
from hpc_train.folders import remove
from hpc_train.telemetry.disk_space import shortage
from hpc_train.telemetry.json_files import finite, parsed
from hpc_train.tuning.search.decisions import Decision, decision_of, fields_of

MAX_BYTES = 1 << 20
"""Of one decision: a point may have a long choice."""
SEEN_SECS = 60.0
"""How long another node's file may stay unseen, since NFS remembers that there was none."""
ABANDONED_SECS = 600.0
"""After which a decision that is being written is written no more."""
POLL_SECS = 0.02

_NAME = re.compile(r"\d{8}\.json")
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class Journal:
    """The decisions in `folder`, which exists.

    Args:
        folder: For this user alone.
        heard: Called with each decision, in order, once, also with those that this process appends. ValueError: it
            cannot come after those before.
    """

    def __init__(self, folder: Path, heard: Callable[[Decision], None]) -> None:
        self._folder, self._heard = folder, heard
        self._next = 0

    def __len__(self) -> int:
        """How many decisions have been read."""
        return self._next

    def refresh(self) -> None:
        """Reads what has been decided since.

        Raises:
            UserError: A decision cannot be read.
        """
        while self._read_next():
            pass

    def sweep(self) -> None:
        """Removes what processes have left that were killed while they appended."""
        for path in self._folder.glob(".*.tmp"):
            with suppress(OSError):
                if abs(time.time() - path.lstat().st_mtime) > ABANDONED_SECS:
                    remove(path)

    def read_whole(self) -> None:
        """Reads all decisions.

        Raises:
            UserError: One cannot be read, or is missing among others.
        """
        self.refresh()
        if max(self._numbers(), default=-1) <= self._next or self._next in self._numbers():
            self.refresh()  # others append meanwhile, one after the other
            return
        raise UserError(
            f"{self._path(self._next)}: is missing, and later decisions are there; to go on without them, move them "
            "out of the folder"
        )

    def _numbers(self) -> list[int]:
        try:
            return [int(name[:-5]) for name in os.listdir(self._folder) if _NAME.fullmatch(name)]
        except OSError as error:
            raise UserError(f"{self._folder}: cannot be read: {error.strerror}") from None

    def append(self, decide: Callable[[], Decision | None]) -> Decision | None:
        """Appends what `decide` returns, which knows of all decisions before; what was appended.

        Args:
            decide: Called again after each decision that another process has appended meanwhile. None: nothing.

        Raises:
            UserError: The decision cannot be written; it was not made then.
        """
        while True:
            self.refresh()
            if (decision := decide()) is None:
                return None
            if self._link(decision):
                self._take(decision)
                return decision
            self._await_next()

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}.json"

    def _read_next(self) -> bool:
        path = self._path(self._next)
        try:
            raw = read_bytes(path, MAX_BYTES)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from None
        try:
            self._take(decision_of(parsed(raw)))
        except ValueError:
            raise UserError(
                f"{path}: is no decision of a study, or another version's; to go on without it and what came after, "
                "move it and all later ones out of the folder"
            ) from None
        return True

    def _take(self, decision: Decision) -> None:
        self._heard(decision)
        self._next += 1

    def _link(self, decision: Decision) -> bool:
        """Whether `decision` has become the next one."""
        path = self._path(self._next)
        temporary = unforeseen(path)
        try:
            with open(create(temporary, 0o600), "wb") as file:
                file.write(json.dumps(finite(fields_of(decision)), ensure_ascii=False).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            linked = link_new(temporary, path)
            if linked:
                _sync_folder(self._folder)
            return linked
        except OSError as error:
            if error.errno in _NO_LINKS:
                why = "its file system has no hard links, by which processes agree; keep the study on another one"
            else:
                why = f"{error.strerror}{shortage(error.errno, self._folder)}"
            raise UserError(f"{self._folder}: a decision cannot be written: {why}") from None
        finally:
            with suppress(OSError):
                remove(temporary, missing_ok=True)

    def _await_next(self) -> None:
        """Until the decision that another process has appended can be read here."""
        deadline = time.monotonic() + SEEN_SECS
        while not self._read_next():
            if time.monotonic() > deadline:
                raise UserError(f"{self._path(self._next)}: is there for other processes, but cannot be seen from here")
            os.listdir(self._folder)  # by which NFS asks the server
            time.sleep(POLL_SECS)


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # not all file systems can
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
