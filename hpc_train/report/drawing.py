"""Charts drawn as SVG with matplotlib, in a width for phones and print and one for screens."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from hpc_train.report import words
from hpc_train.report.figure import STEP, BarChart, Chart, Curve, HistogramChart, LineChart, OwnChart, TimeLine
from hpc_train.report.numbers import LARGEST, Points
from hpc_train.report.svg import ALARM, COLOURS, CURVES, GRID, INK, PAPER, SOFT, for_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = ("", "6 2", "2 1.5", "7 2 2 2", "11 3", "4 1.5 1 1.5")
MARKERS = ("o", "s", "^", "D", "v", "P")
MOST_MARKERS = 40
TEXT_SIZE = 12
LONGEST_LANE = 16


@dataclass(frozen=True)
class Size:
    """Of a drawing, in CSS pixels; `points`: at most so many of a curve."""

    name: str
    width: int
    height: int
    ticks: int
    points: int


SIZES = (Size("narrow", 350, 230, 4, 300), Size("wide", 600, 270, 7, 900))


def look(index: int) -> tuple[int, str, str]:
    """The colour (1 to COLOURS), dashes and marker of a curve; no two of the first 42 are the same."""
    turn, place = divmod(index, COLOURS)
    return place + 1, DASHES[(place + turn) % len(DASHES)], MARKERS[(place + turn) % len(MARKERS)]


@contextmanager
def drawing() -> Iterator[None]:
    """Matplotlib as charts are drawn here, whatever the user's own settings; it stays silent."""
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        import matplotlib

        defaults: dict[Any, Any] = {
            name: value for name, value in matplotlib.rcParamsDefault.items() if "backend" not in name
        }
        ours: dict[Any, Any] = {
            "svg.fonttype": "none",
            "svg.hashsalt": "hpc_train",
            "font.size": TEXT_SIZE,
            "text.parse_math": False,
        }
        with warnings.catch_warnings(), matplotlib.rc_context():
            warnings.simplefilter("ignore")
            matplotlib.rcParams.update(defaults | ours)
            yield
    finally:
        logger.setLevel(level)


def draw(chart: Chart, key: str, sizes: Sequence[Size] = SIZES) -> Markup:
    """A chart in these sizes, as SVG elements of classes `narrow` and `wide`; `key`: of its ids. Within `drawing`."""
    drawn = []
    for size in sizes:
        figure = _figure(chart, size)
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        title, description = str(escape(chart.title)), str(escape(chart.description))
        drawn.append(for_page(text.getvalue(), f"{key}{size.name[0]}", title, description, size.name))
    return Markup("".join(drawn))


def _figure(chart: Chart, size: Size) -> Figure:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    lanes, left, height = 0, 52.0, size.height
    if isinstance(chart, TimeLine):
        lanes, height = len(chart.lanes), 62 + 30 * len(chart.lanes)
        left = 14 + 7.4 * max(len(words.label(name, LONGEST_LANE)) for name, _ in chart.lanes)
    elif isinstance(chart, OwnChart):
        left, height = chart.room(size)
    figure = Figure(figsize=(size.width / 72, height / 72), dpi=72, facecolor="none")
    FigureCanvasSVG(figure)
    top, bottom, right = 10 if lanes else 28, 42, 20
    axes = figure.add_axes(
        (left / size.width, bottom / height, 1 - (left + right) / size.width, 1 - (top + bottom) / height)
    )
    axes.set_facecolor("none")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(SOFT)
    axes.tick_params(colors=SOFT, labelcolor=SOFT, length=3, width=0.8)
    axes.tick_params(axis="y", length=0)
    axes.set_axisbelow(True)
    axes.grid(axis="x" if lanes else "y", color=GRID, linewidth=1)
    figure.text(4 / size.width, 1 - 4 / height, words.label(chart.y_label, 60), color=SOFT, va="top", parse_math=False)
    figure.text(1 - right / size.width, 5 / height, words.label(chart.x_label, 60), color=SOFT, ha="right", va="bottom")
    if isinstance(chart, OwnChart):
        chart.paint(axes, size)
    elif isinstance(chart, LineChart):
        _lines(axes, chart, size)
    elif isinstance(chart, BarChart):
        _bars(axes, chart, size)
    elif isinstance(chart, HistogramChart):
        axes.stairs(chart.counts, chart.edges, fill=True, color=CURVES[0])
        ticks(axes, size, whole=all(edge == int(edge) for edge in chart.edges))
    else:
        _time_line(axes, chart, size)
    return figure


def _lines(axes: Axes, chart: LineChart, size: Size) -> None:
    if chart.logarithmic:
        axes.set_yscale("log")
    if chart.stacked:
        _stack(axes, chart, size)
    else:
        for curve in chart.curves:
            _curve(axes, curve, size)
    for at in chart.restarts:
        if chart.stacked:
            axes.axvline(at, color=PAPER, linewidth=3, zorder=3)
        axes.axvline(at, color=ALARM, linewidth=1.2, dashes=(2, 2), zorder=4 if chart.stacked else 1)
    _across(axes, chart)
    ticks(axes, size, chart.x_label == STEP, chart.share, chart.logarithmic)
    if chart.stacked:
        axes.set_ylim(0, 1)
    elif not chart.logarithmic:
        low, high = axes.get_ylim()
        if low < 0 <= min((y for c in chart.curves for _, y in c.points if y is not None), default=-1.0):
            axes.set_ylim(bottom=0)
        if low == high:
            axes.set_ylim(low - 1, high + 1)


def _across(axes: Axes, chart: LineChart) -> None:
    """From 0, so that charts of one job can be compared, unless most of the axis would be empty."""
    xs = [x for curve in chart.curves for x, _ in curve.points]
    least, most = min(xs, default=0.0), max([*xs, *chart.restarts], default=0.0)
    first = 0.0 if least < 0.5 * most or least == most else least
    margin = 0.02 * ((most - first) or 1.0)
    axes.set_xlim(first - margin, most + margin)


def _curve(axes: Axes, curve: Curve, size: Size) -> None:
    points = thin(curve.points, size.points)
    xs = [x for x, _ in points]
    ys = _ys(points)
    colour, dashes, marker = look(curve.look)
    known = sum(not math.isnan(y) for y in ys)
    style = (0, tuple(float(d) for d in dashes.split())) if dashes else "solid"
    if curve.band:
        low = thin([(x, y) for x, y, _ in curve.band], size.points)
        high = thin([(x, y) for x, _, y in curve.band], size.points)
        if len(low) == len(curve.band):
            bottom, top = _ys(low), _ys(high)
            axes.fill_between([x for x, _ in low], bottom, top, color=CURVES[colour - 1], alpha=0.22, linewidth=0)
        else:
            for edge in (low, high):
                axes.plot([x for x, _ in edge], _ys(edge), color=CURVES[colour - 1], linewidth=0.8, alpha=0.5)
    shows = marker if curve.marked or known <= 2 else _lonely(ys, marker)
    axes.plot(
        xs,
        ys,
        color=CURVES[colour - 1],
        linewidth=1.7,
        linestyle=style,
        marker=shows,
        markersize=5.5,
        markeredgecolor=PAPER,
        markeredgewidth=0.8,
        markevery=max(1, math.ceil(len(xs) / MOST_MARKERS)),
        solid_joinstyle="round",
    )
    if curve.best is not None:
        best = (curve.best.step, curve.best.value)
        axes.plot(
            [best[0]], _ys([best]), marker="o", markersize=12, markerfacecolor="none",
            markeredgecolor=INK, markeredgewidth=1.6, linestyle="none", zorder=5,
        )  # fmt: skip


def _lonely(ys: Sequence[float], marker: str) -> str:
    """A marker where a point is between gaps, and no line could show it."""
    gaps = [True, *map(math.isnan, ys), True]
    return marker if any(not gaps[i] and gaps[i - 1] and gaps[i + 1] for i in range(1, len(gaps) - 1)) else ""


def _ys(points: Points) -> list[float]:
    """As matplotlib takes them; what it has no room for is a gap."""
    return [math.nan if y is None or abs(y) > LARGEST else y for _, y in points]


def thin(points: Points, limit: int) -> Points:
    """At most `limit` (at least 6) of `points`, in order: of each stretch the lowest, the highest and a gap. Pure."""
    if len(points) <= limit:
        return points
    stretches = (limit - 2) // 3
    kept = {0, len(points) - 1}
    for i in range(stretches):
        part = range(i * len(points) // stretches, (i + 1) * len(points) // stretches)
        known = [(y, at) for at in part if (y := points[at][1]) is not None]
        if known:
            kept |= {min(known)[1], max(known)[1]}
        kept |= set([at for at in part if points[at][1] is None][:1])
    return [points[at] for at in sorted(kept)]


def _stack(axes: Axes, chart: LineChart, size: Size) -> None:
    """Areas one upon the other, in the order of the curves from below."""
    xs = [x for x, _ in chart.curves[0].points] if chart.curves else []
    every = max(1, math.ceil(len(xs) / (size.points / 3)))
    under = [0.0] * len(xs[::every])
    for curve in chart.curves:
        shares = [y or 0.0 for _, y in curve.points]
        parts = [shares[i : i + every] for i in range(0, len(shares), every)]
        over = [low + sum(part) / len(part) for low, part in zip(under, parts, strict=True)]
        colour = CURVES[look(curve.look)[0] - 1]
        if len(under) == 1:
            axes.bar(xs, [over[0] - under[0]], 0.04 * max(xs), under, color=colour, edgecolor=PAPER, linewidth=1)
        else:
            axes.fill_between(xs[::every], under, over, facecolor=colour, edgecolor=PAPER, linewidth=1)
        under = over


def _bars(axes: Axes, chart: BarChart, size: Size) -> None:
    axes.bar([at for at, _ in chart.bars], [height for _, height in chart.bars], color=CURVES[0], width=0.8)
    axes.margins(x=0.02)
    ticks(axes, size, whole=True)


def _time_line(axes: Axes, chart: TimeLine, size: Size) -> None:
    ends = [end for _, things in chart.lanes for thing in things for end in (thing.start, thing.end)]
    span = max(ends, default=0.0) or 1.0
    short, apart = span * 6 / size.width, span * 3 / size.width
    for row, (_, things) in enumerate(chart.lanes):
        colour, _, marker = look(row)
        y = len(chart.lanes) - 1 - row
        for thing in things:
            shade = ALARM if thing.bad else CURVES[colour - 1]
            if thing.end - thing.start > short:
                axes.barh(y, thing.end - thing.start, left=thing.start, height=0.42, color=shade)
        for bad, shade in ((False, CURVES[colour - 1]), (True, ALARM)):
            places = {round(t.end / apart): t.end for t in things if t.bad == bad and t.end - t.start <= short}
            at = sorted(places.values())
            axes.plot(at, [y] * len(at), marker="X" if bad else marker, markersize=7, linestyle="none", color=shade,
                      markeredgecolor=PAPER, markeredgewidth=0.8)  # fmt: skip
    axes.set_xlim(-0.02 * span, 1.03 * span)
    axes.set_ylim(-0.6, len(chart.lanes) - 0.4)
    ticks(axes, size, whole=False)
    names = [words.label(name, LONGEST_LANE) for name, _ in chart.lanes]
    axes.set_yticks(range(len(names)), names[::-1], color=INK, parse_math=False)


def ticks(axes: Axes, size: Size, whole: bool, share: bool = False, logarithmic: bool = False) -> None:
    """Of both axes; whether x counts something, y are shares of 1, or logarithmic."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    def amount(value: float, limits: tuple[float, float]) -> str:
        most = max(map(abs, limits))
        scale, unit = next(((s, u) for s, u in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if most >= 10 * s), (1.0, ""))
        return words.number(value / scale, 5) + (unit if value else "")

    def across(value: float, _: Any) -> str:
        return amount(value, axes.get_xlim())

    def upright(value: float, _: Any) -> str:
        if share:
            return words.number(100 * value, 3) + "%"
        text = words.number(value, 5) if logarithmic else amount(value, axes.get_ylim())
        return text if len(text) <= 7 else words.scientific(value)

    axes.xaxis.set_major_locator(MaxNLocator(nbins=size.ticks, steps=[1, 2, 2.5, 5, 10], integer=whole))
    axes.xaxis.set_major_formatter(FuncFormatter(across))
    if logarithmic:
        low, high = axes.get_ylim()
        few = math.log10(high / low) < 2.5 if low > 0 else True
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=8))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(axis="y", which="minor", length=0)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(upright))
