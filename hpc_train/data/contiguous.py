"""ContiguousColumn: reads a column whose rows lie one after the other in its files."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np

from hpc_train.data.buffers import aligned_bytes
from hpc_train.data.table import MappedTable, Part

MAX_MAPPED_ROW_BYTES = 1 << 20
"""Larger rows are read by a system call each, which costs nothing beside the copy."""
SLOW_SECS_PER_BYTE, SLOW_SECS_PER_ROW = 1e-9, 20e-6
"""What takes longer than both came from a disk or a network, not from memory."""
SCAN_BYTES = 1 << 20
PROBE_BYTES = 64 << 10


class ContiguousColumn:
    """Rows of `row_bytes` bytes in parts of files, by part and number. Threads may share it.

    Rows are copied from a memory map. Where that fails, or where rows are large, they are read with preadv. As long as
    reads are slow, runs of rows are read with preadv, and the kernel is told ahead of single ones.
    """

    def __init__(self, parts: Sequence[Part], row_bytes: int, random: bool) -> None:
        """`random`: rows will be asked for at random, from more data than memory holds."""
        self._parts, self._row_bytes, self._random = parts, row_bytes, random
        self._table = self._new_table()
        self._old_tables: list[MappedTable] = []
        self._slow = False
        self._scratch = threading.local()

    def close(self) -> None:
        """Ends the use of memory maps."""
        for table in [*self._old_tables, *([self._table] if self._table else [])]:
            table.close()
        self._table, self._old_tables = None, []

    def gather(self, part: np.ndarray, local: np.ndarray, out: np.ndarray) -> None:
        """Fills `out`, uint8 `[k, row_bytes]`, with rows `local` of `part`, int64 `[k]` both.

        Raises:
            OSError: See DataFile.read_into.
        """
        table, start = self._table, time.perf_counter()
        if table is not None and table.fits[part].all():
            try:
                if table.gather(part, local, out):
                    self._note(time.perf_counter() - start, len(out))
                    return
            except OSError:
                pass  # reading the file itself tells what is wrong
            self._replace(table)
        for number, row, target in zip(part.tolist(), local.tolist(), out, strict=True):
            place = self._parts[number]
            place.file.read_into(place.offset + row * self._row_bytes, target)

    def run(self, part: int, first: int, out: np.ndarray) -> None:
        """Fills `out` with the rows from `first` on of one part. As `gather`."""
        table, start = self._table, time.perf_counter()
        if not self._slow and table is not None and table.fits[part]:
            try:
                if table.copy(part, first, out):
                    self._note(time.perf_counter() - start, len(out))
                    return
            except OSError:
                pass
            self._replace(table)
        place = self._parts[part]
        place.file.read_into(place.offset + first * self._row_bytes, out)
        self._note(time.perf_counter() - start, len(out))

    def expect(self, part: np.ndarray, local: np.ndarray) -> None:
        """Tells that these rows will be read next."""
        if self._slow and len(part):
            for number, row in zip(part.tolist(), local.tolist(), strict=True):
                place = self._parts[number]
                place.file.expect(place.offset + row * self._row_bytes, self._row_bytes)

    def fetch(self, part: int, first: int, end: int) -> None:
        """Makes sure that rows `first`…`end - 1` of a part are in the kernel's cache.

        They are taken to be there where their beginning comes as fast as from memory.

        Raises:
            OSError: As `gather`.
        """
        if not hasattr(self._scratch, "memory"):
            self._scratch.memory = aligned_bytes(SCAN_BYTES)
        file, offset = self._parts[part].file, self._parts[part].offset
        position, stop = offset + first * self._row_bytes, offset + end * self._row_bytes
        size = PROBE_BYTES
        while position < stop:
            count = min(size, stop - position)
            start = time.perf_counter()
            file.read_into(position, self._scratch.memory[:count])
            secs = time.perf_counter() - start
            if size == PROBE_BYTES and secs < max(SLOW_SECS_PER_ROW, SLOW_SECS_PER_BYTE * count):
                return
            position, size = position + count, SCAN_BYTES

    def _new_table(self) -> MappedTable | None:
        if self._row_bytes > MAX_MAPPED_ROW_BYTES:
            return None
        try:
            return MappedTable(self._parts, self._row_bytes, self._random)
        except OSError:
            return None  # no room in the addresses

    def _replace(self, failed: MappedTable) -> None:
        if self._table is failed:
            self._old_tables.append(failed)
            self._table = self._new_table()

    def _note(self, secs: float, rows: int) -> None:
        self._slow = secs > max(SLOW_SECS_PER_ROW * rows, SLOW_SECS_PER_BYTE * rows * self._row_bytes)
