"""The charts that a study has beside those of jobs, and how they are drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hpc_train.report import words
from hpc_train.report.drawing import Size, ticks
from hpc_train.report.figure import STEP, OwnChart
from hpc_train.report.svg import CURVES, INK, PAPER, SOFT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Tier = Literal["best", "good", "other"]
TIERS: dict[Tier, dict[str, Any]] = {
    "other": {"color": CURVES[5], "linewidth": 0.8, "alpha": 0.55, "zorder": 2},
    "good": {"color": CURVES[0], "linewidth": 1.4, "zorder": 3},
    "best": {"color": INK, "linewidth": 2.6, "zorder": 4},
}
"""Looks of trials; they differ in darkness and width, for those who see no colours."""
FEW = 40
"""Lines that can be told from each other; more are drawn fainter."""
DOT = 5.0
AXIS_HEIGHT = 58
BAR_HEIGHT = 26
CHARACTER = 7.8
"""Pixels, about."""


def _style(tier: Tier, count: int) -> dict[str, Any]:
    """How one of so many lines is drawn."""
    style = dict(TIERS[tier])
    if tier != "best" and count > FEW:
        style["alpha"] = style.get("alpha", 1.0) * max(0.5, FEW / count)
        style["linewidth"] *= 0.8
    return style


def legend_of(tiers: Sequence[Tier]) -> tuple[tuple[str, str], ...]:
    """What each look means, best first."""
    looks = {"best": ("ink", 2.6, 1), "good": ("c1", 1.6, 1), "other": ("c6", 1, 0.7)}
    named = {"best": "the best trial", "good": "the best quarter", "other": "others"}
    return tuple(
        (
            f'<path d="M0 6H26" stroke="var(--{colour})" stroke-width="{width}" stroke-opacity="{opacity}"/>',
            named[tier],
        )
        for tier, (colour, width, opacity) in looks.items()
        if tier in tiers
    )


@dataclass(frozen=True)
class Dot:
    """A trial in a chart.

    Attributes:
        whole: Whether it came to the end.
    """

    x: float
    y: float
    whole: bool
    best: bool = False


@dataclass(frozen=True, kw_only=True)
class DotChart(OwnChart):
    """A dot for each trial, and a line.

    Attributes:
        line: Of steps, from each point level to the next.
        corners: Points that lie in the chart, too, though nothing is drawn there.
        names: Of x = 0, 1 and so on, where x is no number.
        across, upright: Whether x and y are logarithmic.
    """

    dots: tuple[Dot, ...]
    line: tuple[tuple[float, float], ...] = ()
    corners: tuple[tuple[float, float], ...] = ()
    names: tuple[str, ...] = ()
    across: bool = False
    upright: bool = False

    def paint(self, axes: Axes, size: Size) -> None:
        """Draws it."""
        if self.upright:
            axes.set_yscale("log")
        if self.across:
            axes.set_xscale("log")
        if self.line:
            axes.step(*zip(*self.line, strict=True), where="post", color=CURVES[0], linewidth=2, zorder=3)
        for whole in (True, False):
            dots = [dot for dot in self.dots if dot.whole == whole and not dot.best]
            colour = CURVES[5] if self.line else CURVES[0]
            face: dict[str, Any] = (
                {"markerfacecolor": colour, "markeredgecolor": PAPER, "markeredgewidth": 0.6}
                if whole
                else {"markerfacecolor": "none", "markeredgecolor": colour, "markeredgewidth": 1}
            )
            axes.plot([d.x for d in dots], [d.y for d in dots], "o", markersize=DOT, zorder=2, **face)
        for dot in (dot for dot in self.dots if dot.best):
            face = {"markeredgecolor": INK, "markerfacecolor": INK if dot.whole else "none"}
            axes.plot([dot.x], [dot.y], "o", markersize=DOT, zorder=5, **face)
            axes.plot([dot.x], [dot.y], "o", markersize=12, markerfacecolor="none", markeredgecolor=INK,
                      markeredgewidth=1.6, zorder=5)  # fmt: skip
        axes.plot([x for x, _ in self.corners], [y for _, y in self.corners], linestyle="none")
        axes.margins(0.06, 0.08)
        ticks(axes, size, whole=self.x_label == STEP, logarithmic=self.upright)
        if self.names:
            _name_ticks(axes, self.names)
        elif self.across:
            _log_ticks(axes, size)


def _name_ticks(axes: Axes, names: Sequence[str]) -> None:
    every = math.ceil(len(names) / 6)
    shown = range(0, len(names), every)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_xticks(list(shown), [_cut(names[at], 270 / len(shown)) for at in shown], parse_math=False)


def _log_ticks(axes: Axes, size: Size) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_xlim()
    decades = math.log10(high / low)
    steps = (1.0, 2.0, 5.0) if decades < 1.3 else (1.0, 3.0) if decades < 2.2 else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=steps, numticks=size.ticks + 1))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _short(value: float) -> str:
    text = words.number(value, 3)
    return text if len(text) <= 6 else words.scientific(value)


@dataclass(frozen=True)
class TrialLine:
    """A trial: its points by x, or of each axis its place from 0 to 1; None: a gap."""

    tier: Tier
    points: tuple[tuple[float, float | None], ...]


@dataclass(frozen=True, kw_only=True)
class CurveChart(OwnChart):
    """A curve for each trial; the best ones are given last, to be on top.

    Attributes:
        rungs: Steps at which trials were compared; vertical lines.
    """

    lines: tuple[TrialLine, ...]
    rungs: tuple[int, ...] = ()
    upright: bool = False

    def paint(self, axes: Axes, size: Size) -> None:
        """Draws it."""
        if self.upright:
            axes.set_yscale("log")
        for step in self.rungs:
            axes.axvline(step, color=SOFT, linewidth=1, dashes=(2, 3), zorder=1)
        for line in self.lines:
            ys = [math.nan if y is None else y for _, y in line.points]
            alone = sum(not math.isnan(y) for y in ys) == 1
            axes.plot(
                [x for x, _ in line.points],
                ys,
                marker="o" if alone else "",
                markersize=3,
                **_style(line.tier, len(self.lines)),
            )
        axes.margins(0.02, 0.08)
        ticks(axes, size, whole=True, logarithmic=self.upright)


@dataclass(frozen=True)
class ParallelAxis:
    """A key: its name, and the places on its axis, from 0 to 1, that have a text."""

    name: str
    marks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, kw_only=True)
class ParallelChart(OwnChart):
    """Parallel coordinates, one axis below the other, so that names have room on a phone.

    Attributes:
        lines: x of their points is the number of an axis, y the place on it.
    """

    axes: tuple[ParallelAxis, ...]
    lines: tuple[TrialLine, ...]

    def room(self, size: Size) -> tuple[float, int]:
        """A height that is a matter of the number of axes."""
        return 20.0, 44 + AXIS_HEIGHT * len(self.axes)

    def paint(self, axes: Axes, size: Size) -> None:
        """Draws it."""
        axes.grid(False)
        axes.set_xlim(-0.01, 1.01)
        axes.set_ylim(len(self.axes) - 0.9, -0.35)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines["bottom"].set_visible(False)
        for row, axis in enumerate(self.axes):
            axes.plot([0, 1], [row, row], color=SOFT, linewidth=1, zorder=1)
            axes.plot([at for at, _ in axis.marks], [row] * len(axis.marks), "|", color=SOFT, markersize=7, zorder=1)
            _written(axes, 0, row, words.label(axis.name, int(size.width / CHARACTER) - 6), INK, "left", up=True)
            for at, text in _fitting(axis.marks, size):
                side = "left" if at < 0.06 else "right" if at > 0.94 else "center"
                _written(axes, at, row, text, SOFT, side, up=False)
        for line in self.lines:
            ys = [math.nan if place is None else place for _, place in line.points]
            axes.plot(ys, [x for x, _ in line.points], **_style(line.tier, len(self.lines)))
            alone = [(y, x) for y, (x, _) in zip(ys, line.points, strict=True) if not math.isnan(y)]
            if line.tier == "best" and alone:
                axes.plot(*zip(*alone, strict=True), "o", color=INK, markersize=DOT, zorder=5)


def _written(axes: Axes, x: float, y: float, text: str, colour: str, side: str, up: bool) -> None:
    axes.annotate(
        text, (x, y), (0, 5 if up else -5), textcoords="offset points", color=colour, ha=side,
        va="bottom" if up else "top", zorder=6, annotation_clip=False,
        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1, "alpha": 0.8},
    )  # fmt: skip


def _fitting(marks: Sequence[tuple[float, str]], size: Size) -> list[tuple[float, str]]:
    """Those whose texts have room beside each other: the ends first, then from the left."""
    width = size.width - 40
    cut = [(at, _cut(text, width / 3)) for at, text in marks]
    ends = [mark for mark in cut if mark[0] in (0.0, 1.0)]
    found: list[tuple[float, str]] = []

    def span(mark: tuple[float, str]) -> tuple[float, float]:
        at, wide = mark[0] * width, _pixels(mark[1])
        left = at if mark[0] < 0.06 else at - wide if mark[0] > 0.94 else at - wide / 2
        return left - 3, left + wide + 3

    for mark in [*ends, *(mark for mark in cut if mark not in ends)]:
        low, high = span(mark)
        if all(high <= left or low >= right for left, right in map(span, found)):
            found.append(mark)
    return found


def _pixels(text: str) -> float:
    """How wide a text is, about."""
    return sum(12.5 if c > "\u2e80" else 10.5 if c in "<>&@%+=~MWmw…" else 7.3 for c in text)


def _cut(text: str, width: float) -> str:
    """A text that takes no more than so many pixels, about."""
    return words.label(text, max(3, int(len(text) * width / max(1.0, _pixels(text)))))


@dataclass(frozen=True, kw_only=True)
class ShareChart(OwnChart):
    """A bar for each name, of a share of 1; the first one is on top."""

    bars: tuple[tuple[str, float], ...]

    def room(self, size: Size) -> tuple[float, int]:
        """Names on the left of the bars."""
        longest = max(len(self._name(name, size)) for name, _ in self.bars)
        return 14 + CHARACTER * longest, 76 + BAR_HEIGHT * len(self.bars)

    def _name(self, name: str, size: Size) -> str:
        return words.label(name, int(size.width / CHARACTER * 0.45))

    def paint(self, axes: Axes, size: Size) -> None:
        """Draws it."""
        places = range(len(self.bars))
        shares = [share for _, share in self.bars]
        axes.barh(places, shares, height=0.6, color=CURVES[0])
        for place, share in zip(places, shares, strict=True):
            axes.annotate(
                words.percent(share), (share, place), (5, 0), textcoords="offset points", color=INK, va="center"
            )
        axes.set_xlim(0, 1.25 * max(max(shares), 0.05))
        axes.set_ylim(len(self.bars) - 0.4, -0.6)
        axes.grid(False)
        ticks(axes, size, whole=False)
        from matplotlib.ticker import FuncFormatter

        axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: words.number(100 * share, 3) + "%"))
        axes.set_yticks(places, [self._name(name, size) for name, _ in self.bars], color=INK, parse_math=False)
