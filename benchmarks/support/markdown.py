"""The report of a benchmark as Markdown, with its drawings as files beside it."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from hpc_train.report.compare import as_markdown
from hpc_train.report.tables import Table as PlainTable
from support.drawing import draw
from support.report import Report, Section, Table, Target, colours


def as_text(report: Report, date: str) -> tuple[str, dict[str, str]]:
    """The report as Markdown, and the drawings that it shows, by the names of their files."""
    drawings: dict[str, str] = {}
    parts = [f"# {_plain(report.title)}", date, *map(_plain, report.summary)]
    if report.targets:
        header = ("What", "Target", "Measured", "")
        parts += ["## Targets", _table(Table(header, [_target(target) for target in report.targets], names=4))]
    for section in report.sections:
        parts += [f"## {_plain(section.title)}", *_section(section, drawings)]
    facts = Table(("", ""), [(name, str(value)) for name, value in report.facts.items()], names=2)
    parts += ["## Machine and versions", _table(facts)] if report.facts else []
    return "\n\n".join(parts) + "\n", drawings


def _target(target: Target) -> tuple[str, ...]:
    told = "; ".join(f"{part}: {value}{'' if ok else ' (missed)'}" for part, value, ok in target.measured)
    return target.what, target.wanted, told or "not measured", target.state


def _section(section: Section, drawings: dict[str, str]) -> Iterator[str]:
    yield from map(_plain, section.paragraphs)
    for chart in (*section.charts, section.legend if section.charts else ""):
        if chart:
            told = re.search(r'aria-label="([^"]*)"', chart)
            yield _image(section.title, html.unescape(told[1]) if told else section.title, chart, drawings)
    for figure in section.figures:
        yield f"**{_plain(figure.title)}**"
        yield _image(figure.title, figure.description, draw(figure), drawings)
        if figure.note:
            yield _plain(figure.note)
        yield _folded(f"{figure.title} in numbers", Table(figure.header, figure.rows))
    for table in section.tables:
        yield _folded(table.fold, table) if table.fold else _table(table)


def _image(title: str, told: str, svg: str, drawings: dict[str, str]) -> str:
    words = "-".join(re.findall(r"[a-z0-9]+", title.lower())[:8]) or "figure"
    names = (words, *(f"{words}-{number}" for number in range(2, 10**6)))
    name = next(name for name in (f"{name}.svg" for name in names) if name not in drawings)
    drawings[name] = standalone(svg)
    alt = re.sub(r"[\[\]\\\n]", " ", told)
    return f"![{alt}]({name})"


def standalone(svg: str) -> str:
    """An `<svg>` element of a page as a file of its own: with its colours, and paper under it."""
    opening, closed, rest = svg.partition(">")
    width, height = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', opening)[0]
    size = f' xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
    style = f"<style>{colours()} text {{ font-family: system-ui, sans-serif; }}</style>"
    paper = '<rect width="100%" height="100%" fill="var(--paper)"/>'
    return f"{opening}{size}{closed}{style}{paper}{rest}\n"


def _folded(title: str, table: Table) -> str:
    return f"<details><summary>{html.escape(title)}</summary>\n\n{_table(table)}\n\n</details>"


def _table(table: Table) -> str:
    return as_markdown(PlainTable(tuple(table.header), [tuple(row) for row in table.rows], table.names))


def _plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*_\[\]<>#|~])", r"\\\1", " ".join(text.split()))
