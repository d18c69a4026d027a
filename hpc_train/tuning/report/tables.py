"""The tables of a study's report, and the key numbers above them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hpc_train.config.tune.section import Asha, Goal, Median, TuneSection
from hpc_train.report import words
from hpc_train.report.tables import Fact, Link, Table
from hpc_train.tuning.report.charts import shown
from hpc_train.tuning.report.course import Course
from hpc_train.tuning.report.numbers import RungCount, merged, saving
from hpc_train.tuning.search.state import State
from hpc_train.tuning.search.words import lineage

STATES: tuple[State, ...] = ("completed", "stopped", "paused", "failed", "running", "waiting")
MOST_CELLS = 20_000
"""Of the table of trials, which has as many rows as that allows."""
LONGEST_REASON = 160


def key_numbers(courses: Sequence[Course], best: Course | None, most: int | None, tune: TuneSection) -> list[Fact]:
    """What a reader asks first.

    Args:
        best: The best trial; most: how many there may be.
    """
    goal, counts = tune.goal, Counter(course.state for course in courses)
    listed = ", ".join(f"{counts[state]:,} {state}" for state in STATES if counts[state])
    periods = [period for course in courses for period in course.periods]
    clock, together = (sum(end - begin for begin, end in parts) for parts in (merged(periods), periods))
    top = best.best if best is not None else None
    rule = {Asha: "early stopping: ASHA", Median: "early stopping: median"}.get(type(tune.rule), "early stopping: none")
    if tune.population is not None:
        rule = f"a population of {tune.population.size:,}"
    return [
        Fact("trials", f"{len(courses):,}" + (f" of {most:,}" if most is not None else ""), listed),
        Fact(
            words.label(f"best {goal.metric}"),
            words.number(top.value if top is not None else None),
            f"trial {best.trial.name} at step {top.step:,}"
            if best is not None and top is not None
            else "no number yet",
        ),
        Fact("goal", f"{'highest' if goal.mode == 'max' else 'lowest'} {words.label(goal.metric)}", goal.kind),
        Fact("time with trials", words.duration(clock), f"{words.duration(together)} of all together"),
        Fact("steps", f"{sum(course.trained for course in courses):,}", "of all trials together"),
        Fact("sampler", tune.sampler, rule),
    ]


def saved(courses: Sequence[Course], max_steps: int) -> str:
    """What early stopping has saved, in a sentence."""
    found = saving(courses, max_steps)
    if not found.whole:
        return ""
    if forks := sum(course.trial.lineage is not None for course in courses):
        return (
            f"{found.trained:,} steps were trained, as many as by {words.number(found.trained / max_steps)} whole "
            f"trials. {words.count(forks, 'trial')} went on from the checkpoint of another one."
        )
    text = (
        f"{found.trained:,} steps were trained; {words.count(len(courses), 'trial')} of {max_steps:,} steps each are "
        f"{found.whole:,}."
    )
    if not found.ended_early:
        return f"{text} No trial was ended before its time."
    ended = (
        f"{words.count(found.ended_early, 'trial')} ended before {'its' if found.ended_early == 1 else 'their'} time"
    )
    share = words.percent(found.not_trained / found.whole)
    return f"{text} {ended}, which saved {found.not_trained:,} steps, {share} of all."


def rungs(counts: Sequence[RungCount], goal: Goal) -> Table:
    """What was decided at each rung."""
    header = ("at step", "trials", "went on", "went on later", "ended there so far", f"best {goal.metric}", "median")
    rows = [
        (
            f"{one.step:,}",
            f"{one.came:,}",
            f"{one.at_once:,}",
            f"{one.later:,}",
            f"{one.not_yet:,}",
            words.number(one.best),
            words.number(one.middle),
        )
        for one in counts
    ]
    return Table(tuple(map(words.label, header)), rows, 0)


def trials(
    order: Sequence[Course], courses: Sequence[Course], keys: Sequence[str], goal: Goal, targets: Mapping[int, str]
) -> Table:
    """The trials: those with a value in `order`, best first, then the others; of very many, the first.

    Args:
        targets: Where the names of trials lead to, by number.
    """
    forks = any(course.trial.lineage is not None for course in courses)
    begins = ("begins",) if forks else ()
    header = ("trial", *begins, "state", "why it ended", goal.metric, "at step", "steps", *keys)
    ordered = {course.trial.number for course in order}
    rest = [course for course in courses if course.trial.number not in ordered]
    rows = [
        (
            Link(course.trial.name, targets.get(course.trial.number, "")),
            *((lineage(course.trial),) if forks else ()),
            course.state,
            _why(course),
            words.number(course.value, 5),
            f"{course.best.step:,}" if course.best is not None else words.UNKNOWN,
            f"{course.step:,}",
            *(shown(course.trial.point[key]) if key in course.trial.point else words.UNKNOWN for key in keys),
        )
        for course in [*order, *rest][: MOST_CELLS // len(header)]
    ]
    return Table(tuple(words.label(name) for name in header), rows, 3 + forks)


def _why(course: Course) -> str:
    """In a line; of a trial that runs, nothing."""
    if course.state == "waiting" and course.trial.state == "running":
        return "its driver died"
    return "" if course.state == "running" else words.label(course.trial.why.partition("\n")[0], LONGEST_REASON)
