"""The page of statistics over shards."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpc_train.files import replace_text
from hpc_train.report import words
from hpc_train.report.figure import HistogramChart
from hpc_train.report.rendering import gallery, render
from hpc_train.report.tables import Table
from hpc_train.text import visible

MOST_CHARTS = 100
NUMBERS = ("missing", "infinite", "mean", "std", "min", "25%", "50%", "75%", "max")
LARGEST_SPAN = 1e300
"""Of the numbers of a chart."""
LONGEST = 40
"""Characters that are shown of a value."""


def write_statistics(found: Mapping[str, Any], sources: Sequence[str], out: Path) -> None:
    """Writes a page of what mapreduce.statistics has found in `sources`, as one HTML file that needs nothing else.

    Local. The file appears in one rename.

    Raises:
        OSError: It cannot be written.
    """
    replace_text(out, statistics_page(found, sources))


def statistics_page(found: Mapping[str, Any], sources: Sequence[str]) -> str:
    """The page as HTML, in ASCII."""
    columns = found["columns"]
    charts = [chart for name, column in columns.items() for chart in _charts(name, column)]
    with gallery() as hang:
        pictures = hang(charts[:MOST_CHARTS])
    rows = [(name, kind_of(column), *cells(column)) for name, column in columns.items()]
    frequent = [
        (name, frequent_value(value), f"{count:,}", words.percent(count / max(1, column["values"])))
        for name, column in columns.items()
        for value, count in column.get("top", ())
    ]
    return render(
        "statistics.html.jinja",
        title=f"{words.count(found['rows'], 'row')} in {words.count(found['files'], 'file')}",
        written=words.moment(time.time()),
        columns=Table(("column", "type", *NUMBERS, "distinct"), rows, 2),
        frequent=Table(("column", "value", "count", "share"), frequent, 2),
        errors=[(name, f"{100 * error:.2g}%") for name, column in columns.items() if (error := _error(column))],
        charts=pictures,
        left_out=max(0, len(charts) - MOST_CHARTS),
        sources=sources,
    )


def kind_of(column: Mapping[str, Any]) -> str:
    """The type of a column's rows, such as float32 [28, 28]."""
    shape = ["any" if length is None else str(length) for length in column["shape"]]
    dtype: str = column["dtype"]
    return f"{dtype} [{', '.join(shape)}]" if shape else dtype


def cells(column: Mapping[str, Any]) -> tuple[str, ...]:
    """NUMBERS and the number of distinct values, as they are shown; empty where a column has none."""
    quantiles = column.get("quantiles", {})
    values = {**column, **{f"{float(key):.0%}": value for key, value in quantiles.items()}}
    shown = [_cell(values[name]) if name in values else "" for name in NUMBERS]
    distinct = column.get("distinct", "")
    return (*shown, "many" if distinct is None else f"{distinct:,}" if distinct != "" else "")


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else words.number(value)


def frequent_value(value: Any) -> str:
    """A value, cut where it is long."""
    text = visible(value) if isinstance(value, str) else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _charts(name: str, column: Mapping[str, Any]) -> Iterator[HistogramChart]:
    for title, part in ((name, column), (f"{name}: lengths", column.get("lengths", {}))):
        histogram = part.get("histogram", {"counts": []})
        if histogram["counts"] and histogram["edges"][-1] - histogram["edges"][0] < LARGEST_SPAN:
            yield HistogramChart(title, "value" if part is column else "length", "values", **_as_tuples(histogram))


def _as_tuples(histogram: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(histogram[name]) for name in ("edges", "counts")}


def _error(column: Mapping[str, Any]) -> float:
    error: float = column.get("quantile_error", 0.0)
    return error
