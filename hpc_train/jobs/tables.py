"""Jobs as people read them: a table of many, and all of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpc_train.jobdir.usage import KINDS, Kind, Usage
from hpc_train.jobs.layout import (
    GAP,
    WIDE,
    Column,
    asked_table,
    duration,
    in_short,
    moment,
    number,
    table_of,
    text_cell,
    with_short_titles,
)
from hpc_train.jobs.record.status import JobStatus, State
from hpc_train.jobs.schedulers import backend_named
from hpc_train.jobs.site.tiers import TierRow
from hpc_train.telemetry import staging
from hpc_train.telemetry.energy.account import amount, in_words
from hpc_train.telemetry.units import counted, size
from hpc_train.text import LINES, visible

if TYPE_CHECKING:
    from hpc_train.jobs.clean import Cleaning

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
LEAST_REASON, LEAST_ABOUT = 16, 20
LONGEST_MESSAGE = 6
"""Lines of an error; TensorFlow's have sixty, of which the first and the last matter most."""
DISPENSABLE_OF_TIERS = ("partition", "cores", "memory", "GPUs")
"""Columns that are left out where there is no room, in this order."""
DISPENSABLE = ("limit in", "examples/s", "number", "loss", "left", "evaluation")
"""Columns that are left out where there is no room, in this order."""
TITLES = ("name", "job_id", "state", "step", "loss", "evaluation")
"""The fields of JobStatus that the table always shows."""


def job_table(jobs: Sequence[JobStatus], width: int, more: Sequence[Column] = ()) -> Table:
    """One line a job, of `width` characters at most; columns without values, and those without room, are left out.

    Args:
        more: Columns that follow the name, and are not left out.
    """

    def column(title: str, values: Iterator[str], right: bool = True) -> Column:
        return Column(title, tuple(text_cell(value) for value in values), right)

    rates = [job.examples_per_sec if job.state == "RUNNING" else None for job in jobs]
    columns = [
        column("name", (job.name for job in jobs), right=False),
        *(with_short_titles(more) if width < WIDE else more),
        column("number", (job.job_id or "" for job in jobs)),
        state_column(jobs),
        column("step", map(progress_of, jobs)),
        column("examples/s", (number(rate, ",.0f") for rate in rates)),
        column("loss", (number(job.loss, ".4g") for job in jobs)),
        column("evaluation", (evaluation_of(job, short=True) for job in jobs), right=False),
        column("left", (in_short(job.secs_left) for job in jobs)),
        column("limit in", (in_short(job.limit_secs_left) for job in jobs)),
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


def state_column(jobs: Sequence[JobStatus]) -> Column:
    """The states, in their colours."""
    return Column("state", tuple(Text(job.state, COLOURS[job.state]) for job in jobs))


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
        Column(title, tuple(text_cell("" if value(row) is None else str(value(row))) for row in rows), right)
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
        lacking.add_row(text_cell(name), text_cell(problem))
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


def _facts(job: JobStatus) -> Iterator[tuple[str, RenderableType]]:
    why = f" ({visible(job.reason)})" if job.reason else ""
    yield "name", text_cell(job.name)
    yield "state", Text.assemble((job.state, COLOURS[job.state]), why)
    if job.note:
        yield "note", text_cell(job.note, "yellow")
    if job.error:
        rank = job.error.get("rank")
        by = f"rank {rank}: " if rank is not None else ""
        message = visible(str(job.error.get("message")).strip(), LINES).split("\n")
        shown = message if len(message) <= LONGEST_MESSAGE else [message[0], "…", message[-1]]
        yield "error", Text(by + "\n".join(shown), "red")
        if doing := job.error.get("doing"):
            yield "failed in", text_cell(str(doing))
        if where := job.error.get("where"):
            yield "raised at", text_cell(str(where))
    if job.exit_code is not None:
        yield "exit code", Text(str(job.exit_code))
    if step := progress_of(job):
        rate = f", {job.examples_per_sec:,.0f} examples/s" if job.examples_per_sec else ""
        loss = f", loss {job.loss:.4g}" if job.loss is not None else ""
        yield "step", Text(f"{step}{rate}{loss}")
    if evaluation := evaluation_of(job, short=False):
        yield "evaluation", text_cell(evaluation)
    if job.secs_left is not None:
        yield "time left", Text(f"about {duration(job.secs_left)}")
    if job.limit_secs_left is not None:
        yield "time limit in", Text(duration(job.limit_secs_left))
    for slow in job.slow_ranks:
        why = f"; {slow['why']}" if slow["why"] else ""
        text = (
            f"rank {slow['rank']} on {slow['host']}: a step takes it {slow['ratio']:.2f} times the others' median{why}"
        )
        yield "slow", text_cell(text, "yellow")
    if job.energy and "joules" in job.energy:
        yield "energy", text_cell(in_words(job.energy))
    if job.energy and "queue_joules" in job.energy:
        less = "; nodes that were lost may be missing" if job.restart_reason else ""
        of = "as its queue has counted its nodes, from their allocation to its end"
        yield "energy", text_cell(f"{amount(job.energy['queue_joules'])}, {of}{less}")
    if job.staged:
        yield "staged", text_cell(staging.in_words(job.staged))
    for export in job.exports:
        yield "export", text_cell(export)
    size = f", tier {job.tier}" if job.tier else ""
    ranks = counted(job.ranks, "rank") if job.ranks else "ranks unknown"
    yield "runs", text_cell(f"a {job.kind} on {ranks}{size}" + (f", {job.where}" if job.where else ""))
    if job.requeues or job.restarts > job.requeues:
        times = max(job.requeues, job.restarts)
        why = f": {job.restart_reason}" if job.restart_reason else ""
        yield "started again", text_cell(("once" if times == 1 else f"{times} times") + why)
    yield "queue", text_cell(_queue(job))
    started = job.started if _has_run(job) else None
    for name, when in (("submitted", job.submitted), ("started", started), ("updated", job.updated)):
        if when:
            yield name, Text(moment(when))
    yield "job-dir", text_cell(job.job_dir)


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


def usage_table(usages: Sequence[tuple[str, Usage]], width: int) -> Table:
    """What job-dirs take, the largest first, and all together.

    Where there is no room, the kinds that take least are counted under "other".
    """
    ordered = sorted(usages, key=lambda pair: -pair[1].total)
    sums: dict[Kind, int] = {kind: sum(usage.bytes[kind] for _, usage in ordered) for kind in KINDS}
    shown = [kind for kind in KINDS if kind != "other" and sums[kind]]

    def columns() -> list[Column]:
        rest = [kind for kind in KINDS if kind not in shown]
        named: list[tuple[str, list[Kind]]] = [("total", list(KINDS))]
        named += [(kind, [kind]) for kind in shown]
        named += [("other", rest)] if any(sums[kind] for kind in rest) else []
        found = [Column("name", tuple(text_cell(name) for name in [*(name for name, _ in ordered), "all"]))]
        for title, kinds in named:
            taken = [sum(usage.bytes[kind] for kind in kinds) for _, usage in ordered]
            found.append(Column(title, tuple(Text(size(each) if each else "") for each in [*taken, sum(taken)]), True))
        return found if len(ordered) > 1 else [replace(column, cells=column.cells[:1]) for column in found]

    while shown and sum(column.width + GAP for column in columns()) > width + GAP:
        shown.remove(min(shown, key=lambda kind: sums[kind]))
    table, _ = asked_table(columns(), width)
    return table


def cleaning_table(cleanings: Sequence[Cleaning], width: int) -> Table:
    """What can go of each job-dir, and how much that is."""
    rows = [(cleaning.job_dir.name, removal) for cleaning in cleanings for removal in cleaning.removals]
    amounts = [size(removal.bytes) for _, removal in rows]
    names = [name for name, _ in rows]
    whats = [f"{removal.kind}: {removal.what}" if removal.what else removal.kind for _, removal in rows]
    if len(rows) > 1:
        names, whats = [*names, "all"], [*whats, "altogether"]
        amounts.append(size(sum(cleaning.bytes for cleaning in cleanings)))
    columns = [
        Column("name", tuple(map(text_cell, names))),
        Column("size", tuple(map(Text, amounts)), True),
        Column("can go", tuple(map(text_cell, whats))),
    ]
    left = width - sum(column.width + GAP for column in columns[:2])
    if left < LEAST_ABOUT:
        columns[0] = columns[0].cut_inside(max(LEAST_ABOUT, columns[0].width - LEAST_ABOUT + left))
        left = width - sum(column.width + GAP for column in columns[:2])
    return table_of([*columns[:2], columns[2].cut(max(1, left))], cut=True)
