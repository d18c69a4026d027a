"""Points and ends of trials in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hpc_train.config.tune.space import Point
from hpc_train.telemetry.units import counted
from hpc_train.tuning.search.state import StudyState, Trial


@dataclass(frozen=True)
class Nouns:
    """What a study, its trials and its command of hpc-train are called where people read of them."""

    study: str = "study"
    trial: str = "trial"
    command: str = "tune"


OF_STUDY, OF_ENSEMBLE = Nouns(), Nouns("ensemble", "member", "ensemble")


def failures(failed: Sequence[Trial], folder: Path, nouns: Nouns = OF_STUDY) -> str:
    """What is said of the trials that have failed: the most common reason once, and how many had another one. Pure."""
    reason, alike = max(by_reason(failed, folder).items(), key=lambda item: len(item[1]))
    count, all_of_them = len(alike), f"{counted(len(failed), nouns.trial)} failed"
    if count == len(failed):
        return f"{all_of_them}{', all for one reason' if count > 1 else ''}: {reason}"
    of_these = f"{count} for one reason: {reason}; {len(failed) - count} for others"
    return (
        f"{all_of_them}, {of_these if count > 1 else f'for different reasons: {reason}; …'}; see hpc-train tune status"
    )


def by_reason(failed: Iterable[Trial], folder: Path) -> dict[str, list[Trial]]:
    """Trials that have failed, by why, without what only one of them has: its folder in `folder`."""
    found: dict[str, list[Trial]] = {}
    for trial in failed:
        found.setdefault(trial.why.partition("\n")[0].replace(str(folder / trial.name), "…"), []).append(trial)
    return found


def because(trial: Trial, failed: Iterable[Trial], folder: Path, nouns: Nouns = OF_STUDY) -> str:
    """Why a trial goes no further, in brackets; empty where it does. A reason of `failed` ones is not told again."""
    if trial.state not in ("failed", "paused", "stopped"):
        return ""
    alike = next((trials for trials in by_reason(failed, folder).values() if trial in trials), [trial])
    other = next((one for one in alike if one is not trial), None)
    return f" ({trial.why.partition(chr(10))[0]})" if other is None else f" (as {nouns.trial} {other.name})"


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
