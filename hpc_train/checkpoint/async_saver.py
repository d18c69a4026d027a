"""BackgroundSaver: writes snapshots in a thread while training goes on, one at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from hpc_train.checkpoint.best import Best
from hpc_train.checkpoint.disk_io import Moved, idle
from hpc_train.checkpoint.format import Snapshot, refuse_nan
from hpc_train.checkpoint.manager import CheckpointManager

log = logging.getLogger(__name__)

POLL_SECS = 0.5


class BackgroundSaver:
    """Saves through `manager`; for the chief alone. A context manager: leaving it waits for what is under way.

    One save is in flight at most: `wait` before the arena that a snapshot lies in is used again.

    Args:
        saved: Called in the thread with each committed checkpoint, the seconds since its snapshot, and its bytes.
        failed: Called in the thread with an error, which `wait` then raises, and the bytes that were to be written.

    Attributes:
        moves: Counts pieces of work done, for those who watch whether it gets on.
    """

    def __init__(
        self,
        manager: CheckpointManager,
        saved: Callable[[Path, float, int], None],
        failed: Callable[[BaseException, int], None],
    ) -> None:
        self._manager, self._saved, self._failed = manager, saved, failed
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hpc_train-checkpoint")
        self._pending: list[Future[None]] = []
        self.moves = self._seen = 0

    def __enter__(self) -> BackgroundSaver:
        self._pool.submit(int)  # the thread starts here, and not in the first save, which would wait for it
        return self

    def __exit__(self, *raised: object) -> None:
        self._pool.shutdown(wait=True)

    @property
    def busy(self) -> bool:
        """Whether something that was begun is still to be done."""
        return any(not future.done() for future in self._pending)

    def begin(self, snapshot: Snapshot, over: Callable[[], object] = idle) -> None:
        """Begins to write `snapshot`, whose arrays must stay as they are until `wait` has returned.

        Args:
            over: Called in the thread once its arrays are needed no more.
        """
        self._pending.append(self._pool.submit(self._save, snapshot, over))

    def note_best(self, best: Best) -> None:
        """Marks the checkpoint of `best` as the one to keep, once it is there."""
        self._pending.append(self._pool.submit(self._note_best, best))

    def wait(self, moved: Moved = idle) -> None:
        """Waits until everything that was begun is done; `moved` is called as long as it gets further.

        Raises:
            OSError: A checkpoint could not be written, with errno and path. NotFiniteError: one held NaN.
        """
        pending, self._pending = self._pending, []
        while wait(pending, POLL_SECS).not_done:
            if self.moves > self._seen:
                self._seen = self.moves
                moved()
        errors = [error for future in pending if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def _save(self, snapshot: Snapshot, over: Callable[[], object]) -> None:
        try:
            try:
                refuse_nan(snapshot)
                path = self._manager.save(snapshot, self._move)
            finally:
                over()
        except BaseException as error:
            self._failed(error, snapshot.nbytes)
            raise
        self._saved(path, time.time() - snapshot.time, snapshot.nbytes)

    def _move(self) -> None:
        self.moves += 1

    def _note_best(self, best: Best) -> None:
        try:
            if self._manager.path(best.step).is_dir():
                self._manager.note_best(best)
        except OSError as error:
            log.warning(f"the checkpoint of step {best.step} is the best, but may not stay: {error}")
