"""A job-dir seen from outside: the status of its training and which checkpoints are there. Reads, and never writes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.manifest import DamagedError, FormatError, read_manifest
from hpc_train.checkpoint.names import Retention
from hpc_train.errors import UserError
from hpc_train.evaluation.schedule import Checkpoint
from hpc_train.files import open_to_read
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobdir.paths import LOCK_FILE
from hpc_train.resilience.job_lock import WATCH_SECS
from hpc_train.text import NAMED, listed

ASK_SECS = 60.0
"""A job's queue is asked no more often."""
LOST_SECS = 4 * WATCH_SECS
"""A job that no queue knows, of another machine, is dead when its lock was not touched for so long."""

Training = Literal["awaited", "running", "away", "ended", "lost"]
"""The status of the training that is followed. awaited: it has not begun; away: it has saved and left, and will come
back (a requeue); ended: for good, however; lost: it was killed and reported no end."""
Ask = Callable[[Path], tuple[Training, str] | None]
"""Asks a job's queue, or this machine, whether a silent job has ended; None: it has not, or nobody knows."""

_ENDED = ("succeeded", "failed", "cancelled")
_AWAY = ("stopped", "requeued")


class JobWatcher:
    """The job in `job_dir`, which need not be there yet.

    Args:
        ask: Called where status.json reports no end, and the job gives no sign of life.

    Attributes:
        manager: Its checkpoints, to be read.
        status: The content of status.json at the last `look`.
        why: How training ended, in words, once it has.
        averages: Whether the last evaluation takes averaged weights (use_ema).
    """

    def __init__(self, job_dir: Path, report: Callable[[str], None], ask: Ask) -> None:
        self.job_dir, self._report, self._ask = JobDir(job_dir), report, ask
        self.manager = CheckpointManager(self.job_dir.checkpoints_path, Retention())
        self.status: dict[str, Any] = {}
        self.why = ""
        self.averages = False
        self._reported: set[tuple[int, int]] = set()
        self._beat: tuple[int, int] | None = None
        self._beat_at, self._asked_at = time.monotonic(), float("-inf")

    def look(self) -> tuple[Training, list[Checkpoint]]:
        """The status of training, and the checkpoints that are there afterwards, so that none is overlooked at its end.

        Raises: As `checkpoints`.
        """
        self.status = self.job_dir.status()
        training = self._training()
        return training, self.checkpoints()

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints that have a manifest, by step.

        Raises:
            UserError: Another version has written one, or the folder cannot be read.
        """
        found: list[Checkpoint] = []
        damaged: list[tuple[int, DamagedError]] = []
        try:
            for step in self.manager.steps():
                path = self.manager.path(step)
                try:
                    found.append(Checkpoint(step, read_manifest(path).time, self._is_averaged(step)))
                except DamagedError as error:
                    with suppress(FileNotFoundError):  # it was removed just now
                        folder = path.stat()
                        if (step, folder.st_ino) not in self._reported:
                            self._reported.add((step, folder.st_ino))
                            damaged.append((step, error))
                except FormatError as error:
                    raise UserError(f"{error}; use the version that wrote it") from None
        except (FileNotFoundError, NotADirectoryError):
            return found
        except OSError as error:
            if not self.manager.steps():
                return []
            raise UserError(f"{error.filename}: cannot be read: {error.strerror}") from None
        finally:
            if len(damaged) == 1:
                self._report(f"the checkpoint of step {damaged[0][0]} is damaged and passed over: {damaged[0][1]}")
            elif damaged:
                whys = listed((f"step {step}: {why}" for step, why in damaged), "; ", NAMED)
                self._report(f"{len(damaged):,} checkpoints are damaged and passed over: {whys}")
        return found

    def _is_averaged(self, step: int) -> bool:
        """Whether the job itself evaluates this checkpoint with averaged weights: its last one."""
        if not self.averages:
            return False
        end = self.status.get("max_steps")
        at_end = self.status.get("state") == "succeeded" and self.status.get("step") == step
        return at_end or (isinstance(end, int) and step >= end)

    def lag(self, checkpoint: Checkpoint) -> tuple[int, float]:
        """By how many steps and seconds training is ahead of `checkpoint` now; 0 where it is its newest state."""
        status = self.job_dir.status()
        step, updated = status.get("step"), status.get("updated")
        if not isinstance(step, int) or step <= checkpoint.step:
            return 0, 0.0
        secs = max(0.0, updated - checkpoint.time) if isinstance(updated, int | float) else 0.0
        return step - checkpoint.step, secs

    def _training(self) -> Training:
        state = self.status.get("state")
        quiet_secs = self._quiet_secs()
        if state in _ENDED:
            if state == "failed" and self._beat is not None and quiet_secs < WATCH_SECS:
                return "running"  # the rank that failed has reported it; the chief may still be writing a checkpoint
            self.why = str(state)
            error = self.status.get("error")
            if isinstance(error, dict) and error.get("message"):
                self.why += f": {error['message']}"
            return "ended"
        if state not in ("running", "queued", *_AWAY):
            return "awaited"
        by_hand = self.status.get("job_id") is None
        if by_hand or (quiet_secs >= WATCH_SECS and time.monotonic() - self._asked_at >= ASK_SECS):
            self._asked_at = time.monotonic()
            if (answer := self._ask(self.job_dir.path)) is not None:
                training, self.why = answer
                return training
        if by_hand and state == "running" and quiet_secs >= LOST_SECS:
            self.why = f"nothing was heard for {LOST_SECS:.0f} s of the job on {self.status.get('host')}"
            return "lost"
        return "away" if state in _AWAY else "awaited" if state == "queued" else "running"

    def _quiet_secs(self) -> float:
        """For how long, as far as this process has seen, the job's lock was not touched, or was not there."""
        beat = _touched(self.job_dir.path / LOCK_FILE)
        if beat != self._beat:
            self._beat, self._beat_at = beat, time.monotonic()
        return time.monotonic() - self._beat_at


def _touched(path: Path) -> tuple[int, int] | None:
    """Which file lies at `path`, and when it was touched; None where there is none."""
    with suppress(OSError):
        try:
            with open_to_read(path) as file:  # NFS asks its server then, and else remembers times
                found = os.fstat(file.fileno())
        except PermissionError:
            found = path.lstat()
        return found.st_ino, found.st_mtime_ns
    return None
