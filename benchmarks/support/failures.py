"""Why something could not be measured, in one line. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

LAST_LINES = 3
MOST_CHARACTERS = 160


def in_short(error: BaseException) -> str:
    """What went wrong, from the text of a failure: its first line, and the last ones of what the ranks printed.

    Of what mpirun says between its two rules only the beginning counts, and only where the ranks have said nothing.
    """
    first, *more = str(error).splitlines() or [type(error).__name__]
    if first.startswith("mpirun "):
        first = f"mpirun: {first.rpartition(': ')[2]}"  # without its arguments
    of_ranks, of_mpirun = ([line for line, ruled in _lines(more) if ruled == wanted] for wanted in (False, True))
    told = of_ranks[-LAST_LINES:] or of_mpirun[:LAST_LINES]
    return "; ".join(map(_cut, [first.strip(), *told]))


def _lines(lines: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Those that say something, and whether they are between rules; the first rule of all may have been cut off."""
    is_rule = [set(line.strip()) == {"-"} for line in lines]
    inside = sum(is_rule) % 2 == 1
    for line, rule in zip(lines, is_rule, strict=True):
        inside ^= rule
        if line.strip() and not rule:
            yield line.strip(), inside


def _cut(line: str) -> str:
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"
