"""WindowsAhead: block mode's next window is read while the present one is used."""

from __future__ import annotations

import itertools
import math
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future

from hpc_train.data.hdf5.reader import Reader
from hpc_train.data.sampling.sampler import Sampler, Window

LEAD = 0.1
"""How far the next window's reading runs ahead of the use of the present one, as a part of it."""


class WindowsAhead:
    """Reads block mode's windows one after the other: the next one in pace with the use of the present one.

    Args:
        end: No step from here on will be read; None: there is no end.
        in_flight: Steps that may be under way at the same time.
    """

    def __init__(self, reader: Reader, sampler: Sampler, end: int | None, in_flight: int) -> None:
        self._reader, self._sampler = reader, sampler
        self._end = None if end is None else sampler.place_of(end)
        self._slack = in_flight * sampler.batch_size
        self._windows: deque[_OpenWindow] = deque()
        self._lock = threading.Lock()

    def prepare(self, first: int, stop: int) -> None:
        """Returns when all windows are read from which the rows of steps `first`…`stop - 1` come.

        Raises:
            OSError: What reading raised.
        """
        place, end = self._sampler.place_of(first), self._sampler.place_of(stop)
        with self._lock:
            if not self._windows or place < self._windows[0].window.start:
                self._windows = deque([_OpenWindow(self._reader, self._sampler.window(place))])
            while self._windows[-1].window.stop < end:
                self._open_next()
            needed = [w for w in self._windows if w.window.start < end and w.window.stop > place]
            for window in needed:
                window.begin(1.0)
            present = needed[-1].window
            if self._windows[-1] is needed[-1] and (self._end is None or present.stop < self._end):
                self._open_next()
            if self._windows[-1] is not needed[-1]:
                used = (end - present.start) / (present.stop - present.start)
                self._windows[-1].begin(used + LEAD)
            while self._windows[0].window.stop + self._slack <= place:
                self._reader.drop(self._windows.popleft().window.rows, self._windows[0].window.rows)
        for window in needed:
            window.wait()

    def _open_next(self) -> None:
        self._windows.append(_OpenWindow(self._reader, self._sampler.window(self._windows[-1].window.stop)))


class _OpenWindow:
    def __init__(self, reader: Reader, window: Window) -> None:
        self.window = window
        self._reader = reader
        self._begun = 0
        self._left: Iterator[tuple[int, int]] = iter(window.rows)
        self._futures: list[Future[None]] = []
        self._ready = False

    def begin(self, part: float) -> None:
        """Begins to read, so that so large a part of the window's runs is under way or done."""
        count = math.ceil(min(1.0, part) * len(self.window.rows)) - self._begun
        if count > 0:
            self._futures += self._reader.begin(itertools.islice(self._left, count))
            self._begun += count

    def wait(self) -> None:
        """Waits for all that has been begun."""
        if not self._ready:
            for future in tuple(self._futures):
                future.result()
            self._ready = self._begun == len(self.window.rows)
