"""GroupReader: the batches of several steps are read at once, ahead of their use, so that calls cost little."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from hpc_train.data.hdf5.reader import Rows


class GroupReader:
    """Batches in groups, each of `steps` steps from `first` on; the last one may have fewer. A context manager.

    A group is read at once, so that calls cost little.

    Args:
        rows: Of steps from the first of its arguments to before the second: their rows, int64, one batch after the
            other.
        read: Reads such rows for such steps, one array a column.

    Attributes:
        end: No step from here on exists; None: there is no end.
        ahead: So many groups are read side by side, ahead of their use. One reads when it is asked.
    """

    def __init__(
        self,
        first: int,
        end: int | None,
        steps: int,
        rows: Callable[[int, int], np.ndarray],
        read: Callable[[int, int, np.ndarray], list[Rows]],
        ahead: int,
    ) -> None:
        self.first, self.end, self.steps, self.ahead = first, end, steps, ahead
        self._rows, self._read = rows, read
        self._executor = ThreadPoolExecutor(ahead, thread_name_prefix="hpc_train-batch")
        self._groups: dict[int, Future[list[Rows]]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> GroupReader:
        return self

    def __exit__(self, *raised: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def steps_of(self, number: int) -> range:
        first = self.first + number * self.steps
        return range(first, first + self.steps if self.end is None else min(first + self.steps, self.end))

    def group(self, number: int) -> list[Rows]:
        """The batches of group `number`, one after the other: one array a column.

        Raises:
            Whatever reading raised.
        """
        if self.ahead == 1:
            return self._read_group(number)
        with self._lock:
            for old in [k for k in self._groups if not number <= k <= number + self.ahead]:
                del self._groups[old]
            for k in range(number, number + self.ahead + 1):
                if k not in self._groups and self.steps_of(k):
                    self._groups[k] = self._executor.submit(self._read_group, k)
            future = self._groups[number]
        try:
            return future.result()
        except BaseException:
            with self._lock:
                self._groups.pop(number, None)
            raise

    def _read_group(self, number: int) -> list[Rows]:
        steps = self.steps_of(number)
        return self._read(steps.start, steps.stop, self._rows(steps.start, steps.stop))
