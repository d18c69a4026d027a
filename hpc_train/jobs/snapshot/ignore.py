"""What lies in a folder and is not its code: what .gitignore files name, and what no job needs.

The patterns are Git's (https://git-scm.com/docs/gitignore): the deepest .gitignore decides, in it the last pattern that
matches, and nothing below a folder that is left out comes back. Of Git's sources only .gitignore is read, not
.git/info/exclude nor core.excludesFile.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
import subprocess
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

from hpc_train.errors import UserError
from hpc_train.jobdir.paths import SUBMISSION_FILE
from hpc_train.jobs.record.submission import DEFAULT_ROOT

NEVER = (".git", ".venv", "__pycache__")
GIT_TIMEOUT_SECS = 10.0

_END = "\0"
_WILD = re.compile(r"[*?[\\]")


@dataclass(frozen=True)
class Pattern:
    """One line of a .gitignore file.

    Attributes:
        matches: Whether it matches a name, or a path relative to the file's folder.
        negated: It keeps what it matches.
        folders_only: It matches folders alone.
        by_name: It is matched with the last part of a path.
    """

    matches: Callable[[str], bool]
    negated: bool
    folders_only: bool
    by_name: bool


def parse_pattern(line: str) -> Pattern | None:
    """The pattern of a line without its line feed; None where it has none, or one that can match nothing. Pure."""
    glob = line.removesuffix("\r")
    if glob.startswith("#"):
        return None
    while glob.endswith(" ") and not _ends_in_escape(glob[:-1]):
        glob = glob[:-1]
    negated = glob.startswith("!")
    glob = glob.removeprefix("!")
    folders_only = glob.endswith("/")
    glob = glob.removesuffix("/")
    by_name = "/" not in glob
    glob = glob.removeprefix("/")
    if glob.startswith("**/") and glob.count("/") == 1:
        glob, by_name = glob.removeprefix("**/"), True
    if not glob or _ends_in_escape(glob):
        return None
    return Pattern(_matcher(glob, by_name), negated, folders_only, by_name)


def _ends_in_escape(text: str) -> bool:
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


def _matcher(glob: str, by_name: bool) -> Callable[[str], bool]:
    """Whether `glob` matches the whole of a name (`by_name`) or path."""
    if not _WILD.search(glob):
        return glob.__eq__
    if by_name and glob.startswith("*") and not _WILD.search(glob, 1):
        return lambda name: name.endswith(glob[1:])
    if glob == "**" or glob.endswith("/**"):
        glob += "/*"
    # pathspec's patterns match all that is below what they match, too. With a last character that no path has they do
    # not, and trailing blanks stay as they are.
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of [[:alpha:]], which pathspec does not know
            pattern = GitIgnoreSpec.from_lines([f"/{glob}{_END}"]).patterns[0]
    except (ValueError, re.error):  # as [z-a]
        return lambda _: False
    if "**" in glob.split("/"):
        return lambda path: pattern.match_file(path + _END) is not None
    depth = glob.count("/")  # pathspec has [!x] match a slash
    return lambda path: path.count("/") == depth and pattern.match_file(path + _END) is not None


class Patterns:
    """The patterns of a .gitignore file with this content. They are matched byte by byte, as by Git."""

    def __init__(self, content: bytes) -> None:
        lines = content.removeprefix(codecs.BOM_UTF8).decode("latin-1").split("\n")
        self._patterns = [pattern for line in reversed(lines) if (pattern := parse_pattern(line)) is not None]

    def decide(self, path: str, is_folder: bool) -> bool | None:
        """Whether `path`, relative to the file's folder, is ignored; None where no pattern matches. Pure."""
        if not path.isascii():
            path = os.fsencode(path).decode("latin-1")
        name = path.rpartition("/")[2]
        for pattern in self._patterns:
            if (is_folder or not pattern.folders_only) and pattern.matches(name if pattern.by_name else path):
                return not pattern.negated
        return None


class Rules:
    """Says what below a folder is left out of its code.

    Paths are relative to the folder; those called `parent` are "" or end in "/". .gitignore files are read once, when
    first needed; one that cannot be read is a UserError.

    Args:
        folder: Absolute and without links. Where the repository ignores the folder itself, the .gitignore files above
            it say nothing of what is in it.

    Attributes:
        folder: As given.
        repository: The first of the folder and its parents that holds .git; None where none does.
        is_ignored: Whether the repository ignores the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repository = next((top for top in (folder, *folder.parents) if os.path.lexists(top / ".git")), None)
        self.is_ignored = False
        self._levels: dict[str, tuple[tuple[int, Patterns], ...]] = {}
        top = self.repository or folder
        self._prefix = "".join(f"{part}/" for part in folder.relative_to(top).parts)
        levels: tuple[tuple[int, Patterns], ...] = ()
        above = ""
        for part in folder.relative_to(top).parts:
            levels += self._read(top / above, len(above))
            if self._is_ignored(levels, above + part, is_folder=True):
                self.is_ignored, levels = True, ()
                break
            above += f"{part}/"
        self._levels[""] = levels + self._read(folder, len(self._prefix))

    def leaves_out(self, parent: str, name: str, is_folder: bool) -> bool:
        """Whether `parent` + `name` is left out, where `parent` is not."""
        if self.never_takes(parent, name, is_folder):
            return True
        return self._is_ignored(self._levels_in(parent), self._prefix + parent + name, is_folder)

    def never_takes(self, parent: str, name: str, is_folder: bool) -> bool:
        """Whether it is left out whatever .gitignore says: caches, environments, job-dirs, Git's own files."""
        if name in NEVER or name.endswith(".pyc"):
            return True
        if not is_folder:
            return False
        if name == DEFAULT_ROOT and not parent:
            return True
        path = self.folder / parent / name
        return os.path.lexists(path / SUBMISSION_FILE) or (name == "venv" and os.path.lexists(path / "pyvenv.cfg"))

    def leaves_out_within(self, path: str) -> bool:
        """Whether the folder `path` is left out, or one that it is in. It need not exist."""
        return _any_part(self.leaves_out, path, is_folder=True)

    def never_takes_within(self, path: str, is_folder: bool) -> bool:
        """Whether `path` is left out whatever .gitignore says, or a folder that it is in."""
        return _any_part(self.never_takes, path, is_folder)

    def read_commit(self) -> tuple[str | None, bool | None]:
        """The repository's commit, and whether the folder's files differ from it.

        None and None where there is no repository, no commit or no git that answers; None for the second alone where
        git takes longer than GIT_TIMEOUT_SECS for it.
        """
        answer = self._git("rev-parse", "--verify", "HEAD")
        if answer is None:
            return None, None
        commit = answer.decode().strip()
        if self.is_ignored:
            return commit, True
        status = self._git("status", "--porcelain", "-z", "--no-renames", "--", ".")
        return commit, None if status is None else any(map(self._is_change, status.split(b"\0")))

    def read_tracked(self) -> list[str]:
        """Files that .gitignore names and that the repository holds all the same: Git ignores none of these."""
        answer = self._git("ls-files", "-z", "--cached", "--ignored", "--exclude-standard") or b""
        paths = [os.fsdecode(path) for path in answer.split(b"\0") if path]
        return [path for path in paths if not self.never_takes_within(path, is_folder=False)]

    def _is_change(self, entry: bytes) -> bool:
        """Whether an entry of git status is of code; it names paths from the repository's root."""
        path = os.fsdecode(entry[3:])
        if not path.startswith(self._prefix) or path == self._prefix:
            return bool(path)
        return not self.never_takes_within(path[len(self._prefix) :].removesuffix("/"), path.endswith("/"))

    def _git(self, *arguments: str) -> bytes | None:
        """What git prints; None where it cannot say."""
        if self.repository is None:
            return None
        other = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
        env = {name: value for name, value in os.environ.items() if name not in other}
        try:
            return subprocess.run(
                ["git", *arguments],
                cwd=self.folder,
                env=env | {"GIT_OPTIONAL_LOCKS": "0"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=GIT_TIMEOUT_SECS,
                check=True,
            ).stdout
        except (OSError, subprocess.SubprocessError):
            return None

    def _levels_in(self, parent: str) -> tuple[tuple[int, Patterns], ...]:
        """The .gitignore files that count in `parent`, the deepest last, and where in a path their folders end."""
        levels = self._levels.get(parent)
        if levels is None:
            above = parent[:-1].rpartition("/")
            levels = self._levels_in(above[0] + above[1])
            levels += self._read(self.folder / parent, len(self._prefix) + len(parent))
            self._levels[parent] = levels
        return levels

    @staticmethod
    def _is_ignored(levels: tuple[tuple[int, Patterns], ...], path: str, is_folder: bool) -> bool:
        for start, patterns in reversed(levels):
            decision = patterns.decide(path[start:], is_folder)
            if decision is not None:
                return decision
        return False

    @staticmethod
    def _read(folder: Path, start: int) -> tuple[tuple[int, Patterns], ...]:
        """The folder's .gitignore. Links are not followed, as Git does not."""
        path = folder / ".gitignore"
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                return ()
            return ((start, Patterns(path.read_bytes())),)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def _any_part(leaves_out: Callable[[str, str, bool], bool], path: str, is_folder: bool) -> bool:
    parent, names = "", path.split("/")
    for name in names[:-1]:
        if leaves_out(parent, name, True):
            return True
        parent += f"{name}/"
    return leaves_out(parent, names[-1], is_folder)
