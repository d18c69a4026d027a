"""The charts of one job. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from hpc_train.jobdir.history import History
from hpc_train.jobdir.records import Record, as_number
from hpc_train.report import words
from hpc_train.report.figure import STEP, BarChart, Chart, Curve, Happening, LineChart, TimeLine
from hpc_train.report.numbers import PARTS, ByRank, OverRanks, best_of, metrics_of, of_ranks, points_of, shares

MOST_METRICS = 12
"""Charts of metrics; the table of evaluations has them all."""
MOST_RANKS = 16
"""With a curve each; of more, the median and the range."""
LARGE_RATIO = 50
"""Of the largest to the smallest value, from which on the axis is logarithmic."""


@dataclass(frozen=True)
class Charts:
    """By section of the page."""

    metrics: tuple[Chart, ...]
    left_out: tuple[str, ...]
    speed: tuple[Chart, ...]
    staleness: tuple[Chart, ...]
    time_line: TimeLine | None


def charts_of(history: History) -> Charts:
    """All charts that the job has the numbers for."""
    kinds = ("train", *history.evaluation_sets)
    names = list(dict.fromkeys(name for kind in kinds for name in metrics_of(history, kind)))
    names.sort(key=lambda name: name != "loss")
    metrics = [_metric(history, name) for name in names[:MOST_METRICS]]
    rate = _simple(history, "learning_rate", "Learning rate", "learning rate")
    speed = [_speed(history), _shares(history), _input_wait(history)]
    staleness = [_staleness(history), _staleness_counts(history)]
    return Charts(
        _there([*metrics, rate]), tuple(names[MOST_METRICS:]), _there(speed), _there(staleness), _time_line(history)
    )


def _there(charts: Iterable[Chart | None]) -> tuple[Chart, ...]:
    return tuple(chart for chart in charts if chart is not None)


def _by_step(history: History, title: str, y_label: str, curves: Iterable[Curve], **more: Any) -> LineChart:
    """A chart over the steps, on which each step that a run went on from is marked once."""
    restarts = sorted({float(restart.step) for restart in history.restarts})
    return LineChart(title, STEP, y_label, tuple(curves), tuple(restarts), **more)


def _metric(history: History, name: str) -> LineChart:
    """A metric in training and in each evaluation set, by step."""
    curves = []
    for look, kind in enumerate(("train", *history.evaluation_sets)):
        points = points_of(history.series(kind), name)
        if points:
            best = best_of(history, kind, name) if kind != "train" else None
            curves.append(Curve(words.label(words.named(kind)), points, look, kind != "train", best))
    label = words.label(name)
    note = "A circle marks the best value." if any(curve.best for curve in curves) else ""
    return scaled(_by_step(history, label[:1].upper() + label[1:], label, curves, note=note))


def scaled(chart: LineChart) -> LineChart:
    """The chart, with a logarithmic axis where its values, all positive, lie so far apart that this shows more."""
    known = [y for curve in chart.curves for _, y in curve.points if y is not None]
    if known and min(known) > 0 and max(known) / min(known) > LARGE_RATIO:
        return replace(chart, y_label=f"{chart.y_label} (logarithmic)", logarithmic=True)
    return chart


def _simple(history: History, name: str, title: str, y_label: str) -> LineChart | None:
    points = points_of(history.series("train"), name)
    if not any(y is not None for _, y in points):
        return None
    return _by_step(history, title, y_label, [Curve(y_label, points, 0)])


def _speed(history: History) -> LineChart | None:
    """Examples a second of each rank; of all together where no more is known."""
    speeds = of_ranks(history, "examples_per_sec")
    if speeds is None:
        return _simple(history, "examples_per_sec", "Speed, all ranks together", "examples/s")
    ranks = speeds.count
    note = f"The median of {ranks} ranks, and from the slowest to the fastest." if ranks > MOST_RANKS else ""
    return _by_step(history, "Speed of each rank", "examples/s a rank", _curves_by_rank(speeds), note=note)


def _curves_by_rank(values: ByRank | OverRanks) -> list[Curve]:
    if isinstance(values, ByRank) and values.count <= MOST_RANKS:
        return [Curve(f"rank {rank}", values.of_rank(column), column) for column, rank in enumerate(values.ranks)]
    low, middle, high = values.over_ranks()
    band = [(x, y, top) for (x, y), (_, top) in zip(low, high, strict=True)]
    return [Curve(f"median of {values.count} ranks", middle, 0, band=band)]


def _shares(history: History) -> LineChart | None:
    by_part = shares(history)
    if len(by_part) < 2:  # of one part alone, see _input_wait
        return None
    parts = {part: dict(curve) for part, curve in by_part.items()}
    steps = sorted({x for part in parts.values() for x in part})
    sums = {x: sum(part.get(x) or 0.0 for part in parts.values()) for x in steps}
    curves = [
        Curve(part, [(x, (curve.get(x) or 0.0) / max(1.0, sums[x])) for x in steps], PARTS.index(part))
        for part, curve in parts.items()
    ]
    rest = [(x, max(0.0, 1 - sums[x])) for x in steps]
    if any(y > 0.005 for _, y in rest):
        curves.append(Curve("not measured", rest, len(PARTS)))
    label = "share of the time, mean of the ranks"
    return _by_step(history, "Where the time went", label, curves, share=True, stacked=True)


def _input_wait(history: History) -> LineChart | None:
    """Only where the shares do not show it."""
    points = points_of(history.series("train"), "input_wait")
    waits, parts = of_ranks(history, "input"), shares(history)
    if len(parts) > 1 or (waits is None and not any(y is not None for _, y in points)):
        return None
    curves = _curves_by_rank(waits) if waits else [Curve("the rank that waited longest", points, 0)]
    return _by_step(history, "Waiting for input", "share of the time", curves, share=True)


def _staleness(history: History) -> LineChart | None:
    train = history.series("train")
    named = [("mean", points_of(train, "staleness_mean")), ("highest", points_of(train, "staleness_max"))]
    curves = [Curve(label, points, look) for look, (label, points) in enumerate(named) if points]
    return _by_step(history, "Staleness", "updates by others meanwhile", curves) if curves else None


def _staleness_counts(history: History) -> BarChart | None:
    """From the last record, which counts since its run began."""
    found = [counts for record in history.series("train") if isinstance(counts := record.values.get("staleness"), dict)]
    last = found[-1].items() if found else ()
    known = [(int(at), as_number(n)) for at, n in last if at.isdecimal() and len(at) < 7]
    bars = tuple(sorted((at, n) for at, n in known if n is not None and n >= 0))
    return BarChart("How stale updates were", "staleness", "updates", bars) if bars else None


def _time_line(history: History) -> TimeLine | None:
    """Runs, evaluations, checkpoints and exports by the clock."""
    if not history.records:
        return None
    first = min(record.time for record in history.records)
    span = max(record.time for record in history.records) - first
    unit, scale = next((u, s) for u, s, least in UNITS if span >= least)

    def happening(
        record: Record, text: str, secs: float | None = None, bad: bool = False, at: float | None = None
    ) -> Happening:
        end = max(0.0, min(record.time, at or record.time) - first)
        return Happening(max(0.0, end - (secs or 0.0)) / scale, end / scale, text, bad)

    evaluated = [
        (words.named(kind), [happening(r, f"step {r.step:,}", r.number("secs")) for r in history.all_of(kind)])
        for kind in history.evaluation_sets
    ]
    saved = [
        happening(r, f"step {r.step:,}", r.number("secs"), at=r.number("committed"))
        for r in history.all_of("checkpoint")
    ]
    exported = [
        happening(r, f"step {r.step:,}: {r.text('exporter') or 'export'}", bad=r.kind == "export_failed")
        for r in history.all_of("export", "export_failed")
    ]
    ended = [happening(r, _end(r), bad=r.text("state") == "failed") for r in history.all_of("end")]
    lanes = [("runs", _runs(history, first, scale)), *evaluated]
    lanes += [("checkpoints", saved), ("exports", exported), ("ends", ended)]
    note = "Crosses and red bars: what failed." if any(t.bad for _, things in lanes for t in things) else ""
    rows = tuple((name, tuple(things)) for name, things in lanes if things)
    return TimeLine("Time line", f"{unit[1]} since {words.moment(first)}", rows, unit=unit[0], note=note)


UNITS = (
    (("d", "days"), 86400.0, 3 * 86400.0),
    (("h", "hours"), 3600.0, 3 * 3600.0),
    (("min", "minutes"), 60.0, 180.0),
    (("s", "seconds"), 1.0, -1.0),
)
"""Of the time line: symbol and name, seconds, and from how many seconds on."""


def _end(record: Record) -> str:
    outcome = ": ".join(part for part in (record.text("state"), record.text("reason")) if part)
    return f"step {record.step:,}: {outcome or 'the end'}"


def _runs(history: History, first: float, scale: float) -> list[Happening]:
    runs: list[list[Record]] = []
    for record in history.records:
        if record.kind == "start" or not runs:
            runs.append([])
        runs[-1].append(record)
    happenings = []
    for number, run in enumerate(runs, start=1):
        last, more = run[-1], number < len(runs)
        state = (last.text("state") if last.kind == "end" else None) or (None if more else history.status.get("state"))
        ended = state if isinstance(state, str) else "left no end" if more else "unknown"
        text = f"run {number} from step {run[0].step:,} to {max(r.step for r in run):,}: {ended}"
        began, end = (run[0].time - first) / scale, (last.time - first) / scale
        happenings.append(Happening(began, end, text, bad=ended == "failed"))
    return happenings
