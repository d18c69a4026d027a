"""The report of a migration: for a terminal, as Markdown, as JSON. Pure."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hpc_train.migration.counterparts.row import Verdict
from hpc_train.migration.finding import Finding
from hpc_train.migration.source import Source
from hpc_train.telemetry.units import counted
from hpc_train.text import visible

NOTHING = "nothing to migrate: no tf.estimator, no TensorFlow 1 and no Horovod is in there"
_MARGIN = "    "


@dataclass(frozen=True)
class _Entry:
    """Findings of one program that differ in their lines alone."""

    findings: tuple[Finding, ...]

    @property
    def finding(self) -> Finding:
        return self.findings[0]


def report_text(sources: Sequence[Source], width: int) -> str:
    """The report for a terminal of `width` columns: of all programs that change, and how many others there are."""
    blocks = []
    others = [source for source in sources if not source.findings]
    sources = [source for source in sources if source.findings]
    for source in sources:
        rows = textwrap.wrap(_summary(source), width)
        for entry in _entries(source):
            finding = entry.finding
            rows += ["", *_title(_places(source, entry), visible(finding.name), width)]
            rows += [_MARGIN + row for row in _does(finding, width - len(_MARGIN))]
        blocks.append("\n".join(rows))
    if others:
        what = visible(str(others[0].program.path)) if len(others) == 1 else counted(len(others), "file")
        blocks.append("\n".join(textwrap.wrap(f"{what}: {NOTHING}", width)))
    return "\n\n".join(blocks)


def report_markdown(sources: Sequence[Source]) -> str:
    """The report as a page, of the programs that change."""
    rows = ["# Migration", ""]
    for source in (each for each in sources if each.findings):
        rows += [f"## {_escaped(str(source.program.path))}", "", _escaped(_summary(source)), ""]
        for entry in _entries(source):
            finding = entry.finding
            rows += [f"### {_escaped(_places(source, entry))}: `{visible(finding.name)}`", ""]
            rows += ["```python", *visible(finding.text, "\n").split("\n"), "```", ""]
            rows += [f"{_head(finding)}{':' if finding.code else '.'}", ""]
            if finding.code:
                rows += ["```python", *visible(finding.code, "\n").split("\n"), "```", ""]
            rows += [*(f"- {_escaped(note)}" for note in finding.notes), *([""] if finding.notes else [])]
    return "\n".join(rows).rstrip("\n") + "\n"


def report_json(sources: Sequence[Source]) -> dict[str, Any]:
    """The report as plain values: `files`, each with `path`, `counts` by verdict, and `findings`."""
    return {
        "files": [
            {
                "path": str(source.program.path),
                "counts": {verdict.value: count for verdict, count in _counts(source).items()},
                "findings": [_plain(source, finding) for finding in source.findings],
            }
            for source in sources
        ]
    }


def _plain(source: Source, finding: Finding) -> dict[str, Any]:
    cell, first = source.program.cell_of(finding.line)
    return {
        "line": finding.line - first + 1,
        "cell": cell,
        "name": finding.name,
        "call": finding.text,
        "verdict": finding.verdict.value,
        "code": finding.code,
        "notes": list(finding.notes),
    }


def _entries(source: Source) -> Iterator[_Entry]:
    by_content: dict[tuple[object, ...], list[Finding]] = {}
    for finding in source.findings:
        by_content.setdefault((finding.name, finding.verdict, finding.code, finding.notes), []).append(finding)
    for findings in by_content.values():
        yield _Entry(tuple(findings))


def _summary(source: Source) -> str:
    path = visible(str(source.program.path))
    counts = ", ".join(f"{verdict.value} {count}" for verdict, count in _counts(source).items() if count)
    return f"{path}: {counted(len(source.findings), 'finding')}: {counts}"


def _counts(source: Source) -> dict[Verdict, int]:
    found = Counter(finding.verdict for finding in source.findings)
    return {verdict: found[verdict] for verdict in Verdict}


def _places(source: Source, entry: _Entry) -> str:
    """`train.py:3, 7`."""
    first, *more = (finding.line for finding in entry.findings)
    lines = dict.fromkeys(more)
    lines.pop(first, None)
    places = [source.program.place(first)]
    for line in lines:
        cell, begin = source.program.cell_of(line)
        places.append(str(line) if cell is None else f"cell {cell}:{line - begin + 1}")
    return visible(", ".join(places))


def _head(finding: Finding) -> str:
    """What is to be done, in words."""
    if finding.verdict is Verdict.KEPT and finding.name.startswith("hvd."):
        return "keep; in model.py"
    return "keep, given as" if finding.verdict is Verdict.KEPT and finding.code else finding.verdict.value


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)


def _title(places: str, name: str, width: int) -> list[str]:
    whole = f"{places}  {name}"
    return [whole] if len(whole) <= width else [*_cut(places, width), *_cut(f"  {name}", width)]


def _does(finding: Finding, width: int) -> Iterator[str]:
    notes = [visible(note) for note in finding.notes]
    if finding.code:
        yield f"{_head(finding)}:"
        for row in visible(finding.code, "\n").split("\n"):
            yield from (f"{_MARGIN}{part}" for part in _cut(row, width - len(_MARGIN)))
    elif notes:
        yield from _wrapped(f"{_head(finding)}: {notes.pop(0)}", width)
    else:
        yield _head(finding)
    for note in notes:
        yield from _wrapped(f"- {note}", width)


def _cut(row: str, width: int) -> list[str]:
    """`row` in pieces, cut after a blank, a bracket or a slash where there is one."""
    pieces = []
    while len(row) > width:
        at = max(row.rfind(char, width // 2, width) for char in " (,/") + 1 or width
        pieces.append(row[:at])
        row = row[at:]
    return [*pieces, row]


def _escaped(text: str) -> str:
    """Text of others within Markdown."""
    return "".join(f"\\{char}" if char in "\\*_[]<>#|" else char for char in visible(text))
