"""Jobs as people read them: a table of many, and all of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpc_train.jobs.record.status import JobStatus, State
from hpc_train.jobs.schedulers import backend_named
from hpc_train.jobs.tiers import TierRow
from hpc_train.telemetry.units import counted
from hpc_train.text import LINES, visible

COLOURS: dict[State, str] = {
    "QUEUED": "yellow",
    "PREPARING": "cyan",
    "RUNNING": "cyan",
    "REQUEUED": "yellow",
    "SUCCEEDED": "green",
    "FAILED": "red",
    "CANCELLED": "magenta",
    "STOPPED": "magenta",
    "LOST": "red",
    "UNREADABLE": "red",
}
GAP = 2
"""Blanks between columns."""
LEAST_REASON, LEAST_ABOUT = 16, 20
LONGEST_MESSAGE = 6
"""Lines of an error; TensorFlow's have sixty, of which the first and the last matter most."""
DISPENSABLE_OF_TIERS = ("partition", "cores", "memory", "GPUs")
"""Columns that are left out where there is no room, in this order."""
DISPENSABLE = ("evaluation", "limit in", "examples/s", "loss", "left", "number")
"""Columns that are left out where there is no room, in this order."""


@dataclass(frozen=True)
class Column:
    """A column of a table: its title, its cells, and whether they are aligned right."""

    title: str
    cells: tuple[Text, ...]
    right: bool = False

    @property
    def width(self) -> int:
        """Characters of the widest cell."""
        return max(len(self.title), *(cell.cell_len for cell in self.cells))

    def cut(self, width: int) -> Column:
        """The same with cells of `width` characters at most."""
        cells = tuple(cell.copy() for cell in self.cells)
        for cell in cells:
            cell.truncate(width, overflow="ellipsis")
        return replace(self, cells=cells)


def job_table(jobs: Sequence[JobStatus], width: int) -> Table:
    """One line a job, of `width` characters at most; columns without values, and those without room, are left out."""

    def column(title: str, values: Iterator[str], right: bool = True) -> Column:
        return Column(title, tuple(_text(value) for value in values), right)

    rates = [job.examples_per_sec if job.state == "RUNNING" else None for job in jobs]
    columns = [
        column("name", (job.name for job in jobs), right=False),
        column("number", (job.job_id or "" for job in jobs)),
        Column("state", tuple(Text(job.state, COLOURS[job.state]) for job in jobs)),
        column("step", map(progress_of, jobs)),
        column("examples/s", (number(rate, ",.0f") for rate in rates)),
        column("loss", (number(job.loss, ".4g") for job in jobs)),
        column("evaluation", (evaluation_of(job, short=True) for job in jobs), right=False),
        column("left", (duration(job.secs_left) for job in jobs)),
        column("limit in", (duration(job.limit_secs_left) for job in jobs)),
    ]
    why = column("", map(_why, jobs), right=False)
    columns = [one for one in columns if any(one.cells)]
    room = width - (min(why.width, LEAST_REASON) + GAP if any(why.cells) else 0)
    for title in DISPENSABLE:
        if sum(one.width + GAP for one in columns) > room:
            columns = [one for one in columns if one.title != title]
    # Cut here and not by rich, which takes as much from narrow columns as from wide ones; the name last.
    left, least = width - sum(one.width + GAP for one in columns), int(any(why.cells))
    if left < least:
        columns[0] = columns[0].cut(max(1, columns[0].width + left - least))
    if any(why.cells):
        columns.append(why.cut(max(1, left)))
    return table_of(columns, cut=True)


def table_of(columns: Sequence[Column], cut: bool) -> Table:
    """A table without lines, with dashes for what is not known.

    Where there is no room, the last column is cut, or else goes on in the next line.
    """
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for column in columns:
        last = column is columns[-1]
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=cut or not last,
            overflow="ellipsis" if cut else "fold",
            min_width=None if last else column.width,
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        dashed = [cell if cell or column.title == "" else Text("–") for cell, column in zip(row, columns, strict=True)]
        table.add_row(*dashed)
    return table


def tier_table(rows: Sequence[TierRow], width: int) -> RenderableType:
    """One line a tier, and below what cannot be had of them.

    Where there is no room, without what they are for, and what is in DISPENSABLE_OF_TIERS; then long names are cut.
    """
    named: list[tuple[str, Callable[[TierRow], object], bool]] = [
        ("tier", lambda row: row.name, False),
        ("nodes", lambda row: row.nodes, True),
        ("ranks", lambda row: row.ranks, True),
        ("cores", lambda row: row.cores, True),
        ("memory", lambda row: row.memory, True),
        ("GPUs", lambda row: row.gpus or None, True),
        ("time", lambda row: row.time, True),
        ("partition", lambda row: row.partition, False),
        ("", lambda row: row.about, False),
    ]
    columns = [
        Column(title, tuple(_text("" if value(row) is None else str(value(row))) for row in rows), right)
        for title, value, right in named
    ]
    columns = [column for column in columns if any(column.cells)]
    *rest, last = columns
    if not last.title and width - sum(one.width + GAP for one in rest) < min(last.width, LEAST_ABOUT):
        columns = rest

    def lacking_room() -> int:
        return sum((one.width if one.title else min(one.width, LEAST_ABOUT)) + GAP for one in columns) - GAP - width

    for title in DISPENSABLE_OF_TIERS:
        if lacking_room() > 0:
            columns = [one for one in columns if one.title != title]
    if (much := lacking_room()) > 0:
        columns[0] = columns[0].cut(max(LEAST_ABOUT, columns[0].width - much))
    table = table_of(columns, cut=False)
    problems = [(row.name, problem) for row in rows for problem in row.problems]
    if not problems:
        return table
    lacking = Table(box=None, pad_edge=False, show_header=False, padding=(0, GAP, 0, 0))
    lacking.add_column(no_wrap=True, style="red")
    lacking.add_column(overflow="fold")
    for name, problem in problems:
        lacking.add_row(_text(name), _text(problem))
    if max(len(name) for name, _ in problems) > width // 3:
        lines = (
            Text.assemble((visible(name), "red"), f": {visible(problem)}", overflow="fold")
            for name, problem in problems
        )
        return Group(table, Text("\nnot to be had here:", "bold"), *lines)
    return Group(table, Text("\nnot to be had here:", "bold"), lacking)


def description(job: JobStatus) -> RenderableType:
    """All that is known of one job."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _facts(job):
        table.add_row(name, value)
    lines = (job.error or {}).get("lines") or []
    if not lines:
        return table
    return Group(
        table,
        Text("last lines:", "bold"),
        *(Text("  " + visible(line, "\t"), no_wrap=True, overflow="ellipsis") for line in lines),
    )


def _text(text: str, style: str = "") -> Text:
    """A cell, of one line; what of it would be markup or act on a terminal is shown as it is."""
    return Text(visible(text), style)


def _facts(job: JobStatus) -> Iterator[tuple[str, RenderableType]]:
    why = f" ({visible(job.reason)})" if job.reason else ""
    yield "name", _text(job.name)
    yield "state", Text.assemble((job.state, COLOURS[job.state]), why)
    if job.note:
        yield "note", _text(job.note, "yellow")
    if job.error:
        rank = job.error.get("rank")
        by = f"rank {rank}: " if rank is not None else ""
        message = visible(str(job.error.get("message")).strip(), LINES).split("\n")
        shown = message if len(message) <= LONGEST_MESSAGE else [message[0], "…", message[-1]]
        yield "error", Text(by + "\n".join(shown), "red")
        if doing := job.error.get("doing"):
            yield "failed in", _text(str(doing))
        if where := job.error.get("where"):
            yield "raised at", _text(str(where))
    if job.exit_code is not None:
        yield "exit code", Text(str(job.exit_code))
    if step := progress_of(job):
        rate = f", {job.examples_per_sec:,.0f} examples/s" if job.examples_per_sec else ""
        loss = f", loss {job.loss:.4g}" if job.loss is not None else ""
        yield "step", Text(f"{step}{rate}{loss}")
    if evaluation := evaluation_of(job, short=False):
        yield "evaluation", _text(evaluation)
    if job.secs_left is not None:
        yield "time left", Text(f"about {duration(job.secs_left)}")
    if job.limit_secs_left is not None:
        yield "time limit in", Text(duration(job.limit_secs_left))
    for export in job.exports:
        yield "export", _text(export)
    size = f", tier {job.tier}" if job.tier else ""
    ranks = counted(job.ranks, "rank") if job.ranks else "ranks unknown"
    yield "runs", _text(f"a {job.kind} on {ranks}{size}" + (f", {job.where}" if job.where else ""))
    if job.requeues or job.restarts > job.requeues:
        times = max(job.requeues, job.restarts)
        yield "started again", Text("once" if times == 1 else f"{times} times")
    yield "queue", _text(_queue(job))
    started = job.started if _has_run(job) else None
    for name, when in (("submitted", job.submitted), ("started", started), ("updated", job.updated)):
        if when:
            yield name, Text(moment(when))
    yield "job-dir", _text(job.job_dir)


def _queue(job: JobStatus) -> str:
    words = backend_named(job.backend).words
    if words is None:
        return "none: started by hand"
    if job.job_id is None:
        return "its number is not known" if job.has_ended else "not in the queue yet"
    return f"{words} {job.job_id}"


def _has_run(job: JobStatus) -> bool:
    """Whether its start is one, not the time of its cancelling, which Slurm puts there: runs update the status."""
    if job.state != "CANCELLED" or job.started is None:
        return True
    return job.updated is not None and job.updated >= job.started


def _why(job: JobStatus) -> str:
    why = job.reason or ""
    if job.state == "FAILED" and job.error:
        rank = job.error.get("rank")
        doing = f" ({job.error['doing']})" if job.error.get("doing") else ""
        message = str(job.error.get("message") or "").strip().partition("\n")[0]
        why = (f"rank {rank}: " if rank is not None else "") + message + doing
    return why.partition("\n")[0]


def progress_of(job: JobStatus) -> str:
    """Such as 120/2,000; empty where no step is known. Pure."""
    if job.step is None:
        return ""
    return f"{job.step:,}" + (f"/{job.max_steps:,}" if job.max_steps else "")


def evaluation_of(job: JobStatus, short: bool) -> str:
    """The metrics of the last evaluation; `short`: one of them, not the loss if there is another. Pure."""
    values = {k: v for k, v in (job.evaluation or {}).items() if k != "step" and isinstance(v, int | float)}
    if not values:
        return ""
    if short:
        name = next((name for name in values if name != "loss"), "loss")
        return f"{name} {values[name]:.4g}"
    shown = "  ".join(f"{name} {value:.4f}" for name, value in values.items())
    step = (job.evaluation or {}).get("step")
    return shown if step is None else f"{shown}  (step {step:,})"


def number(value: float | None, how: str) -> str:
    """Formatted; empty where unknown. Pure."""
    return "" if value is None else format(value, how)


def duration(secs: float | None) -> str:
    """Such as 1:02:03; empty where unknown. Pure."""
    return "" if secs is None else str(timedelta(seconds=max(0, round(secs))))


def moment(when: float) -> str:
    """Local time, to the second."""
    return datetime.fromtimestamp(when).astimezone().isoformat(" ", "seconds")
