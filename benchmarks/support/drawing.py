"""The figures of a report: what they show, in words and numbers, and as SVG files drawn by matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

from hpc_train.report import words
from hpc_train.report.drawing import drawing, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a5195", "#8a6d00", "#56b4e9")
OURS, OTHERS, TARGET, SOFT = COLOURS[0], "#b0b6bf", "#c22", "#555"
WIDTH, PLOT_HEIGHT, BAR_HEIGHT = 6.6, 3.2, 0.27
"""Inches of 100 pixels."""


@dataclass(frozen=True)
class Bar:
    """One ratio; `target`: a mark at the number to reach. `value` None: not measured."""

    label: str
    value: float | None
    target: float | None = None
    ours: bool = True


@dataclass(frozen=True)
class Bars:
    """Ratios as horizontal bars, with a line at 1; beyond `most` they are cut off."""

    title: str
    bars: Sequence[Bar]
    most: float = math.inf

    @property
    def words(self) -> str:
        return "; ".join(f"{one.label}: {words.number(one.value, 3)}" for one in self.bars)

    def draw(self, axes: Axes) -> None:
        top = max([1.0, *(max(one.value or 0.0, one.target or 0.0) for one in self.bars)])
        axes.set_xlim(0, 1.12 * min(self.most, top))
        axes.axvline(1, color=SOFT, linewidth=0.8)
        for row, one in enumerate(self.bars):
            length = min(one.value or 0.0, self.most)
            axes.barh(row, length, 0.68, color=OURS if one.ours else OTHERS)
            if one.target is not None:
                axes.plot([one.target] * 2, [row - 0.45, row + 0.45], color=TARGET, linewidth=2)
            axes.annotate(f" {words.number(one.value, 3)}", (length, row), va="center", fontsize=9)
        _rows(axes, [one.label for one in self.bars])


@dataclass(frozen=True)
class Line:
    """A curve through measured points.

    Attributes:
        points: x and y, in the order of x. band: x, lowest and highest, shaded around the line.
        dashed: For what is not measured: a prediction, an ideal.
    """

    label: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()
    dashed: bool = False


@dataclass(frozen=True)
class Lines:
    """Curves over a number, as ranks or bytes. `limits`: horizontal lines, by name."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    log_y: bool = False
    limits: Mapping[str, float] | None = None

    @property
    def words(self) -> str:
        ends = [f"{one.label}: {_end(one.points[0])} to {_end(one.points[-1])}" for one in self.lines if one.points]
        return f"{self.y_label} over {self.x_label}. " + "; ".join(ends)

    def draw(self, axes: Axes) -> None:
        for index, line in enumerate(self.lines):
            colour, marker = COLOURS[index % len(COLOURS)], look(index)[2]
            style: dict[str, Any] = {"linestyle": "--"} if line.dashed else {"marker": marker}
            axes.plot(*zip(*line.points, strict=True), color=colour, label=line.label, markersize=5, **style)
            if line.band:
                axes.fill_between(*zip(*line.band, strict=True), color=colour, alpha=0.2, linewidth=0)
        for name, y in (self.limits or {}).items():
            axes.axhline(y, color=TARGET, linewidth=1, linestyle=":", label=name)
        xs = sorted({x for line in self.lines for x, _ in line.points})
        axes.set_xscale("log", base=2)
        axes.set_yscale("log" if self.log_y else "linear")
        if not self.log_y:
            axes.set_ylim(0, 1.04 * axes.get_ylim()[1])
        shown = xs[:: math.ceil(len(xs) / 9)]
        axes.set_xticks(shown, [_short(x) for x in shown])
        axes.minorticks_off()
        axes.set_xlabel(self.x_label, fontsize=9)
        axes.set_ylabel(self.y_label, fontsize=9)
        axes.legend(fontsize=8, frameon=False)


@dataclass(frozen=True)
class Stacks:
    """Bars made of parts, in the same order and colours in all of them; a part that a bar lacks is 0."""

    title: str
    unit: str
    stacks: Sequence[tuple[str, Mapping[str, float]]]

    @property
    def words(self) -> str:
        told = (", ".join(f"{part} {words.number(n, 3)}" for part, n in own.items()) for _, own in self.stacks)
        return f"{self.unit}. " + "; ".join(
            f"{label}: {one}" for (label, _), one in zip(self.stacks, told, strict=True)
        )

    def draw(self, axes: Axes) -> None:
        left = [0.0] * len(self.stacks)
        for index, part in enumerate(dict.fromkeys(part for _, own in self.stacks for part in own)):
            lengths = [own.get(part, 0.0) for _, own in self.stacks]
            axes.barh(range(len(left)), lengths, 0.68, left, color=COLOURS[index % len(COLOURS)], label=part)
            left = [start + length for start, length in zip(left, lengths, strict=True)]
        axes.set_xlabel(self.unit, fontsize=9)
        _rows(axes, [label for label, _ in self.stacks])
        axes.legend(fontsize=8, frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.4, -0.25))


Figure = Bars | Lines | Stacks


def draw(figure: Figure) -> str:
    """A figure as the text of an SVG file."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    rows = {Bars: lambda one: len(one.bars), Stacks: lambda one: len(one.stacks) + 3}.get(type(figure))
    height = PLOT_HEIGHT if rows is None else 0.7 + BAR_HEIGHT * rows(figure)
    with drawing():
        canvas = Canvas(figsize=(WIDTH, height), dpi=100, facecolor="white", layout="constrained")
        FigureCanvasSVG(canvas)
        axes = canvas.add_subplot()
        axes.set_title(figure.title, fontsize=11, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=9, color=SOFT)
        figure.draw(axes)
        text = StringIO()
        canvas.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _rows(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), [words.label(one, 40) for one in labels])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(labels) - 0.4, -0.6)


def _end(point: tuple[float, float]) -> str:
    return f"{words.number(point[1])} at {words.number(point[0])}"


def _short(x: float) -> str:
    for power, unit in ((20, "Mi"), (10, "Ki")):
        if x >= 1 << power:
            return f"{x / (1 << power):.3g} {unit}"
    return f"{x:g}"
