"""Draft: the structure of a file as HDF5 writes it, kept in memory.

HDF5 does not survive errors of its own writes: closing a file on a full disk fails, keeps it open for ever, and ends
the process at times. What it writes here cannot fail; write_pieces then puts it on the disk.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

_PAGE_BYTES = 4096


class Draft(io.RawIOBase):
    """A file object that keeps the pages that are written; the rest of it reads as zeros, and costs no memory."""

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}
        self._at, self.size = 0, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self.size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, out: memoryview) -> int:  # type: ignore[override]
        count = max(0, min(len(out), self.size - self._at))
        for page, start, place, length in self._parts(count):
            found = self._pages.get(page, bytes(_PAGE_BYTES))
            out[place : place + length] = found[start : start + length]
        self._at += count
        return count

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        for page, start, place, length in self._parts(len(data)):
            into = self._pages.setdefault(page, bytearray(_PAGE_BYTES))
            into[start : start + length] = data[place : place + length]
        self._at += len(data)
        self.size = max(self.size, self._at)
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        self.size = self._at if size is None else size
        return self.size

    def flush(self) -> None:
        pass

    def pieces(self) -> list[tuple[int, memoryview]]:
        """Offset and bytes of each page that was written, in order; what else lies in them is zero."""
        offsets = sorted(page * _PAGE_BYTES for page in self._pages if page * _PAGE_BYTES < self.size)
        return [(o, memoryview(self._pages[o // _PAGE_BYTES])[: min(_PAGE_BYTES, self.size - o)]) for o in offsets]

    def _parts(self, count: int) -> Iterator[tuple[int, int, int, int]]:
        """Of `count` bytes from here on: page, place in it, place among the bytes, and length."""
        done = 0
        while done < count:
            page, start = divmod(self._at + done, _PAGE_BYTES)
            length = min(count - done, _PAGE_BYTES - start)
            yield page, start, done, length
            done += length
