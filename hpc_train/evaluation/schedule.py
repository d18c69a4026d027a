"""Which checkpoint is evaluated next, and by which of several evaluation sets. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hpc_train.config.specs import EvalTimes

Key = tuple[int, float]


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint.

    Attributes:
        time: When it was taken, seconds since 1970: it distinguishes checkpoints of the same step, where a job-dir was
            trained anew. 0 in the run that takes them.
        averaged: To be evaluated, or evaluated, with the averages that the optimizer keeps of the weights (use_ema).
    """

    step: int
    time: float = 0.0
    averaged: bool = False

    @property
    def key(self) -> Key:
        """What no other checkpoint has."""
        return self.step, self.time


@dataclass(frozen=True)
class Due:
    """A checkpoint that is to be evaluated now, and the numbers of the evaluation sets that it is due for."""

    checkpoint: Checkpoint
    numbers: tuple[int, ...]


class EvaluationSchedule:
    """The evaluations of one run, or of an evaluator that follows it.

    Each set takes the newest checkpoint, no sooner than `throttle_secs` after its last evaluation began, and never one
    twice; with `eval_every_checkpoint`, all of them in order. A checkpoint that was evaluated as it was saved is
    evaluated once more, where it turns out to be the job's last and its averages are wanted; never the other way round.

    Args:
        now: When training begins, by the clock that `due` is asked with.
        done: For each set what was evaluated earlier.
    """

    def __init__(self, specs: Sequence[EvalTimes], now: float, done: Sequence[Iterable[Checkpoint]] = ()) -> None:
        self._sets = [_Set(spec, now) for spec in specs]
        self._there: dict[Key, Checkpoint] = {}
        self._unusable: set[Key] = set()
        for one, checkpoints in zip(self._sets, done, strict=False):
            for checkpoint in checkpoints:
                one.evaluated(checkpoint)

    def saved(self, step: int) -> None:
        """There is a checkpoint of `step`, newer than all before it."""
        checkpoint = Checkpoint(step)
        self._there[checkpoint.key] = checkpoint

    def queue(self, number: int, step: int) -> None:
        """The set called `number`, if it takes every checkpoint, has missed that of `step`; other sets have not."""
        checkpoint, one = Checkpoint(step), self._sets[number]
        if checkpoint.key not in self._there:
            self.saved(step)
            self.leave_out(step)
        if one.every:
            one.done.pop(checkpoint.key, None)

    def see(self, there: Iterable[Checkpoint]) -> list[Checkpoint]:
        """Takes note of the checkpoints that are there now.

        Returns:
            Those that a set with `eval_every_checkpoint` has missed: they are gone since; each is returned once.
        """
        before, self._there = self._there, {checkpoint.key: checkpoint for checkpoint in there}
        return [gone for key, gone in before.items() if key not in self._there and self._is_queued(gone)]

    def due(self, now: float, ready: Callable[[int], bool] = lambda step: True) -> Due | None:
        """The oldest checkpoint that is to be evaluated now, for those sets that begin to; None: none.

        Those that are not `ready` come later.
        """
        wanted = [self._wanted(one, now) for one in self._sets]
        there = sorted({found.key: found for found in wanted if found is not None and ready(found.step)}.items())
        if not there:
            return None
        key, oldest = there[0]
        numbers = tuple(number for number, found in enumerate(wanted) if found is not None and found.key == key)
        for number in numbers:
            self._sets[number].begin(oldest, now)
        return Due(oldest, numbers)

    def _wanted(self, one: _Set, now: float) -> Checkpoint | None:
        if not one.every and now < one.not_before:
            return None
        for _, checkpoint in sorted(self._there.items(), reverse=not one.every):
            if self._is_open(one, checkpoint):
                return checkpoint
            if not one.every and checkpoint.key not in self._unusable:
                return None
        return None

    def _is_open(self, one: _Set, checkpoint: Checkpoint) -> bool:
        return checkpoint.key not in self._unusable and one.is_open(checkpoint)

    def _is_queued(self, checkpoint: Checkpoint) -> bool:
        return any(one.every and self._is_open(one, checkpoint) for one in self._sets)

    def pass_over(self, checkpoint: Checkpoint) -> None:
        """`checkpoint` cannot be evaluated: where the newest is wanted, the one before takes its place."""
        self._unusable.add(checkpoint.key)

    def leave_out(self, step: int) -> None:
        """The checkpoint of `step` is not to be evaluated: it is gone, or the last one, which is when training ends."""
        for one in self._sets:
            one.evaluated(Checkpoint(step))

    def went_back(self, step: int) -> None:
        """Training goes on from the checkpoint of `step`: later ones are no more."""
        self._there = {key: checkpoint for key, checkpoint in self._there.items() if checkpoint.step <= step}
        for one in self._sets:
            one.done = {key: averaged for key, averaged in one.done.items() if key[0] <= step}

    @property
    def queued(self) -> set[int]:
        """Steps of checkpoints that are still to be evaluated, and so must stay."""
        return {checkpoint.step for checkpoint in self._there.values() if self._is_queued(checkpoint)}


class _Set:
    """One evaluation set.

    Attributes:
        done: What it has evaluated: whether with averages.
    """

    def __init__(self, times: EvalTimes, now: float) -> None:
        self.every, self._throttle_secs = times.eval_every_checkpoint, times.throttle_secs
        self.not_before = now + times.start_delay_secs
        self.done: dict[Key, bool] = {}

    def is_open(self, checkpoint: Checkpoint) -> bool:
        key = checkpoint.key
        return key not in self.done or (checkpoint.averaged and not self.done[key])

    def begin(self, checkpoint: Checkpoint, now: float) -> None:
        self.evaluated(checkpoint)
        self.not_before = now + self._throttle_secs

    def evaluated(self, checkpoint: Checkpoint) -> None:
        self.done[checkpoint.key] = self.done.get(checkpoint.key, False) or checkpoint.averaged
