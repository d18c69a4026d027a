"""Figures drawn as SVG with matplotlib, in the look of the package's own reports: a width for phones, one for screens.

Colours are the page's CSS variables, so that they follow light, dark and print.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import StringIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from markupsafe import Markup, escape

from hpc_train.report import words
from hpc_train.report.drawing import SIZES, Size, drawing, look
from hpc_train.report.svg import ALARM, CURVES, GRID, INK, PAPER, SOFT, for_page
from support.figures import Figure, Line, LinePlot, StackedBars

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

LETTER = 6.6
"""Width of a letter in CSS pixels, about."""
LEGEND_ROW, SWATCH = 18, 24
BAR_ROW = {"narrow": 40, "wide": 30}
PLOT_HEIGHT = {"narrow": 215, "wide": 270}
TOP, BOTTOM, RIGHT = 22, 42, 20
LIMIT_APART = 15
LONGEST = 34


def draw(figure: Figure, key: str = "figure") -> str:
    """A figure in the wide size, as an `<svg>` element for a page that has the colours; `key`: of its ids."""
    with drawing():
        return _draw(figure, SIZES[-1], key)


def draw_all(figure: Figure, key: str) -> Markup:
    """A figure in all widths, as SVG elements of the classes `narrow` and `wide`."""
    with drawing():
        return Markup("".join(_draw(figure, size, f"{key}{size.name[0]}") for size in SIZES))


def _draw(figure: Figure, size: Size, key: str) -> str:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    labels = [line.label for line in figure.lines] if isinstance(figure, LinePlot) else list(figure.parts)
    places, rows = _legend_places(labels, size.width)
    legend = LEGEND_ROW * rows if isinstance(figure, StackedBars) or len(labels) > 1 else 0
    if isinstance(figure, LinePlot):
        left, height = 52, legend + PLOT_HEIGHT[size.name]
    else:
        left, height = _label_width(figure, size), legend + 6 + BOTTOM + BAR_ROW[size.name] * len(figure.bars)
    canvas = Canvas(figsize=(size.width / 72, height / 72), dpi=72, facecolor="none")
    FigureCanvasSVG(canvas)
    top = legend + (TOP if isinstance(figure, LinePlot) else 6)
    box = (left / size.width, BOTTOM / height, 1 - (left + RIGHT) / size.width, 1 - (top + BOTTOM) / height)
    axes = canvas.add_axes(box)
    _bare(axes, "y" if isinstance(figure, LinePlot) else "x")
    if legend:
        _legend(canvas, figure, places, (size.width, height))
    x_label = figure.x_label if isinstance(figure, LinePlot) else figure.y_label
    canvas.text(1 - RIGHT / size.width, 5 / height, words.label(x_label, 56), color=SOFT, ha="right", va="bottom")
    if isinstance(figure, LinePlot):
        y_label = words.label(figure.y_label, 60)
        canvas.text(4 / size.width, 1 - (legend + 3) / height, y_label, color=SOFT, va="top")
        _lines(axes, figure, size)
    else:
        _bars(axes, figure, size)
    text = StringIO()
    canvas.savefig(text, format="svg", metadata={"Date": None})
    return for_page(text.getvalue(), key, _escaped(figure.title), _escaped(figure.description), size.name)


def _escaped(text: str) -> str:
    """Without characters that XML has no room for."""
    return str(escape("".join(c if c.isprintable() else " " for c in text)))


def _bare(axes: Axes, grid: Literal["x", "y"]) -> None:
    axes.set_facecolor("none")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(SOFT)
    axes.tick_params(colors=SOFT, labelcolor=SOFT, length=3, width=0.8)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(which="minor", length=0)
    axes.set_axisbelow(True)
    axes.grid(axis=grid, color=GRID, linewidth=1)


def _legend_places(labels: Sequence[str], width: int) -> tuple[list[tuple[float, int]], int]:
    """Where each entry begins, and in which row; and how many rows there are."""
    places: list[tuple[float, int]] = []
    x, row = 4.0, 0
    for label in labels:
        long = SWATCH + 6 + LETTER * len(words.label(label, 44)) + 14
        if x > 4 and x + long > width:
            x, row = 4.0, row + 1
        places.append((x, row))
        x += long
    return places, row + 1


def _legend(canvas: Canvas, figure: Figure, places: Sequence[tuple[float, int]], size: tuple[int, int]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    width, height = size
    entries: Sequence[Line | str] = figure.lines if isinstance(figure, LinePlot) else figure.parts
    for index, (entry, (x, row)) in enumerate(zip(entries, places, strict=True)):
        y = 1 - (LEGEND_ROW * row + 9) / height
        if isinstance(entry, Line):
            xs = [(x + at) / width for at in (0, SWATCH / 2, SWATCH)]
            canvas.add_artist(Line2D(xs, [y] * 3, markevery=[1], **_style(entry, index)))
        else:
            corner, shape = ((x + SWATCH - 12) / width, y - 5 / height), (12 / width, 10 / height)
            canvas.add_artist(Rectangle(corner, *shape, facecolor=_colour(index), edgecolor="none"))
        label = words.label(entry.label if isinstance(entry, Line) else entry, 44)
        canvas.text((x + SWATCH + 6) / width, y, label, color=INK, va="center_baseline")


def _colour(index: int) -> str:
    return CURVES[look(index)[0] - 1]


def _style(line: Line, index: int) -> dict[str, Any]:
    colour, dashes, marker = look(index)
    pattern = tuple(float(length) for length in (dashes or "5 3").split())
    return {
        "color": CURVES[colour - 1],
        "linewidth": 1.7,
        "linestyle": (0, pattern) if line.dashed else "solid",
        "marker": marker if line.marked else "",
        "markersize": 5.5,
        "markeredgecolor": PAPER,
        "markeredgewidth": 0.8,
        "solid_joinstyle": "round",
    }


def _lines(axes: Axes, plot: LinePlot, size: Size) -> None:
    if plot.log_x:
        axes.set_xscale("log")
    if plot.log_y:
        axes.set_yscale("log")
    for index, line in enumerate(plot.lines):
        if line.band:
            xs, lows, highs = zip(*line.band, strict=True)
            axes.fill_between(xs, lows, highs, color=_colour(index), alpha=0.22, linewidth=0)
        axes.plot([x for x, _ in line.points], [y for _, y in line.points], **_style(line, index))
    for _, y in plot.limits:
        axes.axhline(y, color=ALARM, linewidth=1.3, dashes=(6, 3), zorder=1.5)
    if not plot.log_y:
        _from_zero(axes, plot)
    elif any(y > 0 for _, y in plot.limits):
        low, high = axes.get_ylim()
        axes.set_ylim(low, max(high, 1.6 * max(y for _, y in plot.limits)))
    _x_ticks(axes, plot, size)
    _y_ticks(axes, plot.log_y)
    _limit_labels(axes, plot)


def _from_zero(axes: Axes, plot: LinePlot) -> None:
    heights = [y for line in plot.lines for _, y in line.points]
    heights += [y for line in plot.lines for edge in line.band for y in edge[1:]] + [y for _, y in plot.limits]
    if heights and min(heights) >= 0:
        axes.set_ylim(0, 1.08 * max(heights) or 1.0)


def _limit_labels(axes: Axes, plot: LinePlot) -> None:
    """Above each line at the right end; one too close to the one below it, at the left."""
    before, right = -math.inf, False
    for label, y in sorted(plot.limits, key=lambda limit: limit[1]):
        height = axes.transData.transform((axes.get_xlim()[0], y))[1]
        right = not (right and height - before < LIMIT_APART)
        before = height
        axes.annotate(
            words.label(label, 44),
            (1 if right else 0, y),
            (-2 if right else 2, 2),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right" if right else "left",
            va="bottom",
            color=ALARM,
            bbox={"facecolor": PAPER, "alpha": 0.6, "edgecolor": "none", "pad": 0.5},
            zorder=4,
        )


def _x_ticks(axes: Axes, plot: LinePlot, size: Size) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

    xs = sorted({x for line in plot.lines for x, _ in line.points})
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _amount(x, plot.log_x)))
    if plot.log_x:
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
        few = bool(xs) and xs[-1] <= 2048 * xs[0]
        if few:
            first, last = math.floor(math.log2(xs[0])), math.ceil(math.log2(xs[-1]))
            every = math.ceil((last - first + 1) / (size.ticks + 3))
            axes.xaxis.set_major_locator(FixedLocator([2.0**n for n in range(first, last + 1, every)]))
        else:
            axes.xaxis.set_major_locator(LogLocator(numticks=size.ticks + 2))
        return
    whole = all(x == int(x) for x in xs)
    apart = min((b - a for a, b in pairwise(xs)), default=0.0)
    if len(xs) == 1 or (1 < len(xs) <= size.ticks + 2 and apart >= 0.06 * (xs[-1] - xs[0])):
        axes.xaxis.set_major_locator(FixedLocator(xs))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=size.ticks, steps=[1, 2, 2.5, 5, 10], integer=whole))


def _y_ticks(axes: Axes, logarithmic: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if logarithmic:
        low, high = axes.get_ylim()
        few = low > 0 and math.log10(high / low) < 2.5
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=8))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _amount(y, logarithmic)))


def _amount(value: float, short: bool = False) -> str:
    """A number as a tick has room for: 0.5, 64, 20k, 1M; `short`: 1k instead of 1,000."""
    scales = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e3, 1e3 if short else 1e4, "k"))
    scale, unit = next(((scale, unit) for scale, least, unit in scales if abs(value) >= least), (1.0, ""))
    return words.number(value / scale, 3 if unit else 4) + unit


def _label_width(bars: StackedBars, size: Size) -> int:
    if size.name == "narrow":
        return 8  # labels stand above the bars
    return round(10 + LETTER * max((len(words.label(label, LONGEST)) for label, _ in bars.bars), default=0))


def _bars(axes: Axes, bars: StackedBars, size: Size) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    rows = range(len(bars.bars) - 1, -1, -1)
    under = [0.0] * len(bars.bars)
    most = max((sum(own.values()) for _, own in bars.bars), default=0.0) or 1.0
    axes.set_xlim(0, 1.14 * most)
    thick, above = (0.4, 0.75) if size.name == "narrow" else (0.62, 0.5)
    axes.set_ylim(-0.5, len(bars.bars) - 1 + above)
    for index, part in enumerate(bars.parts):
        long = [own.get(part, 0.0) for _, own in bars.bars]
        axes.barh(rows, long, thick, under, color=_colour(index), edgecolor=PAPER, linewidth=1)
        for row, low, width in zip(rows, under, long, strict=True):
            text = words.number(width, 2)
            if width / most * 0.6 * size.width > LETTER * len(text) + 4:
                axes.text(low + width / 2, row, text, color=PAPER, ha="center", va="center_baseline", size=11)
        under = [low + width for low, width in zip(under, long, strict=True)]
    for row, total in zip(rows, under, strict=True):
        axes.annotate(
            words.number(total, 3), (total, row), (4, 0), textcoords="offset points", va="center_baseline", color=INK
        )
    names = [words.label(label, LONGEST) for label, _ in bars.bars]
    if size.name == "narrow":
        axes.set_yticks([])
        for row, name in zip(rows, names, strict=True):
            axes.annotate(name, (0, row), (0, 9), textcoords="offset points", va="bottom", color=INK)
    else:
        axes.set_yticks(list(rows), names, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=size.ticks, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _amount(x)))
