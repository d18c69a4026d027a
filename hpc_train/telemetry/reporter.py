"""What the chief tells of training: in the progress, in status.json, and in the metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from hpc_train.telemetry.metrics import MetricsWriter
from hpc_train.telemetry.progress import TrainingProgress
from hpc_train.telemetry.status import StatusFile

MUCH_INPUT_WAIT = 0.1
"""Part of the time above which waiting for input is worth a warning."""

ByRank = dict[str, list[float | None]]


@dataclass(frozen=True)
class Told:
    """What there is to tell of a step; JSON can hold it.

    Attributes:
        recent_rate, mean_rate: Examples a second, of all ranks together.
        record: Whether it is for the metrics, too; `by_rank` and what follows are given then.
        by_rank: Of all ranks of the job, where their time went (see TimeShares); None where unknown.
        more: Further numbers. staleness: counts by value, as a job without ranks in step has them.
    """

    step: int
    loss: float
    recent_rate: float
    mean_rate: float
    secs_left: float | None
    last: bool
    record: bool = False
    learning_rate: float | None = None
    by_rank: ByRank | None = None
    more: Mapping[str, float] | None = None
    staleness: Mapping[int, int] | None = None


class Teller(Protocol):
    """Tells of training, here or through the chief."""

    def showing(self) -> AbstractContextManager[object]:
        """A context in which progress is shown."""
        ...

    def say(self, text: str) -> None:
        """Prints a line."""
        ...

    def tell(self, told: Told) -> None:
        """Tells of a step."""
        ...


class Reporting:
    """The chief's: writes what is told of.

    Args:
        input_advice: What to change where training waits for input.
    """

    def __init__(
        self, metrics: MetricsWriter, status: StatusFile, progress: TrainingProgress, input_advice: str
    ) -> None:
        self.metrics, self.status, self.progress = metrics, status, progress
        self._input_advice, self._told_of_input_wait = input_advice, False
        self._input_wait: float | None = None

    def showing(self) -> AbstractContextManager[object]:
        """A context in which progress is shown."""
        return self.progress

    def say(self, text: str) -> None:
        """Prints a line."""
        self.progress.say(text)

    def tell(self, told: Told) -> None:
        """Tells of a step."""
        if told.record:
            self._record(told)
        self.status.update(step=told.step, loss=told.loss, examples_per_sec=told.mean_rate, secs_left=told.secs_left)
        self.progress.update(told.step, told.loss, told.recent_rate, self._input_wait, told.secs_left, told.last)

    def _record(self, told: Told) -> None:
        values = {"loss": told.loss, "examples_per_sec": told.recent_rate}
        if told.learning_rate is not None:
            values["learning_rate"] = told.learning_rate
        values.update(told.more or {})
        waits = (told.by_rank or {}).get("input", [])
        known = [(share, rank) for rank, share in enumerate(waits) if share is not None]
        if known:
            share, rank = max(known)
            values["input_wait"] = self._input_wait = share
            self.status.update(input_wait=share)
            if share > MUCH_INPUT_WAIT and not self._told_of_input_wait:
                self._told_of_input_wait = True
                self.say(
                    f"warning: rank {rank} waited for input {share:.0%} of the time up to step {told.step}; "
                    f"{self._input_advice}"
                )
        histograms = {"staleness": told.staleness} if told.staleness is not None else None
        self.metrics.record("train", told.step, values, histograms, told.by_rank)


def by_rank(taken: Sequence[Mapping[str, float] | None], idle: int) -> ByRank:
    """What ranks have measured (see TimeShares.take), by name; the first `idle` ranks of the job have not."""
    names = list(dict.fromkeys(name for own in taken if own for name in own))
    return {name: [*([None] * idle), *(own.get(name) if own else None for own in taken)] for name in names}
