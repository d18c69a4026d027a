"""Which checkpoint is evaluated next, and by which of several evaluations. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hpc_train.config.specs import EvalTimes


@dataclass
class EvaluationSchedule:
    """The evaluations of one run.

    Each takes the newest checkpoint, no sooner than `throttle_secs` after its last one began, and never one twice; with
    `eval_every_checkpoint`, all of them in order.

    Args:
        now: When training begins, by the clock that `due` is asked with.
    """

    specs: Sequence[EvalTimes]
    now: float
    _newest: int | None = field(default=None, init=False)
    _queues: list[list[int]] = field(init=False)
    _not_before: list[float] = field(init=False)
    _taken: list[int | None] = field(init=False)

    def __post_init__(self) -> None:
        self._queues = [[] for _ in self.specs]
        self._not_before = [self.now + spec.start_delay_secs for spec in self.specs]
        self._taken = [None for _ in self.specs]

    def saved(self, step: int) -> None:
        """There is a checkpoint of `step`, newer than all before it."""
        self._newest = step
        for spec, queue in zip(self.specs, self._queues, strict=True):
            if spec.eval_every_checkpoint:
                queue.append(step)

    def queue(self, number: int, step: int) -> None:
        """The evaluation called `number`, which takes every checkpoint, has missed that of `step`."""
        if self.specs[number].eval_every_checkpoint and step not in self._queues[number]:
            self._queues[number] = sorted([*self._queues[number], step])

    def due(self, now: float, ready: Callable[[int], bool] = lambda step: True) -> tuple[int, tuple[int, ...]] | None:
        """The oldest checkpoint that is to be evaluated now, and the numbers of those that begin to; None: none.

        Those that are not `ready` come later.
        """
        wanted = {number: step for number in range(len(self.specs)) if (step := self._wanted(number, now)) is not None}
        oldest = min((step for step in set(wanted.values()) if ready(step)), default=None)
        if oldest is None:
            return None
        numbers = tuple(number for number, step in wanted.items() if step == oldest)
        for number in numbers:
            self._taken[number] = oldest
            self._queues[number] = [step for step in self._queues[number] if step > oldest]
            self._not_before[number] = now + self.specs[number].throttle_secs
        return oldest, numbers

    def _wanted(self, number: int, now: float) -> int | None:
        if self.specs[number].eval_every_checkpoint:
            return min(self._queues[number], default=None)
        if self._newest is None or self._newest == self._taken[number] or now < self._not_before[number]:
            return None
        return self._newest

    def leave_out(self, step: int) -> None:
        """The checkpoint of `step` is not to be evaluated: it is gone, or the last one, which is when training ends."""
        self._queues = [[s for s in queue if s != step] for queue in self._queues]
        if self._newest == step:
            self._newest = None

    def went_back(self, step: int) -> None:
        """Training goes on from the checkpoint of `step`: later ones are no more."""
        self._queues = [[s for s in queue if s <= step] for queue in self._queues]
        self._newest = None
        self._taken = [None if taken is not None and taken > step else taken for taken in self._taken]

    @property
    def queued(self) -> set[int]:
        """Steps of checkpoints that are still to be evaluated, and so must stay."""
        return {step for queue in self._queues for step in queue}
