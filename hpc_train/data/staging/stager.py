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
    """Copies shards in their order, as many as there is room for, and logs how many these are.

    A shard that cannot be copied is read where it is, as are those that do not fit.
    """
    begin, copied, total, full = time.monotonic(), 0, 0, ""
    budget = room_bytes(folder, kind)  # once: a part of what is left, taken again and again, would be all of it
    for number, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        room = min(budget - total, room_bytes(folder, kind))
        if copied >= most_copies():
            full = "this process may open no more files"
        elif size > room:
            full = f"{folder} has room for {room / MIB:,.0f} MiB"
        else:
            try:
                copy = copy_of(path, size, folder, thread.is_stopped)
            except StoppedError:
                log.info(f"stage: training ended when {copied} of {len(paths)} shards were copied", extra=ANY_RANK)
                return
            except OSError as error:
                log.warning(visible(f"stage: {path}: {error.strerror or error}; it is read where it is"))
            else:
                board.note(number, READY, copy)
                use(number, copy)
                copied, total = copied + 1, total + size
                continue
        board.note(number, REFUSED)
    secs, why = time.monotonic() - begin, f"; {full}: the others are read where they are" if full else ""
    log.info(
        visible(
            f"stage: {copied} of {len(paths)} shards ({total / MIB:,.1f} MiB) are in {folder}, in {secs:.1f} s{why}"
        ),
        extra=ANY_RANK,
    )


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
