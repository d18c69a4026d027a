"""Many jobs in order of a metric, and tables of many jobs that are no wider than a screen. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from hpc_train.errors import UserError, did_you_mean
from hpc_train.jobdir.history import History
from hpc_train.report import words
from hpc_train.report.numbers import Best, best_metrics_of, best_of, elapsed_of, last_of, metrics_of, mode_of
from hpc_train.report.page import state_of, steps_of
from hpc_train.report.tables import Table

FEW = 4
"""So many jobs can have a column each; more have a row each."""
SCREEN, PADDING = 1200, 18
"""Pixels of a line of cells, of which each column has some free."""
CHARACTER = 7.6
LEAST_CELL, LONGEST_CELL, LONGEST_NAME = 6, 22, 34
"""Characters; what is longer goes on in the next line."""

Mode = Literal["min", "max"]


@dataclass(frozen=True)
class Criterion:
    """What jobs are compared by: a metric of an evaluation set ("train": of training), and what is good."""

    kind: str
    metric: str
    mode: Mode

    @property
    def title(self) -> str:
        """As "accuracy", or "held: accuracy" of a set with a name."""
        kinds = {"eval": self.metric, "train": f"{self.metric} in training"}
        return words.label(kinds.get(self.kind, f"{words.named(self.kind)}: {self.metric}"))

    def best_of(self, history: History) -> Best | None:
        """The best value that a job has reached."""
        return best_of(history, self.kind, self.metric, self.mode)


def criterion_of(histories: Sequence[History], given: str | None = None) -> Criterion | None:
    """What to compare jobs by; None where nothing was measured.

    Unless it is `given`, as METRIC or METRIC:min or METRIC:max, it is the metric by which a job keeps its best
    checkpoint or export, else the first one of the evaluations that is no loss, else the loss.

    Raises:
        UserError: No job has it, or what is good of it is not known.
    """
    known = [(kind, name) for job in histories for kind in job.evaluation_sets for name in metrics_of(job, kind)]
    known += [("train", name) for job in histories for name in metrics_of(job, "train")]
    known = list(dict.fromkeys(known))
    if given is not None:
        name, _, mode = given.partition(":")
        found = next((pair for pair in known if name in (pair[1], f"{words.named(pair[0])}.{pair[1]}")), None)
        names = list(dict.fromkeys(name for _, name in known))
        if found is None:
            near, there = did_you_mean(name, names), ", ".join(names[:20])
            raise UserError(f"--metric: no job has {name!r}; {near}there are: {there or 'none yet'}")
        if mode not in ("", "min", "max"):
            raise UserError(f"--metric: {given!r} is not allowed; allowed: {name}, {name}:min or {name}:max")
        chosen = _mode(histories, found[1]) if not mode else "min" if mode == "min" else "max"
        if chosen is None:
            raise UserError(f"--metric: whether more of {name} is better is not known; give {name}:max or {name}:min")
        return Criterion(*found, chosen)
    own = [name for job in histories for name in best_metrics_of(job)]
    for kind, name in sorted(known, key=lambda pair: (pair[0] == "train", pair[1] not in own, pair[1] == "loss")):
        if (found_mode := _mode(histories, name)) is not None:
            return Criterion(kind, name, found_mode)
    return None


def _mode(histories: Iterable[History], metric: str) -> Mode | None:
    return next((mode for job in histories if (mode := mode_of(job, metric)) is not None), None)


def ranked(histories: Sequence[History], criterion: Criterion | None) -> list[History]:
    """The jobs, best first; those without a value last, in the order given."""
    if criterion is None:
        return list(histories)
    sign = -1.0 if criterion.mode == "max" else 1.0
    bests = [criterion.best_of(history) for history in histories]
    places = sorted(range(len(bests)), key=lambda at: float("inf") if (b := bests[at]) is None else sign * b.value)
    return [histories[place] for place in places]


def ranking_table(histories: Sequence[History], labels: Sequence[str], criterion: Criterion) -> Table:
    """A row for each job, in the order given, which is that of `criterion`."""
    rows = []
    for number, (history, label) in enumerate(zip(histories, labels, strict=True), start=1):
        best = criterion.best_of(history)
        step, most = steps_of(history)
        cells = (
            words.number(best.value) if best else words.UNKNOWN,
            f"{best.step:,}" if best else words.UNKNOWN,
            words.number(last_of(history, criterion.kind, criterion.metric)),
            f"{step:,} of {most:,}" if most else f"{step:,}",
            words.duration(elapsed_of(history)),
            state_of(history),
        )
        rows.append((f"{number}" if best else words.UNKNOWN, label, *cells))
    header = ("", "job", f"best {criterion.title}", "at step", "last", "steps", "running time", "state")
    return Table(header, rows, 2)


def in_rows(table: Table, first: str = "job") -> Table:
    """A table with a column for each job as one with a row for each; without columns that nothing is known of."""
    known = [row for row in table.rows if any(cell != words.UNKNOWN for cell in row[1:])]
    rows = [(label, *(row[place] for row in known)) for place, label in enumerate(table.header[1:], start=1)]
    return Table((first, *(row[0] for row in known)), rows)


def screens(table: Table) -> Iterator[Table]:
    """`table` in parts that are a screen wide at most, each with its first column."""
    widths = [_width([row[place] for row in table.rows], name) for place, name in enumerate(table.header)]
    begin = 1
    while begin < len(widths):
        end, left = begin + 1, SCREEN - widths[0] - widths[begin]
        while end < len(widths) and widths[end] <= left:
            left -= widths[end]
            end += 1
        places = (0, *range(begin, end))
        yield Table(tuple(table.header[at] for at in places), [tuple(row[at] for at in places) for row in table.rows])
        begin = end


def _width(cells: Sequence[str], title: str) -> float:
    """Pixels of a column whose title is broken at dots and underscores."""
    parts = max(map(len, title.replace("_", ".").split(".")), default=0) + 1
    longest = max([parts, LEAST_CELL, *(len(cell) for cell in cells)])
    return min(longest, LONGEST_NAME if title == "job" else LONGEST_CELL) * CHARACTER + PADDING
