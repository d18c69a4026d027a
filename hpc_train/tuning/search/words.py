"""Points and ends of trials in words. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_train.config.tune.space import Point
from hpc_train.telemetry.units import counted
from hpc_train.tuning.search.state import Trial


@dataclass(frozen=True)
class Nouns:
    """What a study, its trials and its command of hpc-train are called where people read of them."""

    study: str = "study"
    trial: str = "trial"
    command: str = "tune"


OF_STUDY, OF_ENSEMBLE = Nouns(), Nouns("ensemble", "member", "ensemble")


def failures(failed: Sequence[Trial], folder: Path, nouns: Nouns = OF_STUDY) -> str:
    """What is said of the trials that have failed: the most common reason once, and how many had another one. Pure."""
    reasons = Counter(_reason(trial, folder) for trial in failed)
    reason, count = reasons.most_common(1)[0]
    if count == len(failed):
        all_of_them = f"{counted(count, nouns.trial)} failed" + (", all for one reason" if count > 1 else "")
        return f"{all_of_them}: {reason}"
    others = f"{len(failed) - count} for others; see hpc-train tune status"
    return f"{counted(len(failed), nouns.trial)} failed, {count} for one reason: {reason}; {others}"


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
