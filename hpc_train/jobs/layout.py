"""Tables in the width that there is: which columns are cut, and how; numbers and times as people read them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rich.table import Table
from rich.text import Text

from hpc_train.text import visible

GAP = 2
"""Blanks between columns."""
WIDE = 1000
"""From this width on nothing need be cut: a pipe."""
LEAST_TEXT, LEAST_NAME = 8, 16
"""To how many characters texts, and names, are cut before a column that was asked for is left out."""
LEAST_LAST, LEAST_CUT = 24, 12
"""In a table whose last column is text: what that one has at least, and to how many characters others are cut."""
DAY_SECS = 86400


@dataclass(frozen=True)
class Column:
    """A column of a table: its title, its cells, and whether they are aligned right."""

    title: str
    cells: tuple[Text, ...]
    right: bool = False

    @property
    def width(self) -> int:
        """Characters of the widest cell."""
        return max(len(self.title), *(cell.cell_len for cell in self.cells))

    def cut(self, width: int) -> Column:
        """The same with cells of `width` characters at most."""
        cells = tuple(cell.copy() for cell in self.cells)
        for cell in cells:
            cell.truncate(width, overflow="ellipsis")
        return replace(self, cells=cells)

    def cut_inside(self, width: int) -> Column:
        """The same with what is too long cut in its middle: of names, beginning and end differ."""
        cells = []
        for cell in self.cells:
            if cell.cell_len > width:
                end = (width - 1) // 2
                cell = Text.assemble(cell[: width - 1 - end], "…", cell[len(cell) - end :])
            cells.append(cell)
        return replace(self, cells=tuple(cells))


def asked_column(title: str, values: Sequence[str | int | float | None], own: str = "") -> Column:
    """A column that was asked for: numbers aligned right, times and durations as people read them.

    Args:
        own: The field of JobStatus that it holds.
    """

    def shown(value: str | int | float | None) -> str:
        if value is None:
            return ""
        if own in ("submitted", "started", "updated") and isinstance(value, int | float):
            return moment(value)[: len("2026-01-01 12:00:00")]
        if own in ("secs_left", "limit_secs_left") and isinstance(value, int | float):
            return in_short(value)
        if own in ("step", "max_steps", "examples_per_sec") and isinstance(value, int | float):
            return f"{value:,.0f}"
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    right = not any(isinstance(value, str) and not _is_number(value) for value in values)
    return Column(visible(title), tuple(text_cell(shown(value)) for value in values), right)


def with_short_titles(columns: Sequence[Column]) -> list[Column]:
    """`columns` without what is before the last dot of their titles, where they stay distinct."""
    ends = [column.title.rpartition(".")[2] for column in columns]
    return [
        replace(column, title=end) if ends.count(end) == 1 else column
        for column, end in zip(columns, ends, strict=True)
    ]


def asked_table(columns: Sequence[Column], width: int) -> tuple[Table, list[str]]:
    """The name, the first of `columns`, and those that were asked for, in `width` characters.

    Titles and texts are cut where there is no room, then names, and then the last columns are left out, whose titles
    are returned. Numbers are whole.
    """
    if width >= WIDE or not columns:
        return table_of(columns, cut=True), []
    name, *rest = with_short_titles(columns)
    least_name, room = min(LEAST_NAME, name.width), width

    def over(name_width: int, widths: Sequence[int]) -> int:
        return name_width + sum(GAP + one for one in widths) - room

    shown = len(rest)
    while shown > 1 and over(least_name, list(map(_least, rest[:shown]))) > 0:
        shown -= 1
    rest = rest[:shown]
    for place in sorted(range(shown), key=lambda place: -rest[place].width):
        if (much := over(name.width, [one.width for one in rest])) > 0:
            rest[place] = _narrowed(rest[place], max(_least(rest[place]), rest[place].width - much))
    name = name.cut_inside(max(1, name.width - max(0, over(name.width, [one.width for one in rest]))))
    return table_of([name, *rest], cut=True), [column.title for column in columns[1 + shown :]]


def _least(column: Column) -> int:
    """To what width a column can be cut: numbers and states are whole."""
    whole = column.right or column.title == "state"
    cells = max(cell.cell_len for cell in column.cells)
    return max(min(column.width, LEAST_TEXT), cells if whole else 0)


def _narrowed(column: Column, width: int) -> Column:
    """The same with a title and cells of `width` characters at most."""
    return replace(column.cut(width), title=_cut_title(column.title, width))


def _cut_title(title: str, width: int) -> str:
    cut = Text(title)
    cut.truncate(width, overflow="ellipsis")
    return cut.plain


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text == "null"
    return True


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
        shown[widest] = replace(shown[widest].cut_inside(to), title=_cut_title(shown[widest].title, to))
    return table_of(shown, cut=False)


def table_of(columns: Sequence[Column], cut: bool) -> Table:
    """A table without lines, with dashes for what is not known.

    Where there is no room, the last column is cut, or else goes on in the next line.
    """
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for column in columns:
        last = column is columns[-1]
        table.add_column(
            Text(column.title),
            justify="right" if column.right else "left",
            no_wrap=cut or not last,
            overflow="ellipsis" if cut else "fold",
            min_width=None if last else column.width,
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        dashed = [cell if cell or column.title == "" else Text("–") for cell, column in zip(row, columns, strict=True)]
        table.add_row(*dashed)
    return table


def text_cell(text: str, style: str = "") -> Text:
    """A cell, of one line; what of it would be markup or act on a terminal is shown as it is."""
    return Text(visible(text), style)


def number(value: float | None, how: str) -> str:
    """Formatted; empty where unknown. Pure."""
    return "" if value is None else format(value, how)


def duration(secs: float | None) -> str:
    """Such as 1:02:03; empty where unknown. Pure."""
    return "" if secs is None else str(timedelta(seconds=max(0, round(secs))))


def in_short(secs: float | None) -> str:
    """The same in 8 characters, whatever it is: 1:02:03, or from a day on 3d 04h. Pure."""
    if secs is None or secs < DAY_SECS:
        return duration(secs)
    days, rest = divmod(round(secs), DAY_SECS)
    return f"{days:,}d {rest // 3600:02}h" if days < 1000 else f"{days:,}d"


def moment(when: float) -> str:
    """Local time, to the second."""
    return datetime.fromtimestamp(when).astimezone().isoformat(" ", "seconds")
