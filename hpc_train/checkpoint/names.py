"""Names of what checkpoints are on their way in and out, and which of them to keep. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from hpc_train.jobdir.paths import checkpoint_name

_TEMPORARY = re.compile(r"\.step-(\d{8,})\..+\.(tmp|old|gone)")
_DAMAGED = re.compile(r"step-(\d{8,})\.damaged(-\d+)?")


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay: the newest `keep_max` (0: all), the best, and those that `every_hours` asks for.

    Args:
        every_hours: Beyond the newest, the first checkpoint of each period of so many hours stays too; None: none.
            Periods are counted from 1970, so that every run of a job chooses the same ones.
    """

    keep_max: int = 5
    every_hours: float | None = None

    def expired(self, times: Iterable[tuple[int, float]], best: int | None) -> list[int]:
        """The steps whose checkpoints go, oldest first.

        Args:
            times: Step and time (seconds since 1970) of each checkpoint.
            best: The step of the one with the best evaluation.
        """
        if not self.keep_max:
            return []
        ordered = sorted(times)
        newest = {step for step, _ in ordered[-self.keep_max :]}
        return [step for step, _ in ordered if step not in newest | {best} | self._of_periods(ordered)]

    def _of_periods(self, ordered: list[tuple[int, float]]) -> set[int]:
        if self.every_hours is None:
            return set()
        first: dict[int, int] = {}
        for step, time in ordered:
            first.setdefault(int(time // (3600 * self.every_hours)), step)
        return set(first.values())


def passing_name(step: int, owner: str, kind: Literal["tmp", "old", "gone"]) -> str:
    """The folder of a checkpoint that is on its way.

    Args:
        kind: "tmp": it is written there before it is committed. "old": it is moved there while a new one of the same
            step takes its place. "gone": it is moved there before its files are removed, so that half of one is never
            taken for a whole.
    """
    return f".{checkpoint_name(step)}.{owner}.{kind}"


def damaged_name(step: int, others: Iterable[str]) -> str:
    """Where a damaged checkpoint is set aside, beside the names of `others`."""
    taken, name = set(others), f"{checkpoint_name(step)}.damaged"
    numbered = (f"{name}-{count}" for count in itertools.count(2))
    return next(free for free in itertools.chain([name], numbered) if free not in taken)


def is_damaged(name: str) -> bool:
    """Whether `name` is a checkpoint that was set aside."""
    return _DAMAGED.fullmatch(name) is not None


def is_temporary(name: str) -> bool:
    """Whether `name` is what a save or a removal that was cut short leaves behind."""
    return _TEMPORARY.fullmatch(name) is not None


def replaced_step(name: str) -> int | None:
    """The step of the checkpoint that was moved to `name`, or None where that is something else."""
    match = _TEMPORARY.fullmatch(name)
    return int(match[1]) if match and match[2] == "old" else None
