"""One job, one job-dir: a lock that names its holder, and that a dead job does not leave behind for ever."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from hpc_train.errors import UserError
from hpc_train.files import create, open_to_change, open_to_read
from hpc_train.folders import remove
from hpc_train.jobdir.paths import LOCK_FILE
from hpc_train.processes import is_alive
from hpc_train.resilience.lock_holder import Record, describe, is_earlier_run, judge, my_record, refusal

log = logging.getLogger(__name__)


HEARTBEAT_SECS = 10.0
"""How often the holder touches its lock, for those who cannot see by other means whether it lives."""
WATCH_SECS = 25.0
"""A lock that nobody has touched for so long was left by a dead job: two heartbeats are missing."""
SETTLE_SECS = 2.0
"""After taking over a lock that was watched: how long to wait for another who may have done so in the same moment."""
LEASE_SECS = 150.0
"""How long to wait for a file server to give up the file lock of a node that has died; NFSv4's lease is 90 s."""

_NO_FLOCK = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
"""The errors of flock where the file system has none."""


def holder_of(job_dir: Path) -> Record | None:
    """Who holds the lock of `job_dir` now, as far as can be seen from here without taking it; None: nobody. Local."""
    path = job_dir / LOCK_FILE
    with suppress(OSError):
        if (found := _read_at(path)) is None:
            return None
        here = found.get("host") == socket.gethostname()
        lives = is_alive(found) if here else abs(time.time() - path.stat().st_mtime) < WATCH_SECS
        return found if lives else None
    return None


class JobLock:
    """The right to write in `job_dir`, kept in `<job_dir>/lock.json`; for the chief alone. A context manager.

    The file is locked with flock, which ends with the process, however that ends. For file systems where flock does
    not reach other nodes, or is missing, the holder also touches the file every HEARTBEAT_SECS, and a job on another
    node watches it for WATCH_SECS before it takes it for a dead job's. A file server that keeps the lock of a node that
    has died is waited for, for LEASE_SECS, where the lock is of an earlier run of this job and nobody touches it.

    Attributes:
        taken_by: Who has taken the lock over from this job, in words, or None. It happens where flock does not reach
            other nodes and this process was stopped for longer than WATCH_SECS: it must write no more.
    """

    def __init__(self, job_dir: Path) -> None:
        self._job_dir, self._path = job_dir, job_dir / LOCK_FILE
        self._file: int | None = None
        self._record: Record = {}
        self._kept: tuple[int, float] | None = None  # what was waited for: when it was touched, and since when
        self._released = threading.Event()
        self._heart: threading.Thread | None = None
        self.taken_by: str | None = None

    @property
    def held(self) -> bool:
        """Whether this process holds it."""
        return self._file is not None

    def acquire(self) -> None:
        """Takes the lock; the folder must exist. Logs where the lock was a dead job's, and where that takes WATCH_SECS.

        Raises:
            UserError: Another job holds it, or the file cannot be written.
        """
        if self._file is not None:
            raise RuntimeError(f"{self._path}: this lock is held already")
        self._record, self._kept = my_record(os.environ), None
        try:
            file, dead = self._take()
        except OSError as error:
            raise UserError(
                f"{self._path}: cannot be written: {error.strerror}; the job-dir must be a folder that this job may "
                "write to, with space left"
            ) from None
        self._file = file
        _held.append(self)
        self._released.clear()
        self._heart = threading.Thread(target=self._beat, args=(file,), name="job lock", daemon=True)
        self._heart.start()
        if dead is not None:
            log.info(f"took over the lock of a job that ended without leaving it: {describe(dead)}")

    def release(self) -> None:
        """Removes the file and lets go. Without effect where the lock is not held."""
        if self._file is None or self._heart is None:
            return
        self._released.set()
        self._heart.join()
        with suppress(OSError):  # the job-dir may have vanished, or can no longer be written
            if _is_at(self._file, self._path) and _read(self._file) == self._record:
                remove(self._path)  # while it is locked: whoever has opened it meanwhile finds that it is gone
        os.close(self._file)
        _held.remove(self)
        self._file = None

    def __enter__(self) -> JobLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _take(self) -> tuple[int, Record | None]:
        """The open file, locked, with our record in it, and the dead job's that was in it."""
        patience = time.monotonic() + SETTLE_SECS
        while True:
            file, created = _open(self._path)
            try:
                flock, found = _flock(file), _read(file)
                undecided = found is None and time.monotonic() < patience  # created, and not yet written by its owner
                if flock == "theirs" and not undecided and not self._waits_for(file, found or {}):
                    raise UserError(refusal(self._job_dir, found or {}))
                if flock != "theirs" and _is_at(file, self._path):
                    if created or (found is None and not undecided and flock == "ours"):
                        self._write(file, created)
                        return file, None
                    if not undecided and self._take_over(file, found or {}, flock == "ours"):
                        return file, found or {}
            except BaseException:
                os.close(file)
                raise
            os.close(file)
            time.sleep(0.05)

    def _waits_for(self, file: int, found: Record) -> bool:
        """Whether the lock may be one that a file server keeps for a dead node; after a while if so. Logged once."""
        if not is_earlier_run(found, self._record):
            return False
        touched, now = os.fstat(file).st_mtime_ns, time.monotonic()
        if self._kept is None:
            self._kept = touched, now
            log.warning(
                f"the job-dir is locked by an earlier run of this job, {describe(found)}; waiting up to "
                f"{LEASE_SECS:.0f} s, since a file server keeps the locks of a node that died for a while"
            )
        first, since = self._kept
        time.sleep(min(1.0, LEASE_SECS / 10))
        return touched == first and now - since < LEASE_SECS

    def _take_over(self, file: int, found: Record, flocked: bool) -> bool:
        """Makes the lock of `found` ours where that job is dead; False where it has left, so that all begins anew."""
        still = self._kept is not None and time.monotonic() - self._kept[1] >= WATCH_SECS
        watched = not still and judge(found, self._record, flocked) == "watch"
        if watched:
            log.warning(
                f"the job-dir is locked by {describe(found)}; looking for {WATCH_SECS:.0f} s whether that job lives"
            )
            before, end = os.fstat(file).st_mtime_ns, time.monotonic() + WATCH_SECS
            while time.monotonic() < end:
                time.sleep(min(1.0, WATCH_SECS / 10))
                # Opened anew: NFS asks the server then, and else remembers the times of a file for up to a minute.
                try:
                    with open_to_read(self._path) as fresh:
                        touched, holder = os.fstat(fresh.fileno()).st_mtime_ns != before, _read(fresh.fileno())
                except FileNotFoundError:
                    return False
                if touched:
                    if holder is None:  # it was just being written
                        time.sleep(0.1)
                        holder = _read_at(self._path)
                    raise UserError(refusal(self._job_dir, holder or found))
        self._write(file, created=False)
        if watched:
            time.sleep(SETTLE_SECS)
            holder = _read_at(self._path)
            if holder != self._record:  # another has watched as long, and was later to write
                raise UserError(refusal(self._job_dir, holder or {}))
        return True

    def _write(self, file: int, created: bool) -> None:
        text = (json.dumps(self._record, indent=2) + "\n").encode()
        try:
            os.pwrite(file, text, 0)
            os.ftruncate(file, len(text))
            os.fsync(file)
        except OSError:
            if created:
                remove(self._path, missing_ok=True)
            raise

    def _beat(self, file: int) -> None:
        while self.taken_by is None and not self._released.wait(HEARTBEAT_SECS):
            with suppress(OSError):  # a file system that is gone for a while, or a job-dir that has vanished
                os.utime(file)
                holder = _read_at(self._path)
                if holder is not None and holder != self._record:
                    self.taken_by = describe(holder)

    def _leave_to_parent(self) -> None:
        """In a forked child: with its copy of the file open, the lock would outlive the parent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


_held: list[JobLock] = []


def _after_fork_in_child() -> None:
    for lock in _held:
        lock._leave_to_parent()
    _held.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _open(path: Path) -> tuple[int, bool]:
    """`path` open for reading and writing, and whether this call has created it."""
    while True:
        try:
            return create(path, 0o600, readable=True), True
        except FileExistsError:
            with suppress(FileNotFoundError):  # removed just now
                return open_to_change(path), False


def _flock(file: int) -> Literal["ours", "theirs", "unknown"]:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "theirs"
    except OSError as error:
        if error.errno in _NO_FLOCK:
            return "unknown"
        raise
    return "ours"


def _is_at(file: int, path: Path) -> bool:
    """Whether the open `file` is still what lies at `path`."""
    try:
        there, here = path.lstat(), os.fstat(file)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _read(file: int) -> Record | None:
    """The record in the open `file`; None where there is no whole one (yet)."""
    try:
        record = json.loads(os.pread(file, 1 << 16, 0))
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _read_at(path: Path) -> Record | None:
    with suppress(FileNotFoundError), open_to_read(path) as file:
        return _read(file.fileno())
    return None
