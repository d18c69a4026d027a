"""Tables whose last column is text: what gives way, and in which order, where the terminal is narrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.table import Table
from rich.text import Text

from hpc_train.jobs.tables import GAP, Column, table_of

LEAST_LAST = 24
"""Characters that the last column has at least, where it has so many."""
LEAST_CUT = 12
"""To how many characters others are cut at most."""


def text_table(columns: Sequence[Column], width: int, dispensable: Sequence[str] = ()) -> Table:
    """`columns` in `width` characters; the last one goes on in the next lines, the others have one line each.

    Args:
        dispensable: Titles of columns that are left out where there is no room, in this order. After them the widest
            of those that are aligned left are cut in their middles: of names and paths, beginning and end differ.
    """
    shown = list(columns)
    least = min(columns[-1].width, LEAST_LAST)

    def lacking() -> int:
        return sum(column.width + GAP for column in shown[:-1]) + least - width

    for title in dispensable:
        if lacking() > 0:
            shown = [column for column in shown if column.title != title]
    while (much := lacking()) > 0:
        texts = [n for n, column in enumerate(shown[:-1]) if not column.right and column.width > LEAST_CUT]
        if not texts:
            break
        widest = max(texts, key=lambda n: shown[n].width)
        others = [shown[n].width for n in texts if n != widest]
        to = max(LEAST_CUT, shown[widest].width - much, min(shown[widest].width - 1, max(others, default=0)))
        shown[widest] = _cut_inside(shown[widest], to)
    return table_of(shown, cut=False)


def _cut_inside(column: Column, width: int) -> Column:
    """A column with cells, and a title, of `width` characters at most."""
    cells = []
    for cell in column.cells:
        if cell.cell_len > width:
            end = (width - 1) // 2
            cell = Text.assemble(cell[: width - 1 - end], "…", cell[len(cell) - end :])
        cells.append(cell)
    title = column.title if len(column.title) <= width else f"{column.title[: width - 1]}…"
    return replace(column, title=title, cells=tuple(cells))
