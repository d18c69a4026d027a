"""What a chart shows, without how it is drawn; and the same in words and numbers, for those who cannot see it. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from hpc_train.report import words
from hpc_train.report.numbers import Best, Points

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hpc_train.report.drawing import Size

STEP = "step"
MOST_AT_AN_END = 3
"""Happenings described at the beginning of a row, and at its end."""


@dataclass(frozen=True)
class Curve:
    """A line of a chart.

    Attributes:
        look: Which of the looks (colour, dashes, marker) it has.
        marked: Whether each point has a marker.
        band: x, lowest and highest, shaded around the line.
    """

    label: str
    points: Points
    look: int
    marked: bool = False
    best: Best | None = None
    band: Sequence[tuple[float, float | None, float | None]] = ()


@dataclass(frozen=True)
class LineChart:
    """Curves over steps or over time.

    Attributes:
        restarts: Steps at which a run began anew; vertical lines.
        share: Values are shares of 1, and shown as percentages; stacked: as areas one upon the other.
        header: What the columns of `rows` are.
    """

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    restarts: tuple[float, ...] = ()
    share: bool = False
    stacked: bool = False
    logarithmic: bool = False
    note: str = ""
    header: ClassVar = ("", "points", "first", "lowest", "highest", "last")

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """A line of numbers for each curve, below `header`."""
        return [self._row(curve) for curve in self.curves]

    @property
    def description(self) -> str:
        """The chart in words."""
        texts = []
        for curve, row in zip(self.curves, self.rows, strict=True):
            if row[1] == "0":
                texts.append(f"{row[0]}: nothing measured.")
                continue
            best = f", best {words.number(curve.best.value)} at {curve.best.step:,}" if curve.best else ""
            texts.append(
                f"{row[0]}: {words.count(int(row[1].replace(',', '')), 'point')}, first {row[2]}, lowest {row[3]}, "
                f"highest {row[4]}, last {row[5]}{best}."
            )
        if self.restarts:
            texts.append("Restarts at " + ", ".join(map(words.number, self.restarts[:20])) + ".")
        return f"{self.y_label} over {self.x_label}. " + " ".join(texts)

    def _row(self, curve: Curve) -> tuple[str, ...]:
        show = words.percent if self.share else words.number
        known = [(y, x) for x, y in curve.points if y is not None]
        if not known:
            return (curve.label, "0", *[words.UNKNOWN] * 4)
        low, high = min(known), max(known)
        at = [f"{show(y)} at {words.number(x)}" for y, x in (low, high)]
        return (curve.label, f"{len(known):,}", show(known[0][0]), *at, show(known[-1][0]))


@dataclass(frozen=True)
class BarChart:
    """How often each whole number was there."""

    title: str
    x_label: str
    y_label: str
    bars: tuple[tuple[int, float], ...]
    note: str = ""

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Each number with its share of all."""
        total = sum(height for _, height in self.bars) or 1.0
        return [(f"{at:,}", words.number(height), words.percent(height / total)) for at, height in self.bars]

    @property
    def header(self) -> tuple[str, ...]:
        """What the columns of `rows` are."""
        return (self.x_label, self.y_label, "share")

    @property
    def description(self) -> str:
        """The chart in words."""
        listed = "; ".join(f"{at}: {share}" for at, _, share in self.rows[:12])
        return f"{self.y_label} by {self.x_label}. {listed}."


@dataclass(frozen=True)
class HistogramChart:
    """How many numbers are in each bin, from each of `edges` to the next one."""

    title: str
    x_label: str
    y_label: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    note: str = ""

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Each bin with its share of all."""
        total = sum(self.counts) or 1
        bins = zip(self.edges, self.edges[1:], self.counts, strict=False)
        return [
            (f"{words.number(low)} to {words.number(high)}", f"{count:,}", words.percent(count / total))
            for low, high, count in bins
        ]

    @property
    def header(self) -> tuple[str, ...]:
        """What the columns of `rows` are."""
        return (self.x_label, self.y_label, "share")

    @property
    def description(self) -> str:
        """The chart in words."""
        most = max(range(len(self.counts)), key=lambda k: self.counts[k])
        span, _, share = self.rows[most]
        low, high = words.number(self.edges[0]), words.number(self.edges[-1])
        return f"{self.y_label} by {self.x_label}, from {low} to {high}; most, {share}, from {span}."


@dataclass(frozen=True)
class Happening:
    """Something on the time line, from `start` to `end`, the same where it took no time."""

    start: float
    end: float
    text: str
    bad: bool = False


@dataclass(frozen=True)
class TimeLine:
    """What happened when: rows of happenings.

    Attributes:
        lanes: The name of each row and what is in it.
        x_label: What x counts, from when.
        header: What the columns of `rows` are.
    """

    title: str
    x_label: str
    lanes: tuple[tuple[str, tuple[Happening, ...]], ...]
    y_label: str = ""
    note: str = ""
    unit: str = "s"
    header: ClassVar = ("", "what", "from", "to")

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """A line for each happening; of many in a row, the first and the last few."""
        lines: list[tuple[str, ...]] = []
        for name, things in self.lanes:
            short = len(things) > 2 * MOST_AT_AN_END + 1
            shown = (*things[:MOST_AT_AN_END], None, *things[-MOST_AT_AN_END:]) if short else things
            for thing in shown:
                if thing is None:
                    lines.append((name, f"… {len(things) - 2 * MOST_AT_AN_END:,} more …", "", ""))
                else:
                    end = self._at(thing.end) if thing.end > thing.start else ""
                    lines.append((name, thing.text, self._at(thing.start), end))
        return lines

    def _at(self, when: float) -> str:
        return f"{words.number(when, 3)} {self.unit}"

    @property
    def description(self) -> str:
        """The chart in words."""
        return f"What happened when; {self.x_label}. " + " ".join(
            f"{name}: {len(things)}, the last at {self._at(things[-1].end)}." for name, things in self.lanes if things
        )


@dataclass(frozen=True, kw_only=True)
class OwnChart(ABC):
    """A chart that another package has, and draws.

    Attributes:
        header, rows, description: The chart in numbers, and in words.
        legend: What is inside of a swatch of 26 by 12, as SVG, and its meaning.
    """

    title: str
    x_label: str = ""
    y_label: str = ""
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    description: str
    note: str = ""
    legend: tuple[tuple[str, str], ...] = ()

    def room(self, size: Size) -> tuple[float, int]:
        """The margin on the left, and the height."""
        return 52.0, size.height

    @abstractmethod
    def paint(self, axes: Axes, size: Size) -> None:
        """Draws it, in colours of `report.svg`."""


Chart = LineChart | BarChart | HistogramChart | TimeLine | OwnChart
