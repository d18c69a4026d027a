"""Writes report.html."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from hpc_train.files import replace_text
from hpc_train.jobdir.history import History
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobdir.paths import REPORT_FILE
from hpc_train.jobdir.records import as_number
from hpc_train.report import node_tables, tables, words
from hpc_train.report.charts import charts_of
from hpc_train.report.numbers import elapsed_of, metrics_of, mode_of, ranks_of, setting
from hpc_train.report.rendering import gallery, render
from hpc_train.telemetry.status import sound_slow_ranks

MOST_LOST = 20
"""Lost ranks that are listed."""


def write_report(job_dir: Path, out: Path | None = None) -> Path:
    """Writes the report of a job as one HTML file that needs nothing else; returns its path.

    Local. Reads what the job-dir holds, however little, of a job that runs or has ended. The file appears in one
    rename; it is `out`, or `<job_dir>/report.html`.

    Raises:
        OSError: It cannot be written.
    """
    path = out or job_dir / REPORT_FILE
    replace_text(path, report_page(JobDir(job_dir).history()))
    return path


def report_page(history: History) -> str:
    """The report as HTML, in ASCII."""
    charts = charts_of(history)
    with gallery() as hang:
        drawn = {name: hang(getattr(charts, name)) for name in ("metrics", "speed", "staleness")}
        drawn["time_line"] = hang([charts.time_line] if charts.time_line else [])
    metrics = {name for kind in history.evaluation_sets for name in metrics_of(history, kind)}
    return render(
        "report.html.jinja",
        title=words.label(history.name, 200),
        state=state_of(history),
        summary=summary(history),
        written=words.moment(time.time()),
        notices=notices(history),
        facts=tables.key_numbers(history),
        drawn=drawn,
        left_out=charts.left_out,
        unjudged=sorted(words.label(name) for name in metrics if mode_of(history, name) is None),
        evaluations=[(words.named(kind), tables.evaluations(history, kind)) for kind in history.evaluation_sets],
        exports=tables.Table(("exporter", "step", "path"), tables.export_paths(history), 3),
        export_errors=tables.Table(("exporter", "step", "error"), tables.export_errors(history), 3),
        restarts=tables.restarts(history),
        starts=tables.starts(history),
        changes=tables.changes(history),
        shares=tables.shares_by_rank(history),
        warm_start=tables.warm_start(history),
        job_text=history.job_text,
        versions=tables.versions(history),
        ranks=tables.ranks(history),
        memory=tables.memory(history),
        energy=node_tables.energy(history),
        energy_note=node_tables.energy_note(history),
        rank_map=node_tables.rank_map(history),
        variables=tables.variables(history),
        job_dir=str(history.job_dir.absolute()),
    )


def state_of(history: History) -> str:
    """The job's state in a word."""
    state = history.status.get("state")
    if isinstance(state, str) and state:
        return words.label(state)
    ends = history.all_of("end")
    return words.label(ends[-1].text("state") or "unknown") if ends else "unknown"


def steps_of(history: History) -> tuple[int, int | None]:
    """The last step done, and the one at which the job is to end."""
    train = history.series("train")
    step = as_number(history.status.get("step")) or (train[-1].step if train else 0)
    most = as_number(history.status.get("max_steps")) or as_number(setting(history, "train", "max_steps"))
    return int(step), int(most) if most else None


def summary(history: History) -> str:
    """The job in a sentence."""
    step, most = steps_of(history)
    parts = [f"{step:,} of {words.count(most, 'step')}" if most else words.count(step, "step")]
    if (secs := elapsed_of(history)) is not None:
        parts.append(f"in {words.duration(secs)}")
    if ranks := ranks_of(history):
        strategy = setting(history, "run", "strategy")
        parts.append(f"on {words.count(ranks, 'rank')}" + (f", {strategy}" if isinstance(strategy, str) else ""))
    if history.restarts:
        parts.append(f"with {words.count(len(history.restarts), 'restart')}")
    started = history.records[0].time if history.records else as_number(history.status.get("started"))
    return " ".join(parts) + (f"; began {words.moment(started)}" if started else "") + "."


def notices(history: History) -> list[tuple[str, str, str]]:
    """What a reader must not miss: how bad it is (bad or soft), a title, and a text."""
    found = []
    error = history.status.get("error")
    if isinstance(error, Mapping):
        where = f"rank {error['rank']}" if as_number(error.get("rank")) is not None else "the job"
        signal = f", {error['signal']}" if isinstance(error.get("signal"), str) else ""
        doing = f", {error['doing']}" if isinstance(error.get("doing"), str) else ""
        place = f"\n{error['where']}" if isinstance(error.get("where"), str) else ""
        lines = error.get("lines")
        more = "\n".join(map(str, lines)) if isinstance(lines, list) else ""
        found.append(("bad", f"Error of {where}{signal}{doing}", f"{error.get('message', '')}{place}\n{more}".strip()))
    stopped = history.status.get("stopped_early")
    if isinstance(stopped, Mapping) and stopped:
        step = as_number(stopped.get("step"))
        at = f" at step {int(step):,}" if step is not None else ""
        found.append(("soft", f"Stopped early{at}", str(stopped.get("reason", ""))))
    if lost := [record for record in history.records if record.kind == "lost_rank"]:
        texts = [
            f"Rank {words.number(record.number('rank') or 0)} was killed by {record.text('signal') or 'a signal'} "
            f"after step {record.step:,}."
            for record in lost[:MOST_LOST]
        ]
        title = f"Went on without {words.count(len(lost), 'lost worker')}"
        found.append(("soft", title, "\n".join(texts)))
    for entry in sound_slow_ranks(history.status.get("slow_ranks")) or []:
        why = f"; {entry['why']}" if entry["why"] else ""
        took = f"Its own part of a step took {entry['ratio']:.2f} times the median of the others"
        title = f"Rank {entry['rank']} on {entry['host']} was slow"
        found.append(("soft", title, f"{took}, up to step {entry['step']:,}{why}"))
    if state_of(history) == "unknown":
        found.append(("soft", "No status", "The job-dir holds no status.json that can be read."))
    elif not history.series("train"):
        text = "Nothing was measured yet: the first record comes after save_summary_steps steps."
        found.append(("soft", "No curves", text))
    return found
