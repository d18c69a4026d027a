"""ContiguousColumn: reads a column whose rows lie one after the other in its files."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from hpc_train.data.hdf5.buffer_pool import aligned_bytes
from hpc_train.data.hdf5.data_file import DataFile
from hpc_train.data.hdf5.mapped_table import MappedTable, Part
from hpc_train.data.ragged import runs_of

MAX_MAPPED_ROW_BYTES = 1 << 20
"""Larger rows are read by a system call each, which costs nothing beside the copy."""
SLOW_SECS_PER_BYTE, SLOW_SECS_PER_ROW = 1e-9, 20e-6
"""What takes longer than both came from a disk or a network, not from memory."""
SCAN_BYTES = 1 << 20
PROBE_BYTES = 4 << 10
MAX_HELD_BYTES = 32 << 20
"""The smallest columns, up to so much together, are kept in memory: their rows would cost as much as large ones."""
MAX_TABLES = 3
"""After so many failures no memory map is tried again."""


class ContiguousColumn:
    """Rows of `row_bytes` bytes in parts of files, by part and number. Threads may share it.

    Columns of a few megabytes, such as labels, are read once and kept. Rows of others are copied from a memory map.
    Where that fails, or where rows are large, they are read with preadv. As long as reads are slow, runs of rows are
    read with preadv, and the kernel is advised ahead of single ones.

    Attributes:
        is_held: Whether the column is kept in memory as a whole.
    """

    def __init__(self, parts: Sequence[Part], row_bytes: int, held: bool, random: bool) -> None:
        """Opens nothing yet.

        Args:
            held: The column is small enough to be kept in memory.
            random: Rows will be asked for at random, from more data than memory holds.
        """
        self._parts, self._row_bytes, self._random, self.is_held = parts, row_bytes, random, held
        self._held = _HeldColumn(parts, row_bytes) if held else None
        self._lock = threading.Lock()
        self._table = self._new_table()
        self._old_tables: list[MappedTable] = []
        self._slow = False
        self._scratch = threading.local()

    def close(self) -> None:
        """Ends the use of memory maps."""
        for table in [*self._old_tables, *([self._table] if self._table else [])]:
            table.close()
        self._table, self._old_tables = None, []

    def map_anew(self, file: DataFile) -> None:
        """Takes note that `file` reads from a copy now."""
        table = self._table
        if table is not None:
            with suppress(OSError):  # what is mapped is as good
                table.map_anew(file)

    def gather(self, part: np.ndarray, local: np.ndarray, out: np.ndarray) -> None:
        """Fills `out`, uint8 `[k, row_bytes]`, with rows `local` of `part`, int64 `[k]` both.

        Raises:
            OSError: See DataFile.read_into.
        """
        if self._held:
            self._held.gather(part, local, out)
            return
        table, start = self._table, time.perf_counter()
        if table is not None and (table.all_fit or table.fits[part].all()):
            with suppress(OSError):  # reading the file itself reports what is wrong
                if table.gather(part, local, out):
                    self._note(time.perf_counter() - start, len(out))
                    return
            self._replace(table)
        for number, row, target in zip(part.tolist(), local.tolist(), out, strict=True):
            place = self._parts[number]
            place.file.read_into(place.offset + row * self._row_bytes, target)

    def run(self, part: int, first: int, out: np.ndarray) -> None:
        """Fills `out` with the rows from `first` on of one part. As `gather`."""
        if self._held:
            self._held.gather(np.full(len(out), part), np.arange(first, first + len(out)), out)
            return
        table, start = self._table, time.perf_counter()
        if not self._slow and table is not None and table.fits[part]:
            with suppress(OSError):
                if table.copy(part, first, out):
                    self._note(time.perf_counter() - start, len(out))
                    return
            self._replace(table)
        place = self._parts[part]
        place.file.read_into(place.offset + first * self._row_bytes, out)
        self._note(time.perf_counter() - start, len(out))

    def runs(self, part: np.ndarray, first: np.ndarray, lengths: np.ndarray, out: np.ndarray) -> None:
        """Fills `out`, end to end, with runs of `lengths` rows from `first` on, int64 `[k]` each. As `gather`."""
        if self._held:
            self._held.gather(np.repeat(part, lengths), runs_of(first, lengths), out)
            return
        table, start = self._table, time.perf_counter()
        if table is not None and (table.all_fit or table.fits[part].all()):
            with suppress(OSError):
                if table.copy_runs(part, first, lengths, out):
                    self._note(time.perf_counter() - start, len(out))
                    return
            self._replace(table)
        place = 0
        for number, row, count in zip(part.tolist(), first.tolist(), lengths.tolist(), strict=True):
            file, offset = self._parts[number].file, self._parts[number].offset
            file.read_into(offset + row * self._row_bytes, out[place : place + count])
            place += count

    def expect(self, part: np.ndarray, local: np.ndarray) -> None:
        """Announces that these rows will be read next."""
        if self.is_slow:
            for number, row in zip(part.tolist(), local.tolist(), strict=True):
                place = self._parts[number]
                place.file.expect(place.offset + row * self._row_bytes, self._row_bytes)

    @property
    def is_slow(self) -> bool:
        """Whether rows come from a disk or a network, as far as the last read has shown."""
        return self._slow and not self._held

    def fetch(self, runs: Sequence[tuple[int, int, int]]) -> None:
        """Makes sure that runs of rows, (part, first, end), are in the kernel's cache.

        A run is taken to be there where its beginning comes as fast as from memory.

        Raises:
            OSError: As `gather`.
        """
        if not hasattr(self._scratch, "memory"):
            self._scratch.memory = aligned_bytes(SCAN_BYTES)
        for part, first, end in runs:
            file, offset = self._parts[part].file, self._parts[part].offset
            position, stop = offset + first * self._row_bytes, offset + end * self._row_bytes
            start = time.perf_counter()
            file.read_into(position, self._scratch.memory[: min(PROBE_BYTES, stop - position)])
            if time.perf_counter() - start > SLOW_SECS_PER_ROW:
                for begin in range(position, stop, SCAN_BYTES):
                    file.read_into(begin, self._scratch.memory[: min(SCAN_BYTES, stop - begin)])

    def _new_table(self) -> MappedTable | None:
        if self._row_bytes > MAX_MAPPED_ROW_BYTES or self._held:
            return None
        try:
            return MappedTable(self._parts, self._row_bytes, self._random)
        except OSError:
            return None  # no room in the addresses

    def _replace(self, failed: MappedTable) -> None:
        with self._lock:
            if self._table is failed:
                self._old_tables.append(failed)
                self._table = self._new_table() if len(self._old_tables) < MAX_TABLES else None

    def _note(self, secs: float, rows: int) -> None:
        self._slow = secs > max(SLOW_SECS_PER_ROW * rows, SLOW_SECS_PER_BYTE * rows * self._row_bytes)


class _HeldColumn:
    """A small column, read part by part when a part's rows are first asked for."""

    def __init__(self, parts: Sequence[Part], row_bytes: int) -> None:
        self._parts = parts
        counts = [part.rows for part in parts]
        self._firsts: np.ndarray = np.cumsum([0, *counts[:-1]])
        self._rows = np.empty((sum(counts), row_bytes), np.uint8)
        self._read: np.ndarray = np.zeros(len(parts), bool)
        self._lock = threading.Lock()

    def gather(self, part: np.ndarray, local: np.ndarray, out: np.ndarray) -> None:
        if not self._read[part].all():
            with self._lock:
                for number in np.unique(part[~self._read[part]]).tolist():
                    place, first = self._parts[number], int(self._firsts[number])
                    place.file.read_into(place.offset, self._rows[first : first + place.rows])
                    self._read[number] = True
        np.take(self._rows, self._firsts[part] + local, axis=0, out=out, mode="clip")
