"""Which drivers, the processes that run a study's trials, live. Local to this user's hosts."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hpc_train.errors import UserError
from hpc_train.folders import make_new_folder, remove_folder, remove_tree
from hpc_train.resilience.job_lock import JobLock, holder_of

NAME_DIGITS = 16
SETTLED_SECS = 60.0
"""A driver has taken its lock by then."""


class DriverLock:
    """This process as a driver of the study that keeps the locks of its drivers in `folder`. A context manager.

    Attributes:
        name: NAME_DIGITS hexadecimal digits, by which decisions name the driver.
        folder: Its own, for as long as it runs.
    """

    def __init__(self, folder: Path) -> None:
        self._all = folder
        self.name = secrets.token_hex(NAME_DIGITS // 2)
        self.folder = folder / self.name
        self._lock = JobLock(self.folder)

    def __enter__(self) -> DriverLock:
        try:
            make_new_folder(self.folder, 0o700)
        except OSError as error:
            raise UserError(f"{self.folder}: cannot be made: {error.strerror}") from None
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        with suppress(OSError):  # what is left of it is harmless
            remove_folder(self.folder)

    def sweep(self, forget: Callable[[str], None]) -> None:
        """Removes what drivers have left that ended without leaving; `forget` is called with the name of each."""
        for folder in self._all.iterdir():
            with suppress(OSError):
                is_old = abs(time.time() - folder.lstat().st_mtime) > SETTLED_SECS  # a new one has no lock yet
                if is_old and not self.lives(folder.name):
                    forget(folder.name)
                    remove_tree(folder)

    def lives(self, name: str) -> bool:
        """Whether the driver called `name`, of this or another host, still runs."""
        return name == self.name or lives(self._all, name)


def lives(folder: Path, name: str) -> bool:
    """The same, for those who are none; `folder` has the locks of all drivers."""
    return holder_of(folder / name) is not None
