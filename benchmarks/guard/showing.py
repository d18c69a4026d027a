"""What quick.py prints: a table of the ratios with their targets, then what falls short, and the times. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from guard.measured import Ran
from guard.neighbours import too_much
from guard.parts import PARTS

if TYPE_CHECKING:
    from rich.table import Table

MEANT_SECS = 180.0
"""All parts together are meant to take less."""
HEADER = ("part", "ratio", "wanted", "of", "measured", "")
REACHED, MISSED = "reached", "falls short"

Row = tuple[str, ...]
Found = Mapping[str, Ran]
"""By part."""


def rows(found: Found) -> Iterator[Row]:
    """A row for each number; what is the same as in the row above is left empty."""
    for part, ran in found.items():
        named = part
        for target in ran.measured.targets:
            what, wanted = target.what, target.wanted
            for name, value, reached in target.measured:
                yield named, what, wanted, name, value, REACHED if reached else MISSED
                named = what = wanted = ""


def table(found: Found) -> Table:
    """The rows, for a terminal."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in HEADER:
        made.add_column(
            name, justify="right" if name == "measured" else "left", no_wrap=name in ("part", "", "measured")
        )
    for row in rows(found):
        made.add_row(*map(Text, row), style="bold red" if row[-1] == MISSED else "")
    return made


def ending(found: Found, all_secs: float) -> Iterator[str]:
    """Lines: what falls short and what measures it in full, what was not measured and why, and the times."""
    numbers = sum(len(target.measured) for ran in found.values() for target in ran.measured.targets)
    missed = {part: own for part, ran in found.items() if (own := list(ran.measured.missed()))}
    if missed:
        yield f"{sum(map(len, missed.values()))} of {numbers} fall short:"
        for part, own in missed.items():
            for target, name, value in own:
                yield f"  {part}: {target.what}, {name}: {value}, wanted {target.wanted}"
        scripts = ", ".join(f"benchmarks/{PARTS[part].script}" for part in missed)
        yield f"So short a run errs by some percent; for longer ones: {scripts}"
    elif numbers:
        yield f"All {numbers} are reached."
    for part, ran in found.items():
        for unit, why in ran.measured.left_out.items():
            yield f"not measured  {part if unit == part else f'{part}, {unit}'}: {why}"
    disturbed = [(part, ran.taken_by_others) for part, ran in found.items() if too_much(ran.taken_by_others)]
    if disturbed:
        cores = ", ".join(f"{part} {taken:.1f}" for part, taken in disturbed)
        yield f"Other processes took cores meanwhile ({cores}): these figures mean little, measure again without them"
    times = ", ".join(f"{part} {ran.secs:.0f} s" for part, ran in found.items())
    more = f", more than the {MEANT_SECS:.0f} s that it is meant to take at most" if all_secs > MEANT_SECS else ""
    yield f"took {all_secs:.0f} s{more}: {times}"
