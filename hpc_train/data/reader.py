"""Reader: rows of a ShardSet, by number, as numpy arrays."""

from __future__ import annotations

from collections import OrderedDict
from types import TracebackType

import h5py
import numpy as np

from hpc_train.data.shards import ShardSet, open_file

MAX_OPEN_FILES = 128


class Reader:
    """Reads rows of all columns of `shards`. A context manager: leaving it closes the files."""

    def __init__(self, shards: ShardSet) -> None:
        self._shards = shards
        self._files: OrderedDict[int, h5py.File] = OrderedDict()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def read(self, rows: np.ndarray) -> list[np.ndarray]:
        """The rows numbered `rows` (int64 `[B]`, each at most once), one array `[B, ...]` a column, in that order.

        Arrays have the stored dtype in this machine's byte order.

        Raises:
            OSError: A file cannot be read; the message has its path.
        """
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        out = [np.empty((len(rows), *column.shape), column.dtype) for column in self._shards.columns]
        first_of = np.searchsorted(self._shards.starts, ascending, side="right") - 1
        for shard in np.unique(first_of):
            here = np.nonzero(first_of == shard)[0]
            local = ascending[here] - self._shards.starts[shard]
            contiguous = local[-1] - local[0] + 1 == len(local)
            selection = slice(int(local[0]), int(local[-1]) + 1) if contiguous else local
            try:
                file = self._file(int(shard))
                for array, column in zip(out, self._shards.columns, strict=True):
                    array[order[here]] = file[column.name][selection]
            except (OSError, KeyError, ValueError) as error:
                raise OSError(f"{self._shards.paths[shard]}: cannot be read: {error}") from error
        return out

    def _file(self, shard: int) -> h5py.File:
        file = self._files.pop(shard, None) or open_file(self._shards.paths[shard])
        self._files[shard] = file
        if len(self._files) > MAX_OPEN_FILES:
            self._files.popitem(last=False)[1].close()
        return file
