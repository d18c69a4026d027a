"""What a separate evaluator evaluates next, and when it ends. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Training = Literal["awaited", "running", "away", "ended", "lost"]
"""The status of the training that is followed. awaited: it has not begun; away: it has saved and left, and will come
back (a requeue); ended: for good, however; lost: it was killed and reported no end."""


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint of a job-dir.

    Attributes:
        time: When it was taken, seconds since 1970: it distinguishes checkpoints of the same step, where a job-dir was
            trained anew.
        averaged: To be evaluated, or evaluated, with the averages that the optimizer keeps of the weights (use_ema).
    """

    step: int
    time: float
    averaged: bool = False


class CheckpointQueue:
    """Chooses the newest checkpoint, or each in turn, and none twice.

    A checkpoint that was evaluated as it was saved is evaluated once more, where it turns out to be the job's last and
    its averages are wanted; never the other way round.

    Args:
        every: Take each checkpoint, the lowest step first; else the newest alone.
        done: Those that were evaluated earlier.
    """

    def __init__(self, every: bool, done: Iterable[Checkpoint] = ()) -> None:
        self._every = every
        self._there: dict[tuple[int, float], Checkpoint] = {}
        self._passed: set[tuple[int, float]] = set()
        self._taken: tuple[int, float] | None = None
        self._done: dict[tuple[int, float], bool] = {}
        for checkpoint in done:
            self.evaluated(checkpoint)

    def see(self, there: Iterable[Checkpoint]) -> list[Checkpoint]:
        """Takes note of the checkpoints that are there now.

        Returns:
            Those that it meant to evaluate (all new ones, with `every`) and that are gone since; each is returned once.
        """
        before, self._there = self._there, {(c.step, c.time): c for c in there}
        if not self._every:
            return []
        gone = [c for key, c in before.items() if key not in self._there and key != self._taken]
        return [c for c in gone if self._is_open(c) and (c.step, c.time) not in self._done]

    def next(self) -> Checkpoint | None:
        """What to evaluate now; None: nothing. Of checkpoints that were passed over, the one before takes the place."""
        for _, checkpoint in sorted(self._there.items(), reverse=not self._every):
            if self._is_open(checkpoint):
                return checkpoint
            if not self._every and (checkpoint.step, checkpoint.time) not in self._passed:
                return None
        return None

    def is_over(self, training: Training) -> bool:
        """Whether nothing is left to evaluate, and nothing will come."""
        return training in ("ended", "lost") and self.next() is None

    def take(self, checkpoint: Checkpoint) -> None:
        """Notes that `checkpoint` was read and is being evaluated: it is needed there no more."""
        self._taken = checkpoint.step, checkpoint.time

    def evaluated(self, checkpoint: Checkpoint) -> None:
        """Notes that `checkpoint` needs no evaluation any more."""
        key = checkpoint.step, checkpoint.time
        self._done[key] = self._done.get(key, False) or checkpoint.averaged

    def pass_over(self, checkpoint: Checkpoint) -> None:
        """Notes that `checkpoint` cannot be evaluated."""
        self._passed.add((checkpoint.step, checkpoint.time))

    def _is_open(self, checkpoint: Checkpoint) -> bool:
        key = checkpoint.step, checkpoint.time
        if key in self._passed:
            return False
        return key not in self._done or (checkpoint.averaged and not self._done[key])
