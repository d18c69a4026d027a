"""The report of a benchmark: targets, sections of text, figures and tables; written as Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hpc_train.report import words
from hpc_train.report.compare import as_markdown
from hpc_train.report.tables import Table as PlainTable
from support.drawing import Figure, Line, draw
from support.records import Found, Record

Part = tuple[str, str, bool]
"""Of a target: its name, what was measured, and whether that is enough."""


@dataclass(frozen=True)
class Target:
    """A number to reach; `measured`: each part that the target speaks of."""

    what: str
    wanted: str
    measured: Sequence[Part]

    @property
    def reached(self) -> bool:
        """All parts reach it; False where nothing was measured."""
        return bool(self.measured) and all(reached for _, _, reached in self.measured)

    @property
    def parts(self) -> str:
        """In words."""
        told = (f"{part}: {value}{'' if ok else ' (missed)'}" for part, value, ok in self.measured)
        return "; ".join(told) or "not measured"

    def __str__(self) -> str:
        return f"{'reached    ' if self.reached else 'NOT REACHED'}  {self.what} {self.wanted}: {self.parts}"


def at_least(
    what: str, wanted: str, found: Iterable[tuple[str, float | None]], least: float, digits: str = ".3g"
) -> Target:
    """A target for numbers by name, of which those that are None were not measured."""
    return Target(what, wanted, [(name, f"{n:{digits}}", n >= least) for name, n in found if n is not None])


def at_most(
    what: str, wanted: str, found: Iterable[tuple[str, float | None]], most: float, digits: str = ".3g"
) -> Target:
    """As `at_least`, for numbers that must not be larger."""
    return Target(what, wanted, [(name, f"{n:{digits}}", n <= most) for name, n in found if n is not None])


@dataclass(frozen=True)
class Table:
    """Rows of text: `names` columns that name the row, then numbers. With `fold`, it opens under that title."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int = 1
    fold: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page: text, figures, tables."""

    title: str
    text: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Report:
    """A report; `facts`: of machine and versions, more than every report has."""

    title: str
    summary: Sequence[str]
    targets: Sequence[Target]
    sections: Sequence[Section]
    facts: Mapping[str, object] = field(default_factory=dict)


def numbers(
    records: Iterable[Record], names: Mapping[str, str], more: Mapping[str, str] | None = None, fold: str = ""
) -> Table:
    """Records as a table: columns of config values by header, the value with its spread, a ratio for each baseline.

    Args:
        more: Other numbers of the config, by header.
    """
    found, more = Found(records), more or {}
    units = {record.unit for record in found}
    mixed = len(units) != 1
    baselines = [one for one in dict.fromkeys(record.baseline for record in found) if one is not None]
    rows = []
    for record in found.cases():
        own = {one.baseline: one for one in found.where(case=record.case)}
        cells = [f"{record.ranks if key == 'ranks' else record.config.get(key, '')}" for key in names.values()]
        low, high = record.spread
        value = words.number(record.value)
        cells += [f"{value} {record.unit}" if mixed else value, f"{words.number(low, 3)} to {words.number(high, 3)}"]
        cells += [words.number(record.config.get(key), 3) for key in more.values()]
        rows.append([*cells, *(_ratio(own.get(baseline)) for baseline in baselines)])
    header = (*names, "value" if mixed else units.pop(), "lowest to highest", *more)
    return Table((*header, *(f"x {baseline}" for baseline in baselines)), rows, len(names), fold)


def curves(
    records: Iterable[Record],
    x: str,
    y: Callable[[Record], float],
    band: Callable[[Record], Sequence[float]] | None = None,
    dashed: str = "",
) -> list[Line]:
    """A line for each way of the records, over what their config calls `x`. `dashed`: the way that has no markers."""
    found = Found(records)
    lines = []
    for way in found.each("way"):
        own = sorted(found.where(way=way).cases(), key=lambda one: one.config[x])
        bands = [(one.config[x], *band(one)) for one in own] if band and way != dashed else ()
        lines.append(Line(way, [(one.config[x], y(one)) for one in own], bands, way == dashed))
    return lines


def _ratio(record: Record | None) -> str:
    if record is None or record.ratio is None:
        return ""
    low, high = record.config["ratio_spread"]
    return f"{words.number(record.ratio, 3)} ({words.number(low, 3)} to {words.number(high, 3)})"


def as_text(report: Report, date: str) -> tuple[str, dict[str, str]]:
    """The report as Markdown, and the drawings that it shows, by the names of their files."""
    drawings: dict[str, str] = {}
    parts = [f"# {_plain(report.title)}", date, *map(_plain, report.summary)]
    if report.targets:
        rows = [
            (one.what, one.wanted, one.parts, "reached" if one.reached else "not reached" if one.measured else "")
            for one in report.targets
        ]
        parts += ["## Targets", _table(Table(("What", "Target", "Measured", ""), rows, names=4))]
    for section in report.sections:
        parts += [f"## {_plain(section.title)}", *_section(section, drawings)]
    facts = Table(("", ""), [(name, str(value)) for name, value in report.facts.items()], names=2)
    parts += ["## Machine and versions", _table(facts)] if report.facts else []
    return "\n\n".join(parts) + "\n", drawings


def _section(section: Section, drawings: dict[str, str]) -> Iterator[str]:
    yield from map(_plain, section.text)
    for figure in section.figures:
        base = "-".join(re.findall(r"[a-z0-9]+", f"{section.title} {figure.title}".lower())[:12]) or "figure"
        names = (f"{base}{f'-{n}' if n > 1 else ''}.svg" for n in range(1, 10**6))
        name = next(name for name in names if name not in drawings)
        drawings[name] = draw(figure)
        alt = re.sub(r"[\[\]\\\n]", " ", f"{figure.title}. {figure.words}")
        yield f"![{alt}]({name})"
    for table in section.tables:
        title = html.escape(table.fold)
        yield f"<details><summary>{title}</summary>\n\n{_table(table)}\n\n</details>" if title else _table(table)


def _table(table: Table) -> str:
    return as_markdown(PlainTable(tuple(table.header), [tuple(row) for row in table.rows], table.names))


def _plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*_\[\]<>#|~])", r"\\\1", " ".join(text.split()))
