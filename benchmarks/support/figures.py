"""What a figure of a report shows, and the same in words and numbers. Pure; drawn in drawing.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpc_train.report import words


@dataclass(frozen=True)
class Line:
    """A curve through measured points.

    Attributes:
        points: x and y, in the order of x.
        band: x, lowest and highest, shaded around the line.
        dashed: For what is not measured: a prediction, an ideal. marked: Each point has a marker.
    """

    label: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()
    dashed: bool = False
    marked: bool = True


@dataclass(frozen=True)
class LinePlot:
    """Curves over a number, as ranks or bytes.

    Attributes:
        x_label, y_label: With the unit. limits: Horizontal lines with a label each, such as what memcpy reaches.
        note: A sentence beneath.
    """

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    limits: Sequence[tuple[str, float]] = ()
    note: str = ""

    @property
    def header(self) -> tuple[str, ...]:
        """What the columns of `rows` are."""
        return (self.x_label, *(line.label for line in self.lines), *(label for label, _ in self.limits))

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Its numbers as text: a row for each x, a column for each line and limit."""
        heights = [dict(line.points) for line in self.lines]
        bands = [{x: (low, high) for x, low, high in line.band} for line in self.lines]
        found = []
        for x in sorted({x for points in heights for x in points}):
            cells = [_cell(points.get(x), band.get(x)) for points, band in zip(heights, bands, strict=True)]
            found.append((words.number(x), *cells, *(words.number(y) for _, y in self.limits)))
        return found

    @property
    def description(self) -> str:
        """The plot in words."""
        told = [f"{self.y_label} over {self.x_label}."]
        for line in self.lines:
            if not line.points:
                told.append(f"{line.label}: nothing measured.")
                continue
            (first_x, first), (last_x, last) = line.points[0], line.points[-1]
            at_end = f", {words.number(last)} at {words.number(last_x)}" if len(line.points) > 1 else ""
            told.append(f"{line.label}: {words.number(first)} at {words.number(first_x)}{at_end}.")
        told += [f"{label}: {words.number(y)}." for label, y in self.limits]
        return " ".join(told)


@dataclass(frozen=True)
class StackedBars:
    """Bars made of parts, in the same order and colours in all of them; a part that a bar lacks is 0.

    Attributes:
        y_label: What the parts are measured in, such as "ms a step".
    """

    title: str
    y_label: str
    bars: Sequence[tuple[str, Mapping[str, float]]]
    note: str = ""

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of all parts, in the order in which they first come."""
        return tuple(dict.fromkeys(part for _, own in self.bars for part in own))

    @property
    def header(self) -> tuple[str, ...]:
        """What the columns of `rows` are."""
        return (self.y_label, *self.parts, "sum")

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Its numbers as text: a row for each bar."""
        return [
            (label, *(words.number(own.get(part), 3) for part in self.parts), words.number(sum(own.values()), 3))
            for label, own in self.bars
        ]

    @property
    def description(self) -> str:
        """The bars in words."""
        told = [
            f"{label}: {', '.join(f'{part} {words.number(n, 3)}' for part, n in own.items())}."
            for label, own in self.bars
        ]
        return " ".join([f"{self.y_label}.", *told])


Figure = LinePlot | StackedBars


def _cell(height: float | None, band: tuple[float, float] | None) -> str:
    if height is None:
        return ""
    spread = f" ({words.number(band[0], 3)} to {words.number(band[1], 3)})" if band else ""
    return words.number(height) + spread
