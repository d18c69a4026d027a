"""MappedTable: a contiguous column of many files as one array in memory: one call gathers rows of all of them."""

from __future__ import annotations

import errno
import math
import mmap
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpc_train.data.hdf5.data_file import DataFile
from hpc_train.data.hdf5.mmap_region import Region

TOUCHED_ROW_BYTES, TOUCHED_LINES, LINE_BYTES = 2048, 2, 64
"""Rows of 3 KB are gathered a fifth faster for it; shorter ones are not."""
_WORD = 8

HUGE_PAGE_BYTES = 2 << 20
MAX_GAP_BYTES = 1 << 30
"""Addresses that may be left unused between two parts."""


@dataclass(frozen=True)
class Part:
    """Where a file's rows begin, and how many there are."""

    file: DataFile
    offset: int
    rows: int


class MappedTable:
    """Rows of `row_bytes` bytes in `parts` of files, mapped so that all lie at multiples of a row from the first.

    A file is mapped when one of its rows is first asked for. Threads may share it.

    Attributes:
        fits: bool `[parts]`: whether the part's rows can be laid out so. They can where offsets in files differ by
            multiples of what pages and rows have in common, as those of aligned datasets do. `all_fit`: all can.
    """

    def __init__(self, parts: Sequence[Part], row_bytes: int, random: bool) -> None:
        """Raises OSError where there is no room for so much in the process's addresses."""
        self._parts, self._random = parts, random
        places, firsts, total = layout([part.offset for part in parts], [part.rows for part in parts], row_bytes)
        self._places = places
        self.fits: np.ndarray = np.array([place is not None for place in places])
        self.all_fit = bool(self.fits.all())
        self._firsts = np.array(firsts, np.int64)
        self._row_bytes = row_bytes
        self._region = Region(total)
        start = (places[0] or 0) + parts[0].offset % mmap.PAGESIZE
        count = (total - start) // row_bytes
        self._rows: np.ndarray = self._region.data[start : start + count * row_bytes].reshape(count, row_bytes)
        long = row_bytes >= TOUCHED_ROW_BYTES and row_bytes % _WORD == 0 and start % _WORD == 0
        self._words: np.ndarray | None = self._rows.reshape(-1).view(np.uint64) if long else None
        self._mapped: np.ndarray = np.zeros(len(parts), bool)
        self._all_mapped = False
        self._lock = threading.Lock()

    def gather(self, part: np.ndarray, local: np.ndarray, out: np.ndarray) -> bool:
        """Copies rows `local` of parts `part` (int64 `[k]` both; parts that fit) into `out`, uint8 `[k, row_bytes]`.

        Returns:
            Whether `out` can be relied on. Once not, the table is of no further use.

        Raises:
            OSError: A file cannot be opened or mapped, or is too short.
        """
        self._map_missing(part)
        index = self._firsts[part] + local
        if self._words is not None:
            # Touching the first lines of all rows lets the processor fetch many rows at the same time.
            first = index * (self._row_bytes // _WORD)
            for line in range(TOUCHED_LINES):
                np.take(self._words, first + line * (LINE_BYTES // _WORD), mode="clip")
        np.take(self._rows, index, axis=0, out=out, mode="clip")
        return not self._region.failed

    def copy(self, part: int, first: int, out: np.ndarray) -> bool:
        """Copies the rows of one part from `first` on into `out`. As `gather`."""
        if not self._mapped[part]:
            self._map_missing(np.array([part]))
        start = int(self._firsts[part]) + first
        np.copyto(out, self._rows[start : start + len(out)])
        return not self._region.failed

    def copy_runs(self, part: np.ndarray, first: np.ndarray, lengths: np.ndarray, out: np.ndarray) -> bool:
        """Copies runs of `lengths` rows from `first` on (int64 `[k]` each) to `out`, end to end. As `gather`."""
        self._map_missing(part)
        starts = ((self._firsts[part] + first) * self._row_bytes).tolist()
        source, target, place = self._rows.reshape(-1).data, out.reshape(-1).data, 0
        for start, size in zip(starts, (lengths * self._row_bytes).tolist(), strict=True):
            end = place + size
            target[place:end] = source[start : start + size]
            place = end
        return not self._region.failed

    def map_anew(self, file: DataFile) -> None:
        """Maps what is mapped of `file` again, now that it reads from a copy; reads under way find the same bytes.

        Raises:
            OSError: It cannot be mapped.
        """
        with self._lock:
            for number, part in enumerate(self._parts):
                if part.file is file and self._mapped[number]:
                    self._map(number)

    def close(self) -> None:
        """Unmaps all files."""
        del self._rows, self._words
        self._region.close()

    def _map_missing(self, part: np.ndarray) -> None:
        if self._all_mapped or self._mapped[part].all():
            return
        with self._lock:
            for number in np.unique(part[~self._mapped[part]]).tolist():
                self._map(number)
                self._mapped[number] = True
            self._all_mapped = bool(self._mapped.all())

    def _map(self, number: int) -> None:
        place, own = self._places[number], self._parts[number]
        assert place is not None, "only parts that fit are asked for"
        page = own.offset // mmap.PAGESIZE * mmap.PAGESIZE
        length = own.offset - page + own.rows * self._row_bytes
        with own.file.opened() as descriptor:
            if os.fstat(descriptor).st_size < page + length:
                raise OSError(errno.ENODATA, "too short", own.file.path)
            self._region.put(place, descriptor, page, length, self._random)


def layout(offsets: Sequence[int], rows: Sequence[int], row_bytes: int) -> tuple[list[int | None], list[int], int]:
    """Where in a region to map parts of files, so that their rows lie at multiples of `row_bytes` from the first. Pure.

    Where the addresses allow it, parts lie so that the kernel can map them by huge pages, too: random rows then cost
    half as much.

    Args:
        offsets: Where the rows of each part begin in their file; files are mapped by whole pages.

    Returns:
        For each part the place of its first page in the region (None: there is none such), the number of its first
        row counted from the first part's, and the size of the region in bytes. The region begins at a huge page.
    """
    page = mmap.PAGESIZE
    common = math.gcd(page, row_bytes)
    period = row_bytes // common
    inverse = pow(page // common, -1, period) if period > 1 else 0
    huge = HUGE_PAGE_BYTES // page
    if math.gcd(period, huge) > 1 or period * huge * page > MAX_GAP_BYTES:
        huge = 1
    unhuge = pow(huge, -1, period) if period > 1 else 0
    places: list[int | None] = []
    firsts: list[int] = []
    start = end = 0
    for number, (offset, count) in enumerate(zip(offsets, rows, strict=True)):
        into, file_page = offset % page, offset // page
        if number == 0:
            k = file_page % huge
            start = k * page + into
        quotient, rest = divmod(start - into, common)
        if rest:
            places.append(None)
            firsts.append(0)
            continue
        if number:
            # k = quotient * inverse modulo period, and k = file_page modulo huge: the least such from `end` on.
            least = -(-end // page)
            aligned = least + (file_page - least) % huge
            k = aligned + huge * ((quotient * inverse - aligned) * unhuge % period)
        places.append(k * page)
        firsts.append((k * page + into - start) // row_bytes)
        end = k * page + into + count * row_bytes
    return places, firsts, -(-end // page) * page
