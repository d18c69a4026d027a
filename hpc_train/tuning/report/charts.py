"""The charts of a study. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from hpc_train.config.tune.parameter import Parameter, Value, key_of
from hpc_train.config.tune.section import Goal
from hpc_train.report import words
from hpc_train.report.charts import LARGE_RATIO, UNITS
from hpc_train.report.drawing import thin
from hpc_train.report.figure import STEP
from hpc_train.report.numbers import LARGEST
from hpc_train.tuning.report.course import Course
from hpc_train.tuning.report.figure import (
    CurveChart,
    Dot,
    DotChart,
    ParallelAxis,
    ParallelChart,
    ShareChart,
    Tier,
    TrialLine,
    legend_of,
)
from hpc_train.tuning.report.numbers import Comparable, Moment, chosen, importance, moments, place_of

MOST_DOTS = 300
"""Trials that a chart shows; see `chosen`."""
MOST_LINES = 100
"""The same of lines."""
MOST_POINTS = 60
"""Of a trial's curve."""
MOST_KEYS = 24
"""Of the space, that have an axis and a chart of their own: the most important ones."""
Space = Mapping[str, Parameter]


def shown(value: Value) -> str:
    """A value of a point, in short."""
    if isinstance(value, float):
        return words.number(value)
    return words.label(value if isinstance(value, str) else key_of(value), 32)


def progress(courses: Sequence[Course], order: Sequence[Course], goal: Goal) -> list[DotChart]:
    """The best value so far over the time by the clock, the time of all trials together, and their steps."""
    found = [moment for moment in moments(courses, goal) if _fits(moment.value)]
    drawn = {course.trial.number for course in chosen(order, MOST_DOTS)}
    bests = [moment for moment in found if moment.own_best and moment.course.trial.number in drawn]
    if not bests:
        return []
    hours = _unit(found[-1].secs), _unit(found[-1].trial_secs)
    ways: list[tuple[str, str, Callable[[Moment], float]]] = [
        ("over time", f"{hours[0][0]} in which trials ran", lambda moment: moment.secs / hours[0][1]),
        (
            "over computing time",
            f"{hours[1][0]} of all trials together",
            lambda moment: moment.trial_secs / hours[1][1],
        ),
        ("over steps", "steps of all trials together", lambda moment: float(moment.steps)),
    ]
    upright, label = _scale([moment.value or 0.0 for moment in bests], goal)
    charts = []
    for title, x_label, x in ways:
        line = [(x(moment), moment.value or 0.0) for moment in found if moment.improves]
        rows = [(words.number(at), words.number(value)) for at, value in line]
        charts.append(
            DotChart(
                title=f"Best so far {title}",
                x_label=x_label,
                y_label=label,
                header=(x_label, goal.metric),
                rows=rows[:50] + rows[50:][-50:],
                description=f"{words.count(len(line), 'improvement')}, from {rows[0][1]} to {rows[-1][1]}.",
                dots=tuple(Dot(x(m), m.value or 0.0, m.course.whole, m.course is order[0]) for m in bests),
                line=tuple(_thinned([*line, (x(found[-1]), line[-1][1])])),
                upright=upright,
            )
        )
    return charts


def _thinned(line: list[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in thin(line, 200) if y is not None]


def _unit(secs: float) -> tuple[str, float]:
    return next((name, scale) for (_, name), scale, least in UNITS if secs >= least)


def _fits(value: float | None) -> bool:
    return value is not None and abs(value) <= LARGEST


def _scale(values: Sequence[float], goal: Goal) -> tuple[bool, str]:
    """Whether the axis of the goal is logarithmic, and what it is called."""
    upright = goal.mode == "min" and min(values) > 0 and max(values) / min(values) > LARGE_RATIO
    return upright, words.label(goal.metric) + (" (logarithmic)" if upright else "")


def _tiers(order: Sequence[Course]) -> dict[int, Tier]:
    """The look of each trial with a value, by its number."""
    good = -(-len(order) // 4)
    return {
        course.trial.number: "best" if place == 0 else "good" if place < good else "other"
        for place, course in enumerate(order)
    }


def _last_first(order: Sequence[Course], most: int) -> list[Course]:
    return [course for course in reversed(chosen(order, most)) if _fits(course.value)]


def parallel(space: Space, order: Sequence[Course], goal: Goal) -> ParallelChart | None:
    """Parallel coordinates of the space and the goal."""
    drawn, tiers = _last_first(order, MOST_LINES), _tiers(order)
    if not drawn:
        return None
    values = [course.value or 0.0 for course in drawn]
    upright, label = _scale(values, goal)
    scale = Parameter(log=_ends(values)) if upright else Parameter(uniform=_ends(values))
    better = "lower is better" if goal.mode == "min" else "higher is better"
    lines = []
    for course, value in zip(drawn, values, strict=True):
        point = course.trial.point
        places = [place_of(parameter, point[key]) if key in point else None for key, parameter in space.items()]
        at = [*places, place_of(scale, value)]
        lines.append(TrialLine(tiers[course.trial.number], tuple((float(row), place) for row, place in enumerate(at))))
    good = [course for course in drawn if tiers[course.trial.number] != "other"]
    rows = [(key, _spread(parameter, key, drawn), _spread(parameter, key, good)) for key, parameter in space.items()]
    gaps = any(key not in course.trial.point for course in drawn for key in space)
    return ParallelChart(
        title="Points of the space, and what came of them",
        header=("key", "all trials", "the best quarter"),
        rows=rows,
        description="A line for each trial across an axis for each key. "
        + " ".join(f"{key}: {among}; of the best quarter {best}." for key, among, best in rows[:12]),
        note="A line has a gap where a key does not matter." if gaps else "",
        legend=legend_of(list(tiers.values())),
        axes=(
            *(ParallelAxis(_named(key, parameter), _marks(parameter)) for key, parameter in space.items()),
            ParallelAxis(f"{label}: {better}", _marks(scale)),
        ),
        lines=tuple(lines),
    )


def _ends(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if low < high else (low - (abs(low) or 1.0) / 2, high + (abs(low) or 1.0) / 2)


def _named(key: str, parameter: Parameter) -> str:
    return f"{key} (logarithmic)" if parameter.is_logarithmic else key


def _marks(parameter: Parameter) -> tuple[tuple[float, str], ...]:
    """Both ends and what is between them, or each choice."""
    if parameter.choice is not None:
        return tuple((place_of(parameter, value), shown(value)) for value in parameter.choice)
    low, high = parameter.bounds or (0, 1)
    inner = [low * (high / low) ** s if parameter.is_logarithmic else low + s * (high - low) for s in (0.25, 0.5, 0.75)]
    values = [low, *(round(value) if parameter.int is not None else value for value in inner), high]
    return tuple((place_of(parameter, value), words.number(value, 3)) for value in dict.fromkeys(values))


def _spread(parameter: Parameter, key: str, courses: Sequence[Course]) -> str:
    """The values of a key, in words."""
    values = [course.trial.point[key] for course in courses if key in course.trial.point]
    if not values:
        return words.UNKNOWN
    if parameter.choice is None:
        return f"{words.number(min(values))} to {words.number(max(values))}"
    counts: dict[str, int] = {}
    for value in values:
        counts[shown(value)] = counts.get(shown(value), 0) + 1
    often = sorted(counts.items(), key=lambda one: -one[1])
    return ", ".join(f"{name} ({count})" for name, count in often[:6]) + (", …" if len(often) > 6 else "")


def important(space: Space, found: Comparable, goal: Goal) -> ShareChart:
    """How much each key explains."""
    shares = importance(space, found, goal)
    rows = [(key, words.percent(share)) for key, share in shares.items()]
    when = "at the end" if found.step is None else f"at step {found.step:,}"
    return ShareChart(
        title="Importance of keys",
        x_label="share of the variance of ranks",
        header=("key", "share"),
        rows=rows,
        description="; ".join(f"{key}: {share}" for key, share in rows[:20]) + ".",
        note=f"Of {words.count(len(found.values), 'trial')}, by their {words.label(goal.metric)} {when}.",
        bars=tuple(list(shares.items())[:MOST_KEYS]),
    )


def slices(space: Space, order: Sequence[Course], goal: Goal) -> list[DotChart]:
    """The goal over each key."""
    drawn = _last_first(order, MOST_DOTS)
    if not drawn:
        return []
    values = [course.value or 0.0 for course in drawn]
    upright, label = _scale(values, goal)
    charts = []
    for key, parameter in space.items():
        there = [course for course in drawn if key in course.trial.point]
        if there:
            low, high = parameter.bounds or (0, len(parameter.choice or ()) - 1)
            corners = ((low, min(values)), (high, max(values)))
            charts.append(replace(_slice(key, parameter, there, order[0], label, upright, goal), corners=corners))
    return charts


def _slice(
    key: str, parameter: Parameter, there: Sequence[Course], best: Course, label: str, upright: bool, goal: Goal
) -> DotChart:
    names = tuple(map(shown, parameter.choice or ()))

    def at(value: Value) -> float:
        return place_of(parameter, value) * (len(names) - 1) if len(names) > 1 else 0.0 if names else float(value)

    placed = [(at(course.trial.point[key]), course.value or 0.0, course) for course in there]
    rows = _groups(parameter, names, [(x, y) for x, y, _ in placed], goal)
    return DotChart(
        title=words.label(key),
        x_label=_named(key, parameter),
        y_label=label,
        header=(words.label(key), "trials", "best", "median"),
        rows=rows,
        description=f"{words.label(goal.metric)} by {key}. "
        + " ".join(f"{where}: best {top}, median {middle}." for where, _, top, middle in rows[:8]),
        dots=tuple(
            Dot(x + (_aside(course) if names else 0), y, course.whole, course is best) for x, y, course in placed
        ),
        names=names,
        across=parameter.is_logarithmic,
        upright=upright,
    )


def _aside(course: Course) -> float:
    """How far a dot of a choice is beside the middle, so that dots do not cover each other."""
    return 0.4 * (course.trial.number * 0.618034 % 1 - 0.5)


def _groups(
    parameter: Parameter, names: Sequence[str], placed: Sequence[tuple[float, float]], goal: Goal
) -> list[tuple[str, ...]]:
    """The goal by choice, or by quarters of the trials: how many, the best and the median."""
    if parameter.choice is not None:
        parts = [(name, [y for x, y in placed if round(x) == number]) for number, name in enumerate(names)]
    else:
        inorder = sorted(placed)
        quarters = [inorder[k * len(inorder) // 4 : (k + 1) * len(inorder) // 4] for k in range(4)]
        parts = [
            (f"{words.number(part[0][0])} to {words.number(part[-1][0])}", [y for _, y in part])
            for part in quarters
            if part
        ]
    best = max if goal.mode == "max" else min
    return [(name, f"{len(ys):,}", words.number(best(ys)), words.number(median(ys))) for name, ys in parts if ys]


def curves(order: Sequence[Course], rungs: Sequence[int], goal: Goal) -> CurveChart | None:
    """The goal of the trials over their steps, beside each other."""
    drawn, tiers = _last_first(order, MOST_LINES), _tiers(order)
    if not drawn:
        return None
    lines, values, rows = [], [], []
    for course in drawn:
        points = [(float(e.step), e.value if _fits(e.value) else None) for e in course.evaluations]
        known = [value for _, value in points if value is not None]
        lines.append(TrialLine(tiers[course.trial.number], tuple(thin(points, MOST_POINTS))))
        values += known
        ends = words.number(known[0]), words.number(course.value), words.number(known[-1])
        rows.append((course.trial.name, f"{len(known):,}", *ends))
    upright, label = _scale(values, goal)
    last = max(course.step for course in drawn)
    return CurveChart(
        title=f"{label[:1].upper()}{label[1:]} of the trials",
        x_label=STEP,
        y_label=label,
        header=("trial", "evaluations", "first", "best", "last"),
        rows=rows[::-1],
        description=f"{words.count(len(lines), 'curve')}, up to step {last:,}; the best trial: {order[0].trial.name}.",
        note="Dotted: where trials are compared." if rungs else "",
        legend=legend_of(list(tiers.values())),
        lines=tuple(lines),
        rungs=tuple(rungs),
        upright=upright,
    )
