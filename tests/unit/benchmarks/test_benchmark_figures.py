"""Figures of benchmarks say what they show in words and numbers, and are drawn whatever the numbers are."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support import REPOSITORY

BENCHMARKS = REPOSITORY / "benchmarks"


@pytest.fixture(autouse=True)
def _imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def efficiency(**more):
    from support.figures import Line, LinePlot

    lines = [
        Line("measured", [(1, 1.0), (2, 0.93), (8, 0.81)], band=[(2, 0.9, 0.95), (8, 0.78, 0.84)]),
        Line("ideal", [(1, 1.0), (16, 1.0)], dashed=True, marked=False),
    ]
    given = {"log_x": True, "limits": [("memory", 0.88)], **more}
    return LinePlot("Efficiency", "ranks", "efficiency", lines, **given)


def split():
    from support.figures import StackedBars

    return StackedBars(
        "Split", "ms a step", [("1 rank", {"forward": 5.0, "other": 0.5}), ("2", {"wait": 1.25, "forward": 5.5})]
    )


def test_a_plot_is_also_a_table_and_a_text():
    plot = efficiency()
    assert plot.header == ("ranks", "measured", "ideal", "memory")
    assert plot.rows == [
        ("1", "1", "1", "0.88"),
        ("2", "0.93 (0.9 to 0.95)", "", "0.88"),
        ("8", "0.81 (0.78 to 0.84)", "", "0.88"),
        ("16", "", "1", "0.88"),
    ]
    assert plot.description == (
        "efficiency over ranks. measured: 1 at 1, 0.81 at 8. ideal: 1 at 1, 1 at 16. memory: 0.88."
    )


def test_bars_have_their_parts_in_one_order_and_a_sum():
    bars = split()
    assert bars.header == ("ms a step", "forward", "other", "wait", "sum")
    assert bars.rows == [("1 rank", "5", "0.5", "–", "5.5"), ("2", "5.5", "–", "1.25", "6.75")]


def texts(svg: str) -> list[str]:
    return [
        "".join(element.itertext()) for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")
    ]


def test_a_drawing_has_axes_units_legend_and_limits_as_text():
    from support.drawing import draw

    shown = texts(draw(efficiency()))
    for words in ("ranks", "efficiency", "measured", "ideal", "memory", "1", "2", "8", "16", "0.5"):
        assert words in shown
    shown = texts(draw(split()))
    for words in ("ms a step", "forward", "wait", "1 rank", "5.5", "6.75"):
        assert words in shown


def test_bytes_have_ticks_at_powers_of_ten_and_ranks_at_powers_of_two():
    from support.drawing import draw
    from support.figures import Line, LinePlot

    sizes = [4.0**n for n in range(1, 15)]
    plot = LinePlot("Bandwidth", "bytes", "GB/s", [Line("a", [(s, s / 1e6) for s in sizes])], log_x=True, log_y=True)
    shown = texts(draw(plot))
    assert {"100", "10k", "1M"} <= set(shown)
    assert "64" not in shown


def test_drawings_take_the_colours_of_the_page_and_have_ids_of_their_own():
    from support.drawing import draw_all

    both = str(draw_all(efficiency(), "figure7"))
    assert re.findall(r'<svg class="(\w+)"', both) == ["narrow", "wide"]
    assert "var(--c1)" in both
    assert "var(--bad)" in both
    assert not re.search(r"#[0-9a-f]{6}", both), "a colour that does not follow light and dark"
    ids = re.findall(r' id="([^"]+)"', both)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(#|href="#)([^)"]+)', both)) <= set(ids)
    assert both.count("<desc") == 2
    assert all(name.startswith("figure7") for name in ids)


NUMBERS = st.floats(min_value=1e-9, max_value=1e12)


@settings(max_examples=8, phases=[Phase.generate])
@given(
    points=st.lists(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=4), max_size=8),
    limits=st.lists(st.tuples(st.text(max_size=60), NUMBERS), max_size=3),
    log_x=st.booleans(),
    log_y=st.booleans(),
)
def test_any_plot_can_be_drawn(points: list, limits: list, log_x: bool, log_y: bool):
    from support.drawing import draw_all
    from support.figures import Line, LinePlot

    lines = [Line(f"<{n}> & $x$", sorted(own), [(x, y, 2 * y) for x, y in sorted(own)]) for n, own in enumerate(points)]
    plot = LinePlot("Any <plot>", "ranks", "GB/s", lines, log_x, log_y, limits)
    ElementTree.fromstring(f"<div>{draw_all(plot, 'a')}</div>")
    assert all(len(row) == len(plot.header) for row in plot.rows)


@settings(max_examples=8, phases=[Phase.generate])
@given(
    st.lists(
        st.tuples(st.text(max_size=50), st.dictionaries(st.text(max_size=12), st.floats(0, 1e9), max_size=9)),
        max_size=6,
    )
)
def test_any_bars_can_be_drawn(bars: list):
    from support.drawing import draw_all
    from support.figures import StackedBars

    figure = StackedBars("Any", "ms", bars)
    ElementTree.fromstring(f"<div>{draw_all(figure, 'a')}</div>")
    assert all(len(row) == len(figure.header) for row in figure.rows)


def test_the_page_needs_nothing_else_and_knows_dark_narrow_and_print(tmp_path: Path):
    from support.report import Report, Section, write_report

    write_report(tmp_path / "a.html", Report("A", [], [], [Section("S", figures=[efficiency(), split()])], {}))
    page = (tmp_path / "a.html").read_text()
    assert "src=" not in page
    assert not re.search(r"https?:|@import|url\((?!#)", page)
    for words in ("prefers-color-scheme: dark", "@media print", "max-width: 36rem", "<figcaption>Efficiency"):
        assert words in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_bars_of_ratios_say_their_numbers_in_words():
    from support.charts import OTHER_COLOUR, OUR_COLOUR, Bar, bars, legend

    svg = bars("Shares", [Bar("a < b", 0.371, OUR_COLOUR, 0.5), Bar("none", None, OTHER_COLOUR)], 1.0)
    assert 'aria-label="Shares. a &lt; b: 0.37; none: not measured"' in svg
    ElementTree.fromstring(svg)
    label = "another program, and what it ran on"
    end_of_label = re.search(r'<text x="(\d+)"[^>]*>another', bars("", [Bar(label, 1.0, OUR_COLOUR)], 1.0))
    assert float(end_of_label[1]) > 6.6 * len(label), "a long label begins within the drawing"
    many = [(OUR_COLOUR, "a long name of a way"), (OTHER_COLOUR, "another long name"), (OUR_COLOUR, "and a third one")]
    ElementTree.fromstring(legend(many))
    assert float(re.search(r'viewBox="0 0 420 (\d+)"', legend(many))[1]) > float(
        re.search(r'viewBox="0 0 420 (\d+)"', legend(many[:1]))[1]
    ), "entries that do not fit go into the next row"
