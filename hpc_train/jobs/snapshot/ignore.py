"""What lies in a folder and is not its code: what Git ignores there, and what no job needs.

In a repository Git itself is asked. Elsewhere, and where Git is missing or refuses (a repository of another user), the
.gitignore files of the folder, and of the repository above it, are read with pathspec: the deepest that has a matching
pattern decides, and nothing below a folder that is left out comes back.
"""

from __future__ import annotations

import os
import re
import stat
import warnings
from fnmatch import fnmatchcase
from pathlib import Path

from pathspec import GitIgnoreSpec

from hpc_train.errors import UserError
from hpc_train.files import open_to_read
from hpc_train.git import Git
from hpc_train.jobdir.paths import SUBMISSION_FILE
from hpc_train.jobs.record.job_dirs import DEFAULT_ROOT

NEVER = (".git", ".venv", "__pycache__")
MAX_PATTERN_BYTES = 1 << 20
"""Of a .gitignore file, so many bytes are read."""


SECRET_FOLDERS = frozenset((".ssh", ".aws", ".gnupg", ".kube", ".docker"))
SECRET_NAMES = (
    *(".env", ".env.*", ".netrc", ".pgpass", ".git-credentials", ".npmrc", ".pypirc"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "id_*", "credentials*"),
)
HARMLESS_NAMES = ("*.py", "*.pub", ".env.example", ".env.sample", ".env.template")


def looks_secret(path: str) -> bool:
    """Whether the file `path`, relative to the code's folder, looks like one of keys or passwords. Pure."""
    *folders, name = path.casefold().split("/")
    if not SECRET_FOLDERS.isdisjoint(folders):
        return True
    named = any(fnmatchcase(name, pattern) for pattern in SECRET_NAMES)
    return named and not any(fnmatchcase(name, pattern) for pattern in HARMLESS_NAMES)


class Rules:
    """Decides what below a folder is left out of its code.

    Paths are relative to the folder, by no links; those called `parent` are "" or end in "/".

    Args:
        folder: Absolute and without links. Where the repository ignores the folder itself, what is above it says
            nothing of what is in it.
        asked: Where the time to ask Git is that of another folder's.

    Attributes:
        folder: As given.
        note: Why Git was not asked in a repository; None where it was, or where there is none.
    """

    def __init__(self, folder: Path, asked: Git | None = None) -> None:
        self.folder = folder
        self.note: str | None = None
        self._inner: dict[str, Rules] = {}
        self._listed: set[str] = set()
        self._known: set[str] | None = None
        self._patterns: _Patterns | None = None
        repository = next((top for top in (folder, *folder.parents) if os.path.lexists(top / ".git")), None)
        self._git = Git(folder, asked) if repository is not None else None
        if repository is None or self._git is None:
            self._patterns = _Patterns(folder, folder)
            return
        self._prefix = "".join(f"{part}/" for part in folder.relative_to(repository).parts)
        if (listed := self._git.files()) is None:
            self.note = (
                f"{folder}: Git was not asked what it ignores ({self._git.refusal}); the .gitignore files were read"
            )
            self._patterns = _Patterns(folder, repository)
        elif folder != repository and Git(folder.parent, self._git).ignores(folder.name):
            self._patterns = _Patterns(folder, folder)
        else:
            self._listed = {path.removesuffix("/") for path in listed}
            self._known = self._listed | {above for path in self._listed for above in _above(path)}

    def leaves_out(self, parent: str, name: str, is_folder: bool) -> bool:
        """Whether `parent` + `name` is left out, where `parent` is not."""
        return self.never_takes(parent, name, is_folder) or self._is_ignored(parent + name, is_folder)

    def never_takes(self, parent: str, name: str, is_folder: bool) -> bool:
        """Whether it is left out whatever Git says: caches, environments, job-dirs, Git's own files."""
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
        if self._never_takes_within(path, is_folder=True):
            return True
        in_another = any(above in self._listed for above in _above(path))  # another repository
        if self._known is not None and self._git is not None and not in_another:
            return self._git.ignores(path)
        return any(self._is_ignored(above, is_folder=True) for above in (*_above(path), path))

    def read_commit(self) -> tuple[str | None, bool | None]:
        """The repository's commit, and whether the folder's files differ from it.

        None and None where there is no repository, no commit or no git that answers; None for the second alone where
        git cannot say.
        """
        commit = self._git.commit() if self._git is not None else None
        if self._git is None or commit is None:
            return None, None
        if self.note is None and self._known is None:
            return commit, True
        changed = self._git.changed()
        return commit, None if changed is None else any(map(self._is_code, changed))

    def read_tracked(self) -> list[str]:
        """Files that the repository holds although it ignores their folder: Git ignores none of these."""
        tracked = self._git.tracked() if self._git is not None and self._known is None else []
        return [
            path
            for path in tracked
            if not self._never_takes_within(path, is_folder=False)
            and not any((self.folder / above).is_symlink() for above in _above(path))
        ]

    def _never_takes_within(self, path: str, is_folder: bool) -> bool:
        for whole in (*_above(path), path):
            parent, slash, name = whole.rpartition("/")
            if self.never_takes(parent + slash, name, is_folder or whole != path):
                return True
        return False

    def _is_code(self, path: str) -> bool:
        """Whether `path`, from the repository's root, is of the folder's code."""
        if not path.startswith(self._prefix) or path == self._prefix:
            return bool(path)
        return not self._never_takes_within(path[len(self._prefix) :].removesuffix("/"), path.endswith("/"))

    def _is_ignored(self, path: str, is_folder: bool) -> bool:
        if self._patterns is not None:
            return self._patterns.ignore(path, is_folder)
        assert self._known is not None
        if path in self._known:
            return False
        for above in _above(path):
            if above in self._listed and not (self.folder / above).is_symlink():  # of another repository
                inner = self._inner.get(above)
                if inner is None:
                    inner = self._inner[above] = Rules(self.folder / above, self._git)
                return inner._is_ignored(path[len(above) + 1 :], is_folder)
        return True


class _Patterns:
    """The patterns of the .gitignore files from `top` on down; read once, when first needed.

    One that cannot be read is a UserError.
    """

    def __init__(self, folder: Path, top: Path) -> None:
        self._top, self._prefix = top, "".join(f"{part}/" for part in folder.relative_to(top).parts)
        self._read: dict[str, GitIgnoreSpec | None] = {}
        for above in (*_above(self._prefix.removesuffix("/")), self._prefix.removesuffix("/")):
            if above and self._decide(above, is_folder=True):
                self._top, self._prefix = folder, ""
                self._read.clear()
                return

    def ignore(self, path: str, is_folder: bool) -> bool:
        """Whether they ignore `path`, where they do not ignore the folder that it is in."""
        return self._decide(self._prefix + path, is_folder)

    def _decide(self, path: str, is_folder: bool) -> bool:
        for above in reversed(("", *_above(path))):
            if above not in self._read:
                self._read[above] = _patterns_in(self._top / above)
            spec = self._read[above]
            below = path[len(above) + 1 :] if above else path
            found = spec.check_file(f"{below}/" if is_folder else below).include if spec is not None else None
            if found is not None:
                return bool(found)
        return False


def _patterns_in(folder: Path) -> GitIgnoreSpec | None:
    """Those of the folder's .gitignore, without lines that are no patterns. Links are not followed, as by Git."""
    path = folder / ".gitignore"
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        with open_to_read(path) as file:
            text = file.read(MAX_PATTERN_BYTES).decode("utf-8-sig", "surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of [[:alpha:]], which pathspec does not know
        return GitIgnoreSpec.from_lines(line for line in re.split("\r?\n", text) if _is_pattern(line))


def _is_pattern(line: str) -> bool:
    try:
        GitIgnoreSpec.from_lines([line])
    except (ValueError, re.error):  # as [z-a]
        return False
    return True


def _above(path: str) -> list[str]:
    """The folders that `path` is in, from the top on: a and a/b of a/b/c. Pure."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]
