"""LocalCopies: open copies of shards, from which the readers of this process read, those to come included."""

from __future__ import annotations

import os
import threading
import weakref

from hpc_train.data.hdf5.reader import Reader


class LocalCopies:
    """Copies by the number of their shard. Threads may share it; `close` ends it, once no reader will be attached."""

    def __init__(self) -> None:
        self._copies: dict[int, int] = {}
        self._readers: weakref.WeakSet[Reader] = weakref.WeakSet()
        self._lock = threading.Lock()

    def attach(self, reader: Reader) -> None:
        """Has `reader`, of these shards, read from the copies, now and later."""
        with self._lock:
            self._readers.add(reader)
            for shard, descriptor in self._copies.items():
                reader.use_copy(shard, descriptor)

    def add(self, shard: int, descriptor: int) -> None:
        """Takes a copy over."""
        with self._lock:
            self._copies[shard] = descriptor
            for reader in self._readers:
                reader.use_copy(shard, descriptor)

    def close(self) -> None:
        """Closes the copies; readers keep what they have of them."""
        with self._lock:
            for descriptor in self._copies.values():
                os.close(descriptor)
            self._copies = {}
