"""Where the records of a CSV file begin, found piece by piece in any order. Pure.

A line break ends a record unless it is within quotes, which only the file's beginning can tell. So of each piece both
is found: what holds if it begins outside of quotes, and what holds if it begins within. An even number of quotes
before a piece means outside, since a quote within quotes is doubled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

QUOTE, BREAK, RETURN = 0x22, 0x0A, 0x0D
NONE = -1
"""No such place."""


@dataclass(frozen=True)
class Piece:
    """What is found in a piece of a file; places count from its first byte.

    Attributes:
        quotes: How many it has.
        ends: The first line break that ends a record, if the piece begins outside of quotes, and if within; NONE:
            there is none.
        strays: The first quote that opens in the middle of a field, in the same two cases.
    """

    quotes: int
    ends: tuple[int, int]
    strays: tuple[int, int]

    def to_array(self) -> np.ndarray:
        """As int64 `[5]`."""
        return np.array([self.quotes, *self.ends, *self.strays], np.int64)

    @classmethod
    def of_array(cls, row: Sequence[int]) -> Piece:
        quotes, *places = (int(value) for value in row)
        return cls(quotes, (places[0], places[1]), (places[2], places[3]))


def inspect(text: bytes, before: int | None, separator: int) -> Piece:
    """What a piece of a file has in it.

    Args:
        before: The byte before it; None: it is the file's beginning.
        separator: The byte between two fields.
    """
    letters = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(letters == QUOTE)
    if not len(quotes):
        end = text.find(b"\n")
        return Piece(0, (end, NONE), (NONE, NONE))
    breaks = np.flatnonzero(letters == BREAK)
    within = np.searchsorted(quotes, breaks) % 2 == 1
    previous = letters[quotes - 1]
    if quotes[0] == 0:
        previous[0] = BREAK if before is None else before
    begins_field = np.isin(previous, (separator, BREAK, RETURN, QUOTE))
    return Piece(
        len(quotes),
        (_first(breaks, ~within), _first(breaks, within)),
        (_first(quotes[::2], ~begins_field[::2]), _first(quotes[1::2], ~begins_field[1::2])),
    )


def _first(places: np.ndarray, chosen: np.ndarray) -> int:
    found = np.flatnonzero(chosen)
    return int(places[found[0]]) if len(found) else NONE


@dataclass(frozen=True)
class Cut:
    """A file as blocks of whole records.

    Attributes:
        begins: Where each block begins, ascending, and where the last one ends: `[blocks + 1]`.
        stray: The first quote that opens in the middle of a field; None: there is none.
        is_open: Whether the file ends within quotes.
    """

    begins: tuple[int, ...]
    stray: int | None
    is_open: bool


def cut(pieces: Sequence[Piece], size: int, piece_bytes: int, first: int) -> Cut:
    """Where blocks of records begin: one for each piece in which a record ends.

    Args:
        pieces: Of the whole file, in order, of `piece_bytes` each, but the last one.
        size: Of the file. first: where its first record begins, behind the line of names.
    """
    parity, begins, stray = 0, [first], None
    for number, piece in enumerate(pieces):
        start = number * piece_bytes
        if stray is None and piece.strays[parity] != NONE:
            stray = start + piece.strays[parity]
        begin = start + piece.ends[parity] + 1
        if piece.ends[parity] != NONE and begins[-1] < begin < size and number:
            begins.append(begin)
        parity ^= piece.quotes % 2
    return Cut((*begins, size) if first < size else (size,), stray, bool(parity))


def record_starts(text: bytes, empty_too: bool = False) -> np.ndarray:
    """Where each record of `text`, which begins with one, begins; int64 `[n]`. Empty lines are none, or `empty_too`."""
    if not text:
        return np.zeros(0, np.int64)
    letters = np.frombuffer(text, np.uint8)
    breaks = np.flatnonzero(letters == BREAK)
    quotes = np.flatnonzero(letters == QUOTE)
    breaks = breaks[np.searchsorted(quotes, breaks) % 2 == 0]
    starts = np.append(0, breaks + 1)
    ends = np.append(breaks, len(letters))
    ends = np.where((ends > starts) & (letters[np.maximum(ends - 1, 0)] == RETURN), ends - 1, ends)
    return starts[starts < len(letters)] if empty_too else starts[ends > starts]
