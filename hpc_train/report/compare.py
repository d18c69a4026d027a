"""Several jobs side by side, as a page and as Markdown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from hpc_train.config.settings import differing, flattened
from hpc_train.files import replace_text
from hpc_train.jobdir.history import History
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.report import words
from hpc_train.report.charts import MOST_METRICS, UNITS, scaled
from hpc_train.report.figure import STEP, Curve, LineChart
from hpc_train.report.numbers import (
    best_of,
    elapsed_of,
    global_batch,
    last_of,
    metrics_of,
    ranks_of,
    rate_of,
    setting,
)
from hpc_train.report.page import state_of, steps_of
from hpc_train.report.ranking import FEW, Criterion, criterion_of, in_rows, ranked, ranking_table, screens
from hpc_train.report.rendering import gallery, render
from hpc_train.report.tables import Table
from hpc_train.text import LINES, visible

MOST_JOBS = 36
"""As many curves can be distinguished."""
OWN_KEYS = ("name",)
"""Keys of a job that are shown anyway."""


def write_comparison(job_dirs: Sequence[Path], out: Path, metric: str | None = None) -> Path:
    """Writes a page that ranks jobs and lays them side by side, as one HTML file that needs nothing else.

    Local. The file appears in one rename; its path is returned.

    Args:
        metric: What they are ranked by, as METRIC, METRIC:min or METRIC:max; None: see `ranking.criterion_of`.

    Raises:
        UserError: No job has that metric.
        OSError: It cannot be written.
    """
    replace_text(out, comparison_page([JobDir(job_dir).history() for job_dir in job_dirs], metric))
    return out


def comparison_page(histories: Sequence[History], metric: str | None = None) -> str:
    """The page as HTML, in ASCII."""
    criterion = criterion_of(histories, metric)
    histories = ranked(histories, criterion)
    labels = labels_of(histories)
    with gallery() as hang:
        by_step, by_time = (hang(_charts(histories, labels, by_time)) for by_time in (False, True))
    return render(
        "compare.html.jinja",
        labels=labels,
        written=words.moment(time.time()),
        criterion=criterion,
        ranking=ranking_table(histories, labels, criterion) if criterion else None,
        few=len(histories) <= FEW,
        jobs=_fitted(jobs_table(histories, labels)),
        differences=_fitted(differences_table(histories, labels, criterion)),
        drawn=MOST_JOBS,
        by_step=by_step,
        by_time=by_time,
        folders=list(zip(labels, (str(history.job_dir.absolute()) for history in histories), strict=True)),
    )


def labels_of(histories: Sequence[History]) -> list[str]:
    """What each job is called: the name of its job-dir, with that of the folder around it where two have the same."""
    paths = [history.job_dir.absolute() for history in histories]
    for names in (
        [path.name for path in paths],
        [f"{path.parent.name}/{path.name}" for path in paths],
        [str(history.job_dir) for history in histories],
    ):
        labels = [words.label(name) for name in names]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{number}: {label}" for number, label in enumerate(labels, start=1)]


def jobs_table(histories: Sequence[History], labels: Sequence[str]) -> Table:
    """A column for each job: its status and what it reached."""
    values: dict[str, Callable[[History], str]] = {
        "state": state_of,
        "steps": lambda job: " of ".join(f"{step:,}" for step in steps_of(job) if step is not None),
        "running time": lambda job: words.duration(elapsed_of(job)),
        "restarts": lambda job: f"{len(job.restarts):,}",
        "ranks": lambda job: words.number(ranks_of(job)),
        "strategy": lambda job: words.label(str(setting(job, "run", "strategy") or words.UNKNOWN)),
        "examples a step": lambda job: words.number(global_batch(job)),
        "examples a second": lambda job: words.number(None if (rate := rate_of(job)) is None else round(rate)),
    }
    rows = [(name, *map(value, histories)) for name, value in values.items()]
    if any(metrics_of(history, "train") for history in histories):
        rows.append(("last loss in training", *(words.number(last_of(h, "train", "loss")) for h in histories)))
    for kind, name in _evaluated(histories):
        title = words.label(f"{words.named(kind)}: {name}")
        rows.append((title, *(words.number(last_of(history, kind, name)) for history in histories)))
        bests = [best_of(history, kind, name) for history in histories]
        if any(bests):
            cells = (f"{words.number(b.value)} (step {b.step:,})" if b else words.UNKNOWN for b in bests)
            rows.append((words.label(f"{title}, best"), *cells))
    return Table(("", *labels), rows)


def _evaluated(histories: Iterable[History]) -> list[tuple[str, str]]:
    """Evaluation sets and metrics that any of the jobs has."""
    found = ((kind, name) for job in histories for kind in job.evaluation_sets for name in metrics_of(job, kind))
    return list(dict.fromkeys(found))


def differences_table(histories: Sequence[History], labels: Sequence[str], criterion: Criterion | None = None) -> Table:
    """The settings in which the jobs differ, by their keys in job.yaml; of many jobs below what they reached."""
    flat = [flattened(history.job) for history in histories]
    rows = [
        (key, *(words.UNKNOWN if value is None else value for value in values))
        for key, values in differing(flat).items()
        if key not in OWN_KEYS
    ]
    if rows and criterion is not None and len(histories) > FEW:
        bests = [criterion.best_of(history) for history in histories]
        reached = (words.number(best.value) if best else words.UNKNOWN for best in bests)
        rows.insert(0, (f"best {criterion.title}", *reached))
    return Table(("setting", *labels), rows)


def _fitted(table: Table) -> list[Table]:
    """A table with a column for each job, or where these are many a row for each, in parts a screen wide."""
    if len(table.header) - 1 <= FEW or not table.rows:
        return [table] if table.rows else []
    return list(screens(in_rows(table)))


def _charts(histories: Sequence[History], labels: Sequence[str], by_time: bool) -> list[LineChart]:
    wanted = [("train", "loss", "Loss in training", "loss"), ("train", "examples_per_sec", "Speed", "examples/s")]
    evaluated = _evaluated(histories)[:MOST_METRICS]
    wanted[1:1] = [
        (kind, name, words.label(f"{words.named(kind)}: {name}"), words.label(name)) for kind, name in evaluated
    ]
    scale, x_label, more = 1.0, STEP, ""
    if by_time:
        longest = max((history.records[-1].elapsed for history in histories if history.records), default=0.0)
        scale, unit = next((secs, name) for (_, name), secs, least in UNITS[1:] if longest >= least)  # hours at most
        x_label, more = f"{unit} of running time", ", by running time"
    charts = []
    for kind, name, title, y_label in wanted:
        curves = []
        for look, (history, label) in enumerate(zip(histories[:MOST_JOBS], labels, strict=False)):
            records = [record for record in history.series(kind) if name in record.values]
            points = [((record.elapsed if by_time else record.step) / scale, record.number(name)) for record in records]
            if points:
                curves.append(Curve(label, sorted(points, key=lambda point: point[0]), look, kind != "train"))
        if curves:
            chart = LineChart(f"{title}{more}", x_label, y_label, tuple(curves))
            charts.append(chart if name == "examples_per_sec" else scaled(chart))
    return charts


def markdown(histories: Sequence[History], metric: str | None = None) -> str:
    """The numbers of one job or several as tables in Markdown, fit for a pull request; several by rank.

    Raises:
        UserError: As write_comparison.
    """
    parts, criterion = [], criterion_of(histories, metric) if len(histories) > 1 else None
    if criterion is not None:
        histories = ranked(histories, criterion)
        parts.append(as_markdown(ranking_table(histories, labels_of(histories), criterion)))
    labels = labels_of(histories)
    parts += map(as_markdown, _fitted(jobs_table(histories, labels)))
    if len(histories) > 1 and (differences := _fitted(differences_table(histories, labels, criterion))):
        parts += ["Settings that differ:", *map(as_markdown, differences)]
    text = "\n\n".join(parts) + "\n"
    return visible(text, LINES)


def as_markdown(table: Table) -> str:
    """A table as Markdown, whatever its cells hold. Pure."""
    rule = [":--" if column < table.names else "--:" for column in range(len(table.header))]
    lines = [list(map(_escaped, table.header)), rule, *(list(map(_escaped, row)) for row in table.rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _escaped(cell: str) -> str:
    text = " ".join(cell.split())
    for special in "\\`*_[]<>|#~$":
        text = text.replace(special, f"\\{special}")
    return text.replace("&", "&amp;")
