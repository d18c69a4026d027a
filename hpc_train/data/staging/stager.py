"""The threads that copy shards on one rank of a node, and that find the copies on its others."""

from __future__ import annotations

import logging
import resource
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hpc_train.data.staging.board import PENDING, READY, REFUSED, Board, open_offered
from hpc_train.data.staging.copy import StoppedError, copy_of
from hpc_train.data.staging.folder import room_bytes
from hpc_train.text import visible

log = logging.getLogger(__name__)

POLL_SECS, LEAVE_SECS = 0.2, 10.0
MIB = 1 << 20
COPIES_AT_ONCE = 4
"""One alone gets half of a slow source, beside the readers of the first pass, and is not done when the second begins.
"""
FILES_PART = 4
"""Of the files that a process may have open, copies take the fourth part; each takes one, and a reader another."""

ANY_RANK = {"any_rank": True}
"""Of a line that is logged whichever rank it comes from."""

Use = Callable[[int, int], None]
"""Takes a copy over: the number of its shard, and its descriptor."""


class Thread:
    """A thread that `close` stops; an error ends it with a warning, for shards can be read where they are."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run, self._stop = run, threading.Event()
        self._thread = threading.Thread(target=self._guarded, name="hpc_train-stage", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_stopped(self) -> bool:
        return self._stop.is_set()

    def wait(self) -> bool:
        """Waits until it is time to look again; whether it has been stopped meanwhile."""
        return self._stop.wait(POLL_SECS)

    def close(self) -> bool:
        """Whether the thread has ended; one that waits for a file system that hangs is left."""
        self._stop.set()
        self._thread.join(LEAVE_SECS)
        return not self._thread.is_alive()

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:  # whatever it is, training goes on
            log.warning(visible(f"stage: {type(error).__name__}: {error}; shards are read where they are"))


def most_copies() -> int:
    """How many copies this process may have open."""
    return max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // FILES_PART)


def copy_shards(
    paths: Sequence[str], sizes: Sequence[int], folder: Path, kind: str, board: Board, use: Use, thread: Thread
) -> None:
    """Copies shards in their order, COPIES_AT_ONCE side by side and as many as there is room for; logs how many.

    A shard that cannot be copied is read where it is, as are those that do not fit.
    """
    begin, copier = time.monotonic(), _Copier(list(zip(paths, sizes, strict=True)), folder, kind, board, use, thread)
    others = [threading.Thread(target=copier.work, daemon=True) for _ in range(min(COPIES_AT_ONCE, len(paths)) - 1)]
    for other in others:
        other.start()
    copier.work()
    for other in others:
        other.join()
    copier.report(time.monotonic() - begin)


class _Copier:
    """What threads that copy shards have in common: which is next, how many are copied, and what they take."""

    def __init__(
        self,
        shards: Sequence[tuple[str, int]],
        folder: Path,
        kind: str,
        board: Board,
        use: Use,
        thread: Thread,
    ) -> None:
        self._shards, self._folder, self._kind = shards, folder, kind
        self._board, self._use, self._thread = board, use, thread
        self._lock, self._next = threading.Condition(), 0
        self._copied, self._bytes, self._open, self._under_way = 0, 0, 0, 0
        self._full, self._stopped = "", False
        self._error: BaseException | None = None
        # Once: a part of what is left, taken again and again, would be all of it.
        self._budget = room_bytes(folder, kind)

    def work(self) -> None:
        """Copies one shard after the other until none is left."""
        try:
            while (number := self._taken()) is not None:
                path, size = self._shards[number]
                state, copy = REFUSED, -1
                try:
                    copy = copy_of(path, size, self._folder, self._thread.is_stopped)
                    state = READY
                except OSError as error:
                    log.warning(visible(f"stage: {path}: {error.strerror or error}; it is read where it is"))
                finally:
                    self._give_back(number, size, state, copy)
        except StoppedError:
            self._stopped = True
        except BaseException as error:
            self._error = error

    def report(self, secs: float) -> None:
        """Logs what came of it; raises what has ended a thread."""
        if self._error is not None:
            raise self._error
        count = len(self._shards)
        if self._stopped:
            log.info(f"stage: training ended when {self._copied} of {count} shards were copied", extra=ANY_RANK)
            return
        why = f"; {self._full}: the others are read where they are" if self._full else ""
        copied = f"{self._copied} of {count} shards ({self._bytes / MIB:,.1f} MiB)"
        log.info(visible(f"stage: {copied} are in {self._folder}, in {secs:.1f} s{why}"), extra=ANY_RANK)

    def _taken(self) -> int | None:
        """The next shard that there is room for."""
        with self._lock:
            while self._next < len(self._shards):
                size = self._shards[self._next][1]
                room = min(self._budget - self._bytes, room_bytes(self._folder, self._kind)) - self._under_way
                if size > room and self._under_way:  # of which a part is written, and counted twice
                    self._lock.wait(POLL_SECS)
                    if self._thread.is_stopped():
                        raise StoppedError
                    continue
                number, self._next = self._next, self._next + 1
                if self._open >= most_copies():
                    self._full = "this process may open no more files"
                elif size > room:
                    self._full = f"{self._folder} has room for {max(0, room) / MIB:,.0f} MiB"
                else:
                    self._open, self._under_way = self._open + 1, self._under_way + size
                    return number
                self._board.note(number, REFUSED)
            return None

    def _give_back(self, number: int, size: int, state: int, copy: int) -> None:
        with self._lock:
            self._under_way -= size
            self._lock.notify_all()
            if state == READY:
                self._copied, self._bytes = self._copied + 1, self._bytes + size
                self._board.note(number, READY, copy)
                self._use(number, copy)
            else:
                self._open -= 1
                self._board.note(number, REFUSED)


def find_copies(process: int, count: int, board: Board, use: Use, thread: Thread) -> None:
    """Takes over the copies that the process `process` of this node makes, as they come, until it withdraws them."""
    waiting = set(range(count))
    while waiting:
        for number, (state, descriptor, device, inode) in enumerate(board.read()):
            if number not in waiting or state == PENDING:
                continue
            waiting.remove(number)
            if state != READY:
                continue
            try:
                copy = open_offered((process, descriptor, device, inode))
            except OSError:
                if board.read()[number][0] == READY and _lives(process):
                    raise
                return  # the other rank has ended
            use(number, copy)
        if waiting and (thread.wait() or not _lives(process)):
            return


def _lives(process: int) -> bool:
    return Path(f"/proc/{process}").exists()
