"""hpc_train's own checkpoints, called as a job calls them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np

from checkpoints.models import Subject
from hpc_train.checkpoint.async_saver import BackgroundSaver
from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention
from hpc_train.data.sampling.sampler import DataOrder, DataProgress

ORDER = DataOrder(seed=1, shuffle="block", rows=60_000, shards="0" * 64)
BATCH = 64


class Saves:
    """Saves of `subject` under `folder`, of which the newest stays.

    Attributes:
        manager: Its checkpoints. idle: Set while nothing is being written.
    """

    def __init__(self, subject: Subject, folder: Path, saver: BackgroundSaver | None = None) -> None:
        self.manager = CheckpointManager(folder, Retention(1))
        self.idle = threading.Event()
        self.idle.set()
        self._subject, self._saver, self._steps = subject, saver, count(1)

    def snapshot(self) -> Snapshot:
        """The state in the arena."""
        step = next(self._steps)
        progress = DataProgress(step, BATCH * step, ((0, 1),))
        return self._subject.state.snapshot(Snapshot({}, {}, progress, ORDER, 1, 0.0, RANDOM, 1))

    def begin(self) -> None:
        """What the training thread does for a save: the snapshot, and handing it to the thread that writes."""
        assert self._saver is not None
        self.idle.clear()
        self._saver.begin(self.snapshot())

    def wait(self) -> None:
        """Waits until it is committed."""
        assert self._saver is not None
        self._saver.wait()

    def restore(self) -> tuple[float, float, float]:
        """Restores the newest checkpoint; seconds for the check of its digests, for reading, for assigning."""
        start = time.perf_counter()
        step = self.manager.find_whole().step
        if step is None:
            raise RuntimeError("the checkpoint is not whole: nothing here is worth measuring")
        checked = time.perf_counter()
        snapshot = self.manager.load(step)
        loaded = time.perf_counter()
        self._subject.state.share(snapshot, part=0)
        return checked - start, loaded - checked, time.perf_counter() - loaded


RANDOM = {"python": np.zeros((1, 626), np.uint32), "numpy": np.zeros((1, 626), np.uint32)}
"""As many bytes as the random states of one rank."""


@contextmanager
def background_saves(subject: Subject, folder: Path) -> Iterator[Saves]:
    """Saves that a thread writes, as a job has them."""
    saves: Saves

    def written(path: Path, secs: float, nbytes: int) -> None:
        saves.idle.set()

    def failed(error: BaseException) -> None:
        saves.idle.set()

    manager = CheckpointManager(folder, Retention(1))
    with BackgroundSaver(manager, written, failed) as saver:
        saves = Saves(subject, folder, saver)
        yield saves
