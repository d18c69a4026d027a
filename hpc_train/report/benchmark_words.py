"""A comparison of two runs of a benchmark in words: a table, plain lines for logs, Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hpc_train.report import words
from hpc_train.report.benchmark_comparison import LEAST_REPEATS, Change, Comparison, Measured, named
from hpc_train.report.tables import Table

HEADER = ("", "by", "number", "before", "after")


def summary(found: Comparison) -> str:
    """How many numbers became slower and faster, in a line."""
    verdicts = [change.verdict for change in found.changes]
    told = [f"{verdicts.count('slower')} slower", f"{verdicts.count('faster')} faster"]
    told.append(f"{verdicts.count('within the spread')} within the spread")
    if "too few repeats" in verdicts:
        told.append(f"{verdicts.count('too few repeats')} of fewer than {LEAST_REPEATS} repeats, which tell too little")
    return f"{words.count(len(verdicts), 'number')} compared: {', '.join(told)}"


def heading(found: Comparison) -> list[str]:
    """What is compared with what, warnings, what differs, and the summary: a line each."""
    lines = [f"{found.before.benchmark}: {found.before.name}, then {found.after.name}"]
    lines += [f"warning: {warning}" for warning in found.warnings]
    lines += [f"{name}: {old}, then {new}" for name, old, new in found.differing]
    return [*lines, summary(found)]


def ending(found: Comparison) -> list[str]:
    """What was not compared, a line each."""
    lines = [f"only in {found.before.name}: {named(key)}" for key in found.only_before]
    lines += [f"only in {found.after.name}: {named(key)}" for key in found.only_after]
    return [*lines, *(f"not compared: {named(key)}: {why}" for key, why in found.unlike)]


def table(found: Comparison) -> Table:
    """A row for each number that both have."""
    return Table(HEADER, [_row(change) for change in found.changes], names=3)


def _row(change: Change) -> tuple[str, ...]:
    return change.verdict, by(change), named(change.key), _amount(change.before), _amount(change.after)


def by(change: Change) -> str:
    """By how much of what it was the number grew or shrank: "+18 %"."""
    if change.factor is None:
        return words.UNKNOWN
    percent = 100 * (change.factor - 1)
    return f"{percent:+.{0 if abs(percent) >= 9.95 else 1}f} %".replace("-", "−")


def _amount(measured: Measured) -> str:
    """With the spread: "0.82 x (0.8 to 0.85)"."""
    amount = f"{words.number(measured.value)} {'x' if measured.is_ratio else measured.unit}".strip()
    return f"{amount} ({words.number(measured.low, 3)} to {words.number(measured.high, 3)})"


def lines(found: Comparison) -> Iterator[str]:
    """Everything, in lines that stand on their own, for logs."""
    yield from heading(found)
    for verdict, much, name, before, after in table(found).rows:
        yield f"{verdict}, {much}: {name}: {before}, then {after}"
    yield from ending(found)


def markdown(found: Comparison) -> str:
    """Everything, fit for a pull request."""
    from hpc_train.report.compare import as_markdown

    first, *rest = heading(found)
    parts = [f"**{_plain(first)}**", "\n".join(f"- {_plain(line)}" for line in rest), as_markdown(table(found))]
    parts.append("\n".join(f"- {_plain(line)}" for line in ending(found)))
    return "\n\n".join(part for part in parts if part) + "\n"


def _plain(line: str) -> str:
    for special in "\\`*_[]<>#|~":
        line = line.replace(special, f"\\{special}")
    return line
