"""Pages made of templates and drawn charts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import jinja2
from markupsafe import Markup, escape

from hpc_train.report.drawing import SIZES, Size, draw, drawing, look
from hpc_train.report.figure import Chart, LineChart, OwnChart
from hpc_train.text import LINES, visible


@dataclass(frozen=True)
class Picture:
    """A chart as it appears in a page."""

    chart: Chart
    svg: Markup
    legend: tuple[tuple[Markup, str], ...]


class Hang(Protocol):
    """Draws charts in these widths."""

    def __call__(self, charts: Iterable[Chart], sizes: Sequence[Size] = SIZES) -> list[Picture]: ...


@contextmanager
def gallery() -> Iterator[Hang]:
    """Gives a function that draws charts of a page, each with ids of its own; matplotlib is set up meanwhile."""
    numbers = itertools.count(1)

    def hang(charts: Iterable[Chart], sizes: Sequence[Size] = SIZES) -> list[Picture]:
        return [Picture(chart, draw(chart, f"chart{next(numbers)}", sizes), _legend(chart)) for chart in charts]

    with drawing():
        yield hang


def _legend(chart: Chart) -> tuple[tuple[Markup, str], ...]:
    """A swatch and its meaning for each curve, where it is not clear without, and for the lines at restarts."""
    if isinstance(chart, OwnChart):
        return tuple((_small(content), label) for content, label in chart.legend)
    if not isinstance(chart, LineChart):
        return ()
    labelled = len(chart.curves) > 1 or any(curve.label != chart.y_label for curve in chart.curves)
    entries = [(_swatch(curve.look, curve.marked, chart.stacked), curve.label) for curve in chart.curves if labelled]
    if chart.restarts:
        line = '<path d="M13 0V12" stroke="var(--bad)" stroke-width="1.4" stroke-dasharray="2 2"/>'
        entries.append((_small(line), "restart"))
    return tuple(entries)


_SHAPES = {
    "o": "M17 6a4 4 0 1 1-8 0a4 4 0 1 1 8 0",
    "s": "M9.5 2.5h7v7h-7z",
    "^": "M13 1.5l4.2 8h-8.4z",
    "D": "M13 1.5l4.5 4.5l-4.5 4.5l-4.5-4.5z",
    "v": "M13 10.5l4.2-8h-8.4z",
    "P": "M11.5 1.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
}


def _swatch(index: int, marked: bool, filled: bool) -> Markup:
    colour, dashes, marker = look(index)
    if filled:
        return _small(f'<path d="M6 0h14v12h-14z" fill="var(--c{colour})"/>')
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    line = f'<path d="M0 6H26" stroke="var(--c{colour})" stroke-width="2"{dashed}/>'
    return _small(line + (f'<path d="{_SHAPES[marker]}" fill="var(--c{colour})"/>' if marked else ""))


def _small(content: str) -> Markup:
    svg = f'<svg class="swatch" viewBox="0 0 26 12" width="26" height="12" aria-hidden="true">{content}</svg>'
    return Markup(svg)


_HERE = "hpc_train.report"


def render(template: str, /, package: str = _HERE, **values: Any) -> str:
    """A template, filled in; in ASCII, so that no setting of the machine changes a character.

    Args:
        package: Which has the template; those that it builds on may be of this one.
    """
    templates = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(name, "") for name in (package, _HERE)]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.filters["breakable"] = breakable
    page = templates.get_template(template).render(**values)
    return visible(page, LINES).encode("ascii", "xmlcharrefreplace").decode("ascii")


def breakable(text: str) -> Markup:
    """A long name, escaped, that may go on in the next line after a dot, a slash or an underscore."""
    whole = str(escape(text))
    return Markup(re.sub(r"[_/]+|(?<=[a-z])\.(?=[a-z])", r"\g<0><wbr>", whole) if len(text) > 14 else whole)
