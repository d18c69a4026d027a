"""The files of a job's code: those of its folder that Rules does not leave out."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpc_train.errors import UserError
from hpc_train.jobs.snapshot.ignore import Rules

MAX_SEEN = 1_000_000
"""So many files and folders are looked at, those that are ignored included."""


@dataclass(frozen=True)
class LeftOut:
    """What Git does not ignore and is left out all the same: a path relative to the folder, and why."""

    path: str
    why: str


class CodeFiles:
    """The files below a folder that Rules does not leave out.

    Attributes:
        sizes: Of each file, in bytes, by its path relative to the folder.
        left_out: What is neither a file nor a folder, and links that are not followed.
    """

    def __init__(self, rules: Rules, max_files: int) -> None:
        self.sizes: dict[str, int] = {}
        self.left_out: list[LeftOut] = []
        self._rules, self._max_files = rules, max_files
        self._top = str(rules.folder)

    def add_all(self) -> None:
        """Adds them, until there are more than `max_files`."""
        # Folders to look into, and where they really are: the way there by links, for links that would lead back.
        pending: list[tuple[str, tuple[str, ...]]] = [("", (self._top,))]
        seen = 0
        while pending:
            parent, places = pending.pop()
            for entry in self._entries(parent):
                seen += 1
                if seen > MAX_SEEN:
                    raise UserError(
                        f"{self._top}: holds more than {MAX_SEEN:,} files and folders, ignored ones included; move the "
                        "job file and its code to a folder of their own, or have .gitignore name whole folders (data/)"
                    )
                inside = self._add(entry, parent, places)
                if inside is not None:
                    pending.append((f"{parent}{entry.name}/", inside))
                if len(self.sizes) > self._max_files:
                    return

    def add_file(self, path: str) -> bool:
        """Adds a file or a link to one, whatever Rules says; returns whether it is one."""
        try:
            status = (self._rules.folder / path).stat()
        except OSError:
            return False
        if stat.S_ISREG(status.st_mode):
            self.sizes[path] = status.st_size
        return stat.S_ISREG(status.st_mode)

    def _entries(self, parent: str) -> Iterator[os.DirEntry[str]]:
        path = self._rules.folder / parent
        try:
            with os.scandir(path) as entries:
                yield from entries
        except OSError as error:
            if parent and isinstance(error, FileNotFoundError):
                return
            raise unreadable(path, error) from error

    def _add(self, entry: os.DirEntry[str], parent: str, places: tuple[str, ...]) -> tuple[str, ...] | None:
        """Adds a file or notes what is left out. Of a folder to be looked into, returns where it is (`places`)."""
        path = parent + entry.name
        if entry.is_symlink():
            return self._add_link(entry, parent, places)
        is_folder = entry.is_dir(follow_symlinks=False)
        if self._rules.leaves_out(self._real(places), entry.name, is_folder):
            return None
        if is_folder:
            return (*places[:-1], f"{places[-1]}/{entry.name}")
        if not entry.is_file(follow_symlinks=False):
            self._leave_out(path, "a socket, FIFO or device")
            return None
        try:
            self.sizes[path] = entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            pass  # a temporary file of some program
        except OSError as error:
            raise unreadable(self._rules.folder / path, error) from error
        return None

    def _add_link(self, entry: os.DirEntry[str], parent: str, places: tuple[str, ...]) -> tuple[str, ...] | None:
        path = parent + entry.name
        try:
            status = Path(entry.path).stat()
            target = str(Path(entry.path).resolve(strict=True))
        except (OSError, RuntimeError):  # RuntimeError: a loop of links, before Python 3.13
            if not self._rules.leaves_out(self._real(places), entry.name, is_folder=False):
                self._leave_out(path, "a link to what is not there or cannot be read")
            return None
        is_folder = stat.S_ISDIR(status.st_mode)
        if self._rules.leaves_out(self._real(places), entry.name, is_folder):
            return None
        if stat.S_ISREG(status.st_mode):
            self.sizes[path] = status.st_size
        elif not is_folder:
            self._leave_out(path, "a link to a socket, FIFO or device")
        elif not f"{target}/".startswith(f"{self._top}/"):
            self._leave_out(path, f"a link to a folder outside: {target}")
        elif any(f"{place}/".startswith(f"{target}/") for place in places):
            self._leave_out(path, f"a link to a folder that it is in: {target}")
        elif self._rules.leaves_out_within(target[len(self._top) + 1 :]):
            self._leave_out(path, f"a link to a folder that is ignored: {target}")
        else:
            return (*places, target)
        return None

    def _real(self, places: tuple[str, ...]) -> str:
        """The folder that is looked into, relative to the top and by no links: "", or it ends in "/"."""
        return f"{places[-1]}/"[len(self._top) + 1 :]

    def _leave_out(self, path: str, why: str) -> None:
        self.left_out.append(LeftOut(shown(path), shown(why)))


def unreadable(path: Path, error: OSError) -> UserError:
    """What is raised where `path` cannot be read."""
    return UserError(f"{shown(str(path))}: cannot be read: {error.strerror}; make it readable, or add it to .gitignore")


def shown(path: str) -> str:
    """`path` as it can be printed and written as JSON, whatever bytes the name is made of."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
