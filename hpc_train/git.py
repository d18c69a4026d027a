"""Git, asked about a folder that may be somebody else's: nothing that the folder's own configuration names is run.

A repository's configuration can name programs: monitors, hooks, filters of contents, transports. Those of the user and
of the machine are trusted, and count.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

import psutil

GIT_TIMEOUT_SECS = 30.0
"""For all that is asked about one folder."""
IDLE_SECS, POLL_SECS = 3.0, 0.1
"""So long git may sleep without having computed: it waits for a FIFO then that the folder's configuration names."""
MAX_OUTPUT_BYTES = 256 << 20

_OPTIONS = (
    "--no-pager",
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "protocol.allow=never"),
    *("-c", "submodule.recurse=false"),
)
_SETTINGS = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
_OF_OTHERS = frozenset(
    ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY")
)
"""What would have Git look at another repository than the folder's."""


class Git:
    """Answers about `folder`; none once GIT_TIMEOUT_SECS are over.

    Args:
        asked: Where the time is that of another folder's.

    Attributes:
        refusal: The last message of Git, or the system, where it did not answer.
    """

    def __init__(self, folder: Path, asked: Git | None = None) -> None:
        self.folder = folder
        self._ends: float = asked._ends if asked is not None else time.monotonic() + GIT_TIMEOUT_SECS
        self.refusal = ""

    def files(self) -> list[str] | None:
        """What is tracked or not ignored, relative to the folder: files, links, and folders of other repositories.

        Tracked files may have been removed. None where Git does not answer.
        """
        return _paths(self._ask("ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", "."))

    def tracked(self) -> list[str]:
        """What is tracked, relative to the folder; empty where Git does not answer."""
        return _paths(self._ask("ls-files", "--cached", "-z", "--", ".")) or []

    def ignores(self, path: str) -> bool:
        """Whether the patterns ignore the folder `path`, which need not exist."""
        return self._ask("check-ignore", "--no-index", "--quiet", "--", f"./{path}/") is not None

    def commit(self) -> str | None:
        """The commit that is checked out."""
        answer = self._ask("rev-parse", "--verify", "HEAD")
        return None if answer is None else answer.decode().strip()

    def changed(self) -> list[str] | None:
        """Files below the folder that differ from the commit, from the repository's root; None where that is unknown.

        Filters of the repository's own configuration are off, so that what they would change counts as different.
        """
        listed = self._ask("config", "--list", "--show-scope", "--name-only", "-z")
        if listed is None:
            return None
        parts = [os.fsdecode(part) for part in listed.split(b"\0")]
        named = {name for scope, name in zip(parts[::2], parts[1::2], strict=False) if scope in ("local", "worktree")}
        filters = [name for name in sorted(named) if name.startswith("filter.")]
        if any("=" in name for name in filters):
            return None  # cannot be set on the command line
        off = [part for name in filters for part in ("-c", f"{name}=")]
        command = ("status", "--porcelain", "-z", "--no-renames", "--ignore-submodules=dirty", "--", ".")
        answer = _paths(self._ask(*off, *command))
        return None if answer is None else [entry[3:] for entry in answer]

    def _ask(self, *arguments: str) -> bytes | None:
        """What git prints; None where it fails, takes too long or prints too much."""
        env = {name: value for name, value in os.environ.items() if name not in _OF_OTHERS} | _SETTINGS
        left = self._ends - time.monotonic()
        if left <= 0:
            return None
        with TemporaryFile() as errors:
            try:
                process = subprocess.Popen(
                    ["git", *_OPTIONS, *arguments],
                    cwd=self.folder,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                )
            except OSError as error:
                missing = isinstance(error, FileNotFoundError)
                self.refusal = "there is no git on PATH" if missing else str(error.strerror)
                return None
            assert process.stdout is not None
            ended = threading.Event()
            threading.Thread(target=_kill_idle, args=(process.pid, left, ended), daemon=True).start()
            with process:
                answer = process.stdout.read(MAX_OUTPUT_BYTES + 1)
                if len(answer) > MAX_OUTPUT_BYTES:
                    process.kill()
                ended.set()
            message = os.pread(errors.fileno(), 1 << 12, 0).decode(errors="replace").strip()
        if process.returncode == 0 and len(answer) <= MAX_OUTPUT_BYTES:
            return answer
        if process.returncode < 0:
            self._ends = 0.0  # whoever has waited once in vain asks no more
        late = "it did not answer in time" if process.returncode < 0 else "it failed"
        self.refusal = message.splitlines()[0] if message else late
        return None


def _kill_idle(pid: int, secs: float, ended: threading.Event) -> None:
    """Kills a child that has not ended after `secs`, or that has slept for IDLE_SECS, which waits for no disk."""
    end, idle, computed = time.monotonic() + secs, 0.0, -1.0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        while not ended.wait(POLL_SECS):
            times, state = process.cpu_times(), process.status()
            now = times.user + times.system
            idle = idle + POLL_SECS if state == psutil.STATUS_SLEEPING and now == computed else 0.0
            computed = now
            if idle >= IDLE_SECS or time.monotonic() > end:
                process.kill()
                return


def _paths(answer: bytes | None) -> list[str] | None:
    return None if answer is None else [os.fsdecode(path) for path in answer.split(b"\0") if path]
