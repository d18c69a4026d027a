"""The report page of a benchmark: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import jinja2
from markupsafe import Markup


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
    """A part of the page: text, charts side by side where there is room, tables."""

    title: str
    paragraphs: Sequence[str] = ()
    charts: Sequence[str] = ()
    legend: str = ""
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Report:
    """A page."""

    title: str
    summary: Sequence[str]
    targets: Sequence[Target]
    sections: Sequence[Section]
    facts: Mapping[str, object] = field(default_factory=dict)


def write_report(path: Path, report: Report) -> None:
    """Writes `report` as HTML to `path`."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    page = templates.get_template("report.html.jinja").render(
        report=report, date=datetime.now(timezone.utc).date().isoformat(), svg=Markup
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
