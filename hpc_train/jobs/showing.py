"""Jobs as people read them: a table of many, and all of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpc_train.jobs.state import Standing, State

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
}


def job_table(standings: Sequence[Standing]) -> Table:
    """One line a job."""
    table = Table(box=None, pad_edge=False)
    for name in ("name", "number", "state", "step", "examples/s", "loss", "evaluation", "left", "limit in", ""):
        right = name in ("number", "step", "examples/s", "loss", "left", "limit in")
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "")
    for stands in standings:
        table.add_row(
            stands.name,
            stands.job_id or "–",
            Text(stands.state, COLOURS[stands.state]),
            step_of(stands) or "–",
            number(stands.examples_per_sec if stands.state == "RUNNING" else None, ",.0f"),
            number(stands.loss, ".4g"),
            evaluation_of(stands, short=True) or "–",
            duration(stands.secs_left),
            duration(stands.limit_secs_left),
            Text(_why(stands)),
        )
    return table


def description(stands: Standing) -> RenderableType:
    """All that is known of one job."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _facts(stands):
        table.add_row(name, value)
    lines = (stands.error or {}).get("lines") or []
    if not lines:
        return table
    return Group(
        table, Text("last lines:", "bold"), *(Text(f"  {line}", no_wrap=True, overflow="ellipsis") for line in lines)
    )


def _facts(stands: Standing) -> Iterator[tuple[str, RenderableType]]:
    why = f" ({stands.reason})" if stands.reason else ""
    yield "name", Text(stands.name)
    yield "state", Text.assemble((stands.state, COLOURS[stands.state]), why)
    if stands.note:
        yield "note", Text(stands.note, "yellow")
    if stands.error:
        rank = stands.error.get("rank")
        by = f"rank {rank}: " if rank is not None else ""
        yield "error", Text(f"{by}{stands.error.get('message')}", "red")
    if stands.exit_code is not None:
        yield "exit code", Text(str(stands.exit_code))
    if step := step_of(stands):
        rate = f", {stands.examples_per_sec:,.0f} examples/s" if stands.examples_per_sec else ""
        loss = f", loss {stands.loss:.4g}" if stands.loss is not None else ""
        yield "step", Text(f"{step}{rate}{loss}")
    if evaluation := evaluation_of(stands, short=False):
        yield "evaluation", Text(evaluation)
    if stands.secs_left is not None:
        yield "time left", Text(f"about {duration(stands.secs_left)}")
    if stands.limit_secs_left is not None:
        yield "time limit in", Text(duration(stands.limit_secs_left))
    for export in stands.exports:
        yield "export", Text(export)
    size = f", tier {stands.tier}" if stands.tier else ""
    ranks = f"{stands.ranks} rank{'' if stands.ranks == 1 else 's'}" if stands.ranks else "ranks unknown"
    yield "runs", Text(f"a {stands.kind} on {ranks}{size}" + (f", {stands.where}" if stands.where else ""))
    if stands.requeues or stands.restarts > stands.requeues:
        yield "started again", Text(f"{max(stands.requeues, stands.restarts)} times")
    number_in = {"slurm": "Slurm job", "local": "local job"}.get(stands.backend)
    yield "queue", Text(f"{number_in} {stands.job_id}" if number_in and stands.job_id else "none: started by hand")
    for name, when in (("submitted", stands.submitted), ("started", stands.started), ("updated", stands.updated)):
        if when:
            yield name, Text(moment(when))
    yield "job-dir", Text(stands.job_dir)


def _why(stands: Standing) -> str:
    if stands.state == "FAILED" and stands.error:
        rank = stands.error.get("rank")
        return (f"rank {rank}: " if rank is not None else "") + str(stands.error.get("message") or "").partition("\n")[
            0
        ]
    return stands.reason or ""


def step_of(stands: Standing) -> str:
    """Such as 120/2,000; empty where no step is known. Pure."""
    if stands.step is None:
        return ""
    return f"{stands.step:,}" + (f"/{stands.max_steps:,}" if stands.max_steps else "")


def evaluation_of(stands: Standing, short: bool) -> str:
    """The metrics of the last evaluation; `short`: one of them, not the loss if there is another. Pure."""
    values = {k: v for k, v in (stands.evaluation or {}).items() if k != "step" and isinstance(v, int | float)}
    if not values:
        return ""
    if short:
        name = next((name for name in values if name != "loss"), "loss")
        return f"{name} {values[name]:.4g}"
    shown = "  ".join(f"{name} {value:.4f}" for name, value in values.items())
    return f"{shown}  (step {(stands.evaluation or {}).get('step'):,})"


def number(value: float | None, how: str) -> str:
    """Formatted, or a dash. Pure."""
    return "–" if value is None else format(value, how)


def duration(secs: float | None) -> str:
    """Such as 1:02:03, or a dash. Pure."""
    return "–" if secs is None else str(timedelta(seconds=round(secs)))


def moment(when: float) -> str:
    """Local time, to the second."""
    return datetime.fromtimestamp(when).astimezone().isoformat(" ", "seconds")
