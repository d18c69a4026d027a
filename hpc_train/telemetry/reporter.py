"""What the chief reports of training: in the progress, in status.json, and in the metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from hpc_train.telemetry.energy.account import JOULES, SECS, STILL, EnergyAccount
from hpc_train.telemetry.metrics import MetricsWriter
from hpc_train.telemetry.progress import TrainingProgress
from hpc_train.telemetry.slow_rank_log import SlowRankLog
from hpc_train.telemetry.staging import StagedData
from hpc_train.telemetry.start_timeline import StartTimeline
from hpc_train.telemetry.status import StatusFile

log = logging.getLogger(__name__)

MUCH_INPUT_WAIT = 0.1
"""Part of the time above which waiting for input is worth a warning."""
REPORT_SECS = 0.1
"""Progress is reported so often, beside the steps at which it is due."""

ByRank = dict[str, list[float | None]]


@dataclass(frozen=True)
class StepSummary:
    """What there is to report of a step; JSON can hold it.

    Attributes:
        recent_rate, mean_rate: Examples a second, of all ranks together.
        examples: Trained on in this run up to now, of all ranks together.
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
    examples: float = 0.0


@dataclass
class StatusLists:
    """What status.json keeps as a whole: by kind the newest evaluation, and the exports that failed."""

    evaluations: dict[str, dict[str, float]] = field(default_factory=dict)
    export_errors: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, status: Mapping[str, Any], first_step: int) -> StatusLists:
        """What earlier runs have noted up to `first_step`, where this one goes on."""

        def counts(found: Any) -> bool:  # the file may be another program's
            step = found.get("step", 0) if isinstance(found, dict) else None
            return isinstance(step, int) and step <= first_step

        evaluations, errors = status.get("evaluations"), status.get("export_errors")
        known = evaluations.items() if isinstance(evaluations, dict) else ()
        return cls(
            {kind: found for kind, found in known if counts(found)},
            [error for error in errors if counts(error)] if isinstance(errors, list) else [],
        )


class StepReporter(Protocol):
    """Reports on training, here or through the chief."""

    def showing(self) -> AbstractContextManager[object]:
        """A context in which progress is shown."""

    def log(self, level: int, text: str) -> None:
        """Logs a line."""

    def report(self, summary: StepSummary) -> None:
        """Reports a step."""


@dataclass(frozen=True)
class NodeReports:
    """What there is to tell of the nodes of a run, beside its training."""

    energy: EnergyAccount
    slow_ranks: SlowRankLog


class Reporter:
    """The chief's StepReporter: writes progress, status and metrics.

    Args:
        input_advice: What to change where training waits for input.
        nodes: What is told of the nodes.
        at_first_record: What is left to write once training has begun, called after the first record.
        start: Over with the first step that is reported, and recorded then.

    Attributes:
        staged: What lies on the nodes, where training data is copied to them.
    """

    staged: StagedData | None = None

    def __init__(
        self,
        metrics: MetricsWriter,
        status: StatusFile,
        progress: TrainingProgress,
        lists: StatusLists,
        input_advice: str,
        nodes: NodeReports,
        at_first_record: Callable[[], None] | None = None,
        start: StartTimeline | None = None,
    ) -> None:
        self.metrics, self.status, self.progress, self.lists = metrics, status, progress, lists
        self._input_advice, self._warned_of_input_wait = input_advice, False
        self.energy, self.slow_ranks, self._examples = nodes.energy, nodes.slow_ranks, 0.0
        self._input_wait: float | None = None
        self._at_first_record, self._start = at_first_record, start

    def showing(self) -> AbstractContextManager[object]:
        return self.progress

    def log(self, level: int, text: str) -> None:
        log.log(level, text)

    def report(self, summary: StepSummary) -> None:
        s = summary
        self._examples = s.examples
        if self._start is not None and (phases := self._start.end()) is not None:
            self._note_start(s.step, phases)
        if s.record:
            self._record(s)
        self.status.update(step=s.step, loss=s.loss, examples_per_sec=s.mean_rate, secs_left=s.secs_left)
        self.progress.update(s.step, s.loss, s.recent_rate, self._input_wait, s.secs_left, s.last)

    def note_energy(self, told: ByRank) -> None:
        """Takes what ranks have told of energy out of `told`."""
        self.energy.note(told.pop(JOULES, []), told.pop(SECS, []), told.pop(STILL, []))

    def tell_energy(self) -> dict[str, float]:
        """Writes what is known of the run's energy into the status; returns `joules`, for the metrics, if it is."""
        found = self.energy.field(self._examples)
        self.status.update(energy=found)
        return {JOULES: found["joules"]} if "joules" in found else {}

    def note_staged(self, told: ByRank) -> None:
        """Takes what ranks have told of their copies out of `told`, and writes it into the status."""
        if self.staged is not None:
            self.staged.note(told)
            self.status.update(staged=self.staged.field())

    def run_ended(self, step: int, state: str, reason: str | None = None) -> None:
        """Notes in the metrics that the run has ended: the last that they hold of it. As MetricsWriter.end."""
        self.slow_ranks.sum_up()
        self.metrics.end(step, state, reason)

    def _note_start(self, step: int, phases: Mapping[str, float]) -> None:
        rounded = {phase: round(secs, 3) for phase, secs in phases.items()}
        self.metrics.note("first_step", step, secs=round(sum(phases.values()), 3), phases=rounded)
        parts = ", ".join(f"{phase} {secs:.1f}" for phase, secs in phases.items())
        log.debug(f"the first step was over after {sum(phases.values()):.1f} s: {parts}")

    def _record(self, summary: StepSummary) -> None:
        values = {"loss": summary.loss, "examples_per_sec": summary.recent_rate}
        if summary.learning_rate is not None:
            values["learning_rate"] = summary.learning_rate
        values.update(summary.more or {})
        waits = (summary.by_rank or {}).get("input", [])
        known = [(share, rank) for rank, share in enumerate(waits) if share is not None]
        if known:
            share, rank = max(known)
            values["input_wait"] = self._input_wait = share
            self.status.update(input_wait=share)
            if share > MUCH_INPUT_WAIT and not self._warned_of_input_wait:
                self._warned_of_input_wait = True
                log.warning(
                    f"rank {rank} waited for input {share:.0%} of the time up to step {summary.step}; "
                    f"{self._input_advice}"
                )
        shares = dict(summary.by_rank or {})
        self.note_energy(shares)
        values.update(self.tell_energy())
        self.note_staged(shares)
        self.slow_ranks.record(summary.step, shares)
        histograms = {"staleness": summary.staleness} if summary.staleness is not None else None
        self.metrics.record("train", summary.step, values, histograms, shares)
        if (write := self._at_first_record) is not None:
            self._at_first_record = None
            write()


def by_rank(taken: Sequence[Mapping[str, float] | None], idle: int) -> ByRank:
    """What ranks have measured (see TimeShares.take), by name; the first `idle` ranks of the job have not."""
    names = list(dict.fromkeys(name for own in taken if own for name in own))
    return {name: [*([None] * idle), *(own.get(name) if own else None for own in taken)] for name in names}
