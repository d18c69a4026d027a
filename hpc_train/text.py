"""Text of others' (names, errors, lines of logs) made fit to be shown: nothing in it acts on a terminal. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

LISTED = 100
"""How many names a message lists at most; files of others may have any number."""
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


def listed(items: Iterable[str], separator: str = ", ") -> str:
    """`items` one after the other, the first LISTED and how many more there are, or "none"."""
    items = list(items)
    shown = separator.join(items[:LISTED])
    return f"{shown} and {len(items) - LISTED} more" if len(items) > LISTED else shown or "none"


@cache
def _escapes(keep: str) -> dict[int, str]:
    acting = (chr(code) for code in range(0x10000) if _ACTING.match(chr(code)))
    return {ord(char): char.encode("unicode_escape").decode() for char in acting if char not in keep}
