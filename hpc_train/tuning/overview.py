"""A study in the terminal: its trials, best first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hpc_train.telemetry.units import counted
from hpc_train.tuning.search.folder import TRIALS
from hpc_train.tuning.search.measurements import Measurements
from hpc_train.tuning.search.state import State, Trial
from hpc_train.tuning.search.study import Study, living, state_now

if TYPE_CHECKING:
    from rich.console import RenderableType


def as_objects(study: Study) -> Iterator[dict[str, Any]]:
    """The trials, best first, fit for JSON."""
    alive = living(study)
    for trial, found, step in _trials(study):
        yield {
            "trial": trial.number,
            "state": state_now(trial, alive),
            "value": found.best(),
            "best_step": found.best_step(),
            "step": step,
            "point": dict(trial.point),
            "source": trial.source,
            "parent": trial.lineage.parent if trial.lineage is not None else None,
            "from_step": trial.begun_at,
            "runs": trial.runs,
            "why": trial.why,
            "job_dir": str(study.folder.job_dir(trial).path),
        }


def overview(study: Study, width: int) -> Iterator[RenderableType]:
    """What `hpc-train tune status` shows, in `width` columns."""
    from rich.text import Text

    from hpc_train.jobs.layout import Column, text_table
    from hpc_train.text import visible
    from hpc_train.tuning.search.words import by_reason, lineage, shown

    goal, state, nouns = study.goal, study.state, study.nouns
    looks_for = f"{goal.mode} {goal.kind} {goal.metric}"
    yield Text(visible(f"{nouns.study} {study.folder.path}: {in_words(study)}; goal: {looks_for}"))
    keys, numbers = list(study.job.tune.space), (goal.metric, "step")
    forks = any(trial.lineage is not None for trial in state.trials)
    own = (nouns.trial, *(("",) if forks else ()), "state")
    titles = (*own, *numbers, *(key.removeprefix("params.") for key in keys))
    rows, alive = [], living(study)
    for trial, found, step in _trials(study):
        best = found.best()
        values = [shown(trial.point[key]) if key in trial.point else "–" for key in keys]
        row = (
            trial.name,
            *((lineage(trial),) if forks else ()),
            state_now(trial, alive),
            "–" if best is None else f"{best:.5g}",
            str(step),
            *values,
        )
        rows.append(row)
    if rows:
        yield text_table(
            [
                Column(title, tuple(Text(visible(row[place])) for row in rows), place > 1 + forks)
                for place, title in enumerate(titles)
            ],
            width,
        )
    for why, trials in by_reason(state.of("failed"), study.folder.trials).items():
        yield Text(visible(f"{_names(trials)} failed: {why}"))
    if gone := [
        one for one in state.of("paused", "stopped", "completed") if not study.folder.job_dir(one).path.is_dir()
    ]:
        yield Text(f"{_names(gone)}: not in {TRIALS}/ any more")


def _names(trials: Sequence[Trial]) -> str:
    return ", ".join(trial.name for trial in trials)


def in_words(study: Study) -> str:
    """How many trials there are, by state."""
    names: tuple[State, ...] = ("running", "waiting", "paused", "stopped", "completed", "failed")
    alive = living(study)
    found = Counter(state_now(trial, alive) for trial in study.state.trials)
    counts = {name: found[name] for name in names}
    listed = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    allowed = f" of {study.state.max_trials}" if study.state.max_trials is not None else ""
    halted = f"; stopped: {study.state.halted}" if study.state.halted is not None else ""
    return f"{counted(len(study.state.trials), study.nouns.trial)}{allowed}{f' ({listed})' if listed else ''}{halted}"


def _trials(study: Study) -> list[tuple[Trial, Measurements, int]]:
    """With what they have measured, and the step of the newest checkpoint; best first."""
    found = []
    for trial in study.state.trials:
        job_dir = study.folder.job_dir(trial)
        step = max(job_dir.checkpoints(), default=trial.begun_at)
        found.append((trial, Measurements.of(job_dir, study.goal, trial.begun_at), step))
    sign = -1.0 if study.goal.mode == "max" else 1.0

    def order(one: tuple[Trial, Measurements, int]) -> tuple[bool, float, int]:
        best = one[1].best()
        return best is None, 0.0 if best is None else sign * best, one[0].number

    return sorted(found, key=order)
