"""Text of others' (names, errors, lines of logs) made fit to be shown: nothing in it acts on a terminal. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

LISTED = 100
"""How many names a message lists at most; files of others may have any number."""
NAMED = 5
"""How many files or checkpoints a message names that have one thing in common."""
DIFFERENT = 10
"""How many lines messages about files have that have different things."""
LINES = "\n\t"
"""What of these a text of several lines may have."""
_ACTING = re.compile(r"[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, those that turn the direction of writing, separators of lines, and halves of characters."""
_COLOUR = re.compile(r"(\x1b\[[0-9;:]*m)")


def visible(text: str, keep: str = "", colours: bool = False) -> str:
    r"""`text` with each character that a terminal acts upon as an escape such as \x1b, so that it stays one line.

    Args:
        keep: Characters that stay.
        colours: Sequences that choose colours and type stay.
    """
    if not _ACTING.search(text):
        return text
    if colours:
        parts = _COLOUR.split(text)
        return "".join(part if number % 2 else visible(part, keep) for number, part in enumerate(parts))
    return text.translate(_escapes(keep))


def listed(items: Iterable[str], separator: str = ", ", most: int = LISTED) -> str:
    """`items` one after the other, the first `most` and how many more there are, or "none"."""
    items = list(items)
    shown = separator.join(items[:most])
    return f"{shown} and {len(items) - most:,} more" if len(items) > most else shown or "none"


def by_mistake(found: Iterable[tuple[str, str]], most: int = NAMED) -> list[str]:
    """A line for each mistake, with the names of the files that have it. Pure.

    Args:
        found: Each file's name, and what is wrong with it.
        most: How many names a line has at most. Of more mistakes than DIFFERENT the rest is counted alone.
    """
    names: dict[str, list[str]] = {}
    for name, mistake in found:
        names.setdefault(mistake, []).append(name)
    lines = [
        f"{have[0]}: {mistake}" if len(have) == 1 else f"{len(have):,} files: {mistake}: {listed(have, most=most)}"
        for mistake, have in names.items()
    ]
    if len(lines) > DIFFERENT:
        lines[DIFFERENT:] = [f"{len(lines) - DIFFERENT:,} more, each with another mistake"]
    return lines


@cache
def _escapes(keep: str) -> dict[int, str]:
    acting = (chr(code) for code in range(0x10000) if _ACTING.match(chr(code)))
    return {ord(char): char.encode("unicode_escape").decode() for char in acting if char not in keep}
