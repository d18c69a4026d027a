"""Points and ends of trials in words. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from hpc_train.config.tune.space import Point
from hpc_train.telemetry.units import counted
from hpc_train.tuning.search.state import StudyState, Trial


def failures(failed: Sequence[Trial], folder: Path) -> str:
    """What is said of the trials that have failed: the most common reason once, and how many had another one. Pure."""
    reasons = Counter(_reason(trial, folder) for trial in failed)
    reason, count = reasons.most_common(1)[0]
    if count == len(failed):
        all_of_them = f"{counted(count, 'trial')} failed" + (", all for one reason" if count > 1 else "")
        return f"{all_of_them}: {reason}"
    others = f"{len(failed) - count} for others; see hpc-train tune status"
    return f"{counted(len(failed), 'trial')} failed, {count} for one reason: {reason}; {others}"


def _reason(trial: Trial, folder: Path) -> str:
    """Why a trial has failed, without what only it has."""
    return trial.why.partition("\n")[0].replace(str(folder / trial.name), "…")


def because(trial: Trial) -> str:
    """Why a trial goes no further, in brackets; empty where it does."""
    return f" ({trial.why.partition(chr(10))[0]})" if trial.state in ("failed", "paused", "stopped") else ""


def shown(value: object) -> str:
    """A value of a point, in short."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def point_in_words(point: Point) -> str:
    """The values of a point, by keys without `params.`."""
    return ", ".join(f"{key.removeprefix('params.')}={shown(value)}" for key, value in point.items())


def lineage(trial: Trial) -> str:
    """Where a fork has come from; empty for another trial."""
    return f"from {trial.lineage.parent:04d} at step {trial.lineage.step}" if trial.lineage is not None else ""


def story(state: StudyState, trial: Trial) -> list[str]:
    """What is to be known of the result of a fork, in lines: which values it was trained with, and until when."""
    line = [*state.ancestors(trial), trial]
    if len(line) == 1:
        return []
    told = [
        f"  to step {child.begun_at}, as trial {parent.name}: {point_in_words(parent.point)}"
        for parent, child in pairwise(line)
    ]
    return [
        "It is a fork, and has come to this by values that changed while it trained:",
        *told,
        f"  from there on, as trial {trial.name}: {point_in_words(trial.point)}",
        "A job that trains with its last values from the beginning is another one, and may come to something else.",
    ]
