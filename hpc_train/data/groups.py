"""GroupReader: the batches of several steps are read at once, ahead of their use, so that calls cost little."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import numpy as np

Group = tuple[list[np.ndarray], list[int]]
"""The arrays of a group's steps, one after the other, and where each step's rows begin."""


class GroupReader:
    """Batches by step; each `steps` steps from `first` on are one group. A context manager.

    Args:
        end: No step from here on exists; None: there is no end.
        rows_at: Rows of a step, int64.
        read: Reads rows for the steps from `first` to `end` (its arguments, before the rows), one array a column.
        threads: So many groups are read side by side, the one that is asked for and those that follow it.
    """

    def __init__(
        self,
        first: int,
        end: int | None,
        steps: int,
        rows_at: Callable[[int], np.ndarray],
        read: Callable[[int, int, np.ndarray], list[np.ndarray]],
        threads: int,
    ) -> None:
        self._first, self._end, self._steps, self._threads = first, end, steps, threads
        self._rows_at, self._read = rows_at, read
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="hpc_train-batch")
        self._groups: dict[int, Future[Group]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> GroupReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown(cancel_futures=True)

    def read(self, step: int) -> list[np.ndarray]:
        """The batch of `step`: views of its group's arrays, one a column.

        Raises:
            Whatever reading raised.
        """
        number, place = divmod(step - self._first, self._steps)
        with self._lock:
            for old in [k for k in self._groups if not number <= k <= number + self._threads]:
                del self._groups[old]
            for k in range(number, number + self._threads + 1):
                start = self._first + k * self._steps
                if k not in self._groups and (self._end is None or start < self._end):
                    self._groups[k] = self._executor.submit(self._read_group, start)
            future = self._groups[number]
        try:
            arrays, bounds = future.result()
        except BaseException:
            with self._lock:
                self._groups.pop(number, None)
            raise
        return [array[bounds[place] : bounds[place + 1]] for array in arrays]

    def _read_group(self, first: int) -> Group:
        end = first + self._steps if self._end is None else min(first + self._steps, self._end)
        rows = [self._rows_at(step) for step in range(first, end)]
        bounds = [0, *np.cumsum([len(part) for part in rows]).tolist()]
        return self._read(first, end, rows[0] if len(rows) == 1 else np.concatenate(rows)), bounds
