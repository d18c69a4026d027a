"""GroupReader: the batches of several steps are read at once, ahead of their use, so that calls cost little."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

Group = tuple[list[np.ndarray], list[int]]
"""The arrays of a group's steps, one after the other, and where each step's rows begin."""


class GroupReader:
    """Batches by step; each `steps` steps from `first` on are one group. A context manager.

    Args:
        end: No step from here on exists; None: there is no end.
        rows: Of steps from the first of its arguments to before the second: their rows (int64, one batch after the
            other), and where each batch begins and the last one ends.
        read: Reads such rows for such steps, one array a column.
        threads: So many groups are read side by side, ahead of their use. One reads when it is asked.
    """

    def __init__(
        self,
        first: int,
        end: int | None,
        steps: int,
        rows: Callable[[int, int], tuple[np.ndarray, list[int]]],
        read: Callable[[int, int, np.ndarray], list[np.ndarray]],
        threads: int,
    ) -> None:
        self._first, self._end, self._steps, self._threads = first, end, steps, threads
        self._rows, self._read = rows, read
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="hpc_train-batch")
        self._groups: dict[int, Future[Group]] = {}
        self._present: tuple[int, Group] = (-1, ([], []))
        self._lock = threading.Lock()

    def __enter__(self) -> GroupReader:
        return self

    def __exit__(self, *raised: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def group(self, number: int) -> list[np.ndarray]:
        """The batches of group `number`, one after the other: one array a column. As `read`."""
        return self._wait(number)[0]

    @property
    def ahead(self) -> int:
        """Groups that are read side by side."""
        return self._threads

    @property
    def steps(self) -> int:
        """Steps of a group; the last one may have fewer."""
        return self._steps

    def read(self, step: int) -> list[np.ndarray]:
        """The batch of `step`: views of its group's arrays, one a column.

        Raises:
            Whatever reading raised.
        """
        number, place = divmod(step - self._first, self._steps)
        present, (arrays, bounds) = self._present
        if present != number:
            arrays, bounds = self._wait(number)
            self._present = number, (arrays, bounds)
        return [array[bounds[place] : bounds[place + 1]] for array in arrays]

    def _wait(self, number: int) -> Group:
        if self._threads == 1:
            return self._read_group(self._first + number * self._steps)
        with self._lock:
            for old in [k for k in self._groups if not number <= k <= number + self._threads]:
                del self._groups[old]
            for k in range(number, number + self._threads + 1):
                start = self._first + k * self._steps
                if k not in self._groups and (self._end is None or start < self._end):
                    self._groups[k] = self._executor.submit(self._read_group, start)
            future = self._groups[number]
        try:
            return future.result()
        except BaseException:
            with self._lock:
                self._groups.pop(number, None)
            raise

    def _read_group(self, first: int) -> Group:
        end = first + self._steps if self._end is None else min(first + self._steps, self._end)
        rows, bounds = self._rows(first, end)
        return self._read(first, end, rows), bounds
