"""What is evaluated and exported of one checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hpc_train.callbacks.hook_list import Hooks
from hpc_train.distributed.groups import Groups
from hpc_train.distributed.world import World
from hpc_train.evaluation.evaluator import Evaluator
from hpc_train.export.exporters import ExporterRunner, ExportResult
from hpc_train.export.whole_model import WholeModel
from hpc_train.telemetry.metrics import MetricsWriter

Known = Callable[[str, str | None], dict[str, float] | None]


@dataclass(frozen=True)
class EvaluationResult:
    """What one evaluation set gave for the checkpoint of `step`.

    Attributes:
        number: Of the evaluation set, from 0; kind: what its records are called; name: its EvalSpec's; what: of which
            data (Evaluator.what).
        taken: When the checkpoint was taken, in seconds since 1970; secs: how long the evaluation took.
        known: Whether an earlier run had made this evaluation.
    """

    number: int
    kind: str
    name: str | None
    what: str | None
    step: int
    taken: float
    metrics: dict[str, float]
    secs: float
    exports: tuple[ExportResult, ...] = ()
    known: bool = False

    @property
    def text(self) -> str:
        """For people."""
        shown = "  ".join(f"{name} {value:.4f}" for name, value in self.metrics.items())
        return f"{self.kind} at step {self.step}: {shown or 'no metrics'}"

    def write(self, metrics: MetricsWriter, lag_steps: int, lag_secs: float, last: bool) -> None:
        """Writes a record; by how much training was ahead then, and whether it had ended, is part of it."""
        values = {**self.metrics, "secs": self.secs, "lag_steps": lag_steps, "lag_secs": lag_secs}
        about = {"checkpoint_time": self.taken, "what": self.what, "last": last}
        metrics.record(self.kind, self.step, values, only_here=about)


class EvaluationRunner:
    """Evaluates the model as it is, on several sets, and exports it.

    Args:
        world: The ranks that evaluate together. exporter_runners: the exporters of each evaluation set, on the chief.
        hooks: Those of this rank where it is the one that trains, too. groups: of the ranks that train, where they are
            those that evaluate; see Evaluator.evaluate. whole: what is exported, where ranks hold parts of the model.
    """

    def __init__(
        self,
        world: World,
        evaluators: Sequence[Evaluator],
        exporter_runners: Sequence[ExporterRunner],
        hooks: Hooks | None,
        groups: Groups | None = None,
        whole: WholeModel | None = None,
    ) -> None:
        self._world, self.evaluators, self._exporting, self._hooks = world, evaluators, exporter_runners, hooks
        self._groups, self._whole = groups, whole

    def evaluate(
        self,
        step: int,
        taken: float,
        numbers: Sequence[int],
        moved: Callable[[], None],
        last: bool = False,
        known: Known = lambda kind, what: None,
    ) -> Iterator[EvaluationResult]:
        """Evaluates the sets called `numbers`, and runs their exporters, one as each is asked for. Collective.

        Args:
            step, taken: Of the checkpoint that the model is like.
            moved: Called as long as it goes on. last: Whether training has ended.
            known: What an earlier run found, given an evaluation's kind and what it is of; on the chief.
        """
        for number in numbers:
            evaluator = self.evaluators[number]
            found = self._world.broadcast(known(evaluator.kind, evaluator.what) if self._world.is_chief else None)
            begun = time.monotonic()
            metrics = self._measure(evaluator, step, moved) if found is None else found
            secs = time.monotonic() - begun
            exports: list[list[Any]] = []
            if evaluator.exports:
                moved()
                export = partial(self._export, number, step, taken, metrics, last)
                exports = self._whole.exporting(export, moved) if self._whole else self._world.on_chief(export)
                moved()
            yield EvaluationResult(
                number,
                evaluator.kind,
                evaluator.name,
                evaluator.what,
                step,
                taken,
                metrics,
                secs,
                tuple(ExportResult(name, path and Path(path), error, new) for name, path, error, new in exports),
                found is not None,
            )

    def _measure(self, evaluator: Evaluator, step: int, moved: Callable[[], None]) -> dict[str, float]:
        """What `evaluator` gives now, hooks being called. Collective."""
        hooks, name = self._hooks, evaluator.name
        if hooks is None:
            return evaluator.evaluate(moved, groups=self._groups)
        hooks.before_evaluate(step, name)
        before, after = hooks.before_evaluation_batch, hooks.after_evaluation_batch
        return evaluator.evaluate(moved, partial(before, step, name), partial(after, step, name), self._groups)

    def _export(self, number: int, step: int, taken: float, metrics: dict[str, float], last: bool) -> list[list[Any]]:
        made = self._exporting[number].after_evaluation(step, taken, metrics, last)
        return [[one.exporter, one.path and str(one.path), one.error, one.new] for one in made]
