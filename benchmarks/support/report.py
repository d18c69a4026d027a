"""The report of a benchmark, and the page that it becomes: one HTML file that needs nothing else."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import jinja2
from markupsafe import Markup

from hpc_train import report as monitoring_report
from support.drawing import draw_all
from support.figures import Figure

HERE = Path(__file__).parent
PAGES = Path(monitoring_report.__file__).parent


@dataclass(frozen=True)
class Target:
    """A number to reach.

    Attributes:
        measured: For each part that the target speaks of: its name, the number, and whether it reaches the target.
    """

    what: str
    wanted: str
    measured: Sequence[tuple[str, str, bool]]

    @property
    def reached(self) -> bool:
        """All parts reach it; False where nothing was measured."""
        return bool(self.measured) and all(reached for _, _, reached in self.measured)

    @property
    def state(self) -> str:
        """In words."""
        return "reached" if self.reached else "not reached" if self.measured else "not measured"

    def __str__(self) -> str:
        found = ", ".join(f"{part}: {value}{'' if ok else ' (missed)'}" for part, value, ok in self.measured)
        return (
            f"{'reached    ' if self.reached else 'NOT REACHED'}  {self.what} {self.wanted}: {found or 'not measured'}"
        )


@dataclass(frozen=True)
class Table:
    """Rows of text: `names` columns that name the row, then numbers. With `fold`, it opens under that title."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int = 1
    fold: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page: text, charts side by side where there is room, figures with their numbers, tables.

    Attributes:
        charts, legend: Drawings as SVG, see charts.py.
    """

    title: str
    paragraphs: Sequence[str] = ()
    charts: Sequence[str] = ()
    legend: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()


@dataclass(frozen=True)
class Report:
    """A report."""

    title: str
    summary: Sequence[str]
    targets: Sequence[Target]
    sections: Sequence[Section]
    facts: Mapping[str, object] = field(default_factory=dict)


def as_html(report: Report, date: str) -> str:
    """The report as a page."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader([HERE, PAGES]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    numbers = iter(range(1, 10**6))
    return templates.get_template("report.html.jinja").render(
        report=report, date=date, svg=Markup, draw=lambda figure: draw_all(figure, f"figure{next(numbers)}")
    )


def write_report(path: Path, report: Report) -> None:
    """Writes `report` as HTML to `path`, in one rename."""
    replace_text(path, as_html(report, today()))


def today() -> str:
    """The date, in UTC."""
    return datetime.now(timezone.utc).date().isoformat()


def replace_text(path: Path, text: str) -> None:
    """Replaces `path` by `text` in one rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def colours() -> str:
    """The CSS that gives the colours of a page, light and dark."""
    page, _, _ = (PAGES / "page.css").read_text(encoding="utf-8").partition("* {")  # begins with the colours
    own = (HERE / "colours.css").read_text(encoding="utf-8")
    return re.sub(r"\s*\n\s*", " ", page + own).strip()
