"""Writes report.html of a study."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path

from hpc_train.config.tune.space import MOST_OF_A_GRID
from hpc_train.files import replace_text
from hpc_train.jobdir.paths import CODE, REPORT_FILE
from hpc_train.report import words
from hpc_train.report.drawing import SIZES
from hpc_train.report.rendering import gallery, render
from hpc_train.report.tables import Link
from hpc_train.tuning.report import charts, tables
from hpc_train.tuning.report.course import Course, courses_of, state_of
from hpc_train.tuning.report.numbers import ENOUGH, comparable, importance, ranked, rung_counts
from hpc_train.tuning.search.folder import BEST_FILE, TRIALS
from hpc_train.tuning.search.state import Trial
from hpc_train.tuning.search.study import Study
from hpc_train.tuning.search.words import failures, story

NARROW = SIZES[:1]


def write_study_report(study: Study, name: str) -> Path:
    """Writes the report of the study called `name` as one HTML file that needs nothing else; returns its path.

    Local. Reads what the trials have measured, of a study that runs or has ended. The file, `report.html` in the
    study's folder, appears in one rename.

    Raises:
        OSError: It cannot be written.
    """
    path = study.folder.path / REPORT_FILE
    replace_text(path, study_page(study, name, time.time()))
    return path


def study_page(study: Study, name: str, now: float) -> str:
    """The report as HTML, in ASCII; `now`: until when trials that run have run."""
    tune, goal = study.job.tune, study.goal
    courses, most = courses_of(study, now), most_trials(study)
    order = ranked(courses, goal)
    best = order[0] if order else None
    rungs = study.rule.rungs if study.rule is not None else ()
    compared = comparable(courses, rungs)
    keys = list(importance(tune.space, compared, goal) if compared is not None else tune.space)[: charts.MOST_KEYS]
    space = {key: parameter for key, parameter in tune.space.items() if key in keys}
    by_importance = {key: space[key] for key in keys}
    with gallery() as hang:
        drawn = {
            "progress": hang(charts.progress(courses, order, goal), NARROW),
            "parallel": hang(filter(None, [charts.parallel(space, order, goal)])),
            "importance": hang([charts.important(tune.space, compared, goal)] if compared is not None else []),
            "slices": hang(charts.slices(by_importance, order, goal), NARROW),
            "curves": hang(filter(None, [charts.curves(order, rungs, goal)])),
        }
    targets = {course.trial.number: _target(study, course.trial) for course in courses}
    table = tables.trials(order, courses, list(tune.space), goal, targets)
    max_steps = study.job.job.train.max_steps
    return render(
        "study.html.jinja",
        package="hpc_train.tuning.report",
        title=words.label(name, 200),
        state=state_of(study, most),
        written=words.moment(now),
        notices=_notices(study, order),
        facts=tables.key_numbers(courses, best, most, tune),
        best=_best(study, best) if best is not None else None,
        drawn=drawn,
        left_out=len(tune.space) - len(space),
        most_dots=charts.MOST_DOTS,
        most_lines=charts.MOST_LINES,
        measured=len(order),
        enough=ENOUGH,
        metric=words.label(goal.metric),
        saved=tables.saved(courses, max_steps) if study.rule is not None and max_steps is not None else "",
        compared_by="Early stopping" if tune.population is None else "Population",
        rungs=tables.rungs(rung_counts(courses, rungs, goal), goal),
        trials=table,
        count=len(courses),
        folder=str(study.folder.path),
    )


def most_trials(study: Study) -> int | None:
    """How many trials a study may have; None where that is not known."""
    tune = study.job.tune
    if study.state.max_trials is not None or tune.sampler != "grid":
        return study.state.max_trials
    return len(tune.first) + sum(1 for _ in islice(tune.points.grid(), MOST_OF_A_GRID))


def _notices(study: Study, order: list[Course]) -> list[tuple[str, str, str]]:
    """What a reader must not miss: how bad it is (bad or soft), a title, and a text."""
    state, found = study.state, []
    if failed := list(state.of("failed")):
        found.append(("bad", "Failures", failures(failed, study.folder.trials, study.nouns)))
    if state.halted is not None:
        found.append(("soft", "Stopped", f"{state.halted}; hpc-train tune resume {study.folder.path}"))
    if not state.trials:
        found.append(("soft", "No trials", f"None has begun yet: hpc-train tune {study.folder.path}"))
    elif not order:
        metric = words.label(study.goal.metric)
        found.append(("soft", "Nothing to compare", f"No evaluation has reported a finite {metric} yet."))
    return found


def _target(study: Study, trial: Trial) -> str:
    """The page of a trial where `hpc-train report` has written it, or its job-dir; empty: that is gone."""
    path = study.folder.job_dir(trial).path
    place = f"{TRIALS}/{trial.name}/"
    return f"{place}{REPORT_FILE}" if (path / REPORT_FILE).is_file() else place if path.is_dir() else ""


def _best(study: Study, best: Course) -> dict[str, object]:
    """The best trial: its point, where it is, and its job file."""
    listed = [(key, charts.shown(value)) for key, value in best.trial.point.items()]
    listed += [("", line) for line in story(study.state, best.trial)]
    listed.append(("job-dir", Link(str(study.folder.job_dir(best.trial).path), _target(study, best.trial))))
    if study.state.best is best.trial:
        listed.append(("to train it alone", f"hpc-train submit {study.folder.path / CODE / BEST_FILE}"))
    return {"name": best.trial.name, "listed": listed, "job": study.job.file_of(best.trial)}
