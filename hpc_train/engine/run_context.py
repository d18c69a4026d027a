"""Session: what one run of a job has at hand when training begins."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_train.callbacks.hook_list import Hooks, SavingListeners
from hpc_train.checkpoint.async_saver import BackgroundSaver
from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.config.specs import EvalSpec, RunConfig, TrainSpec
from hpc_train.data.loading.tf_dataset import OpenInput
from hpc_train.distributed.world import World
from hpc_train.engine.checkpointing import Committed, Saved, Saving
from hpc_train.evaluation.early_stopping import Decision, EarlyStopper
from hpc_train.evaluation.evaluator import Evaluator
from hpc_train.export.exporters import Exporting
from hpc_train.model.model_state import ModelState
from hpc_train.resilience.job_lock import JobLock
from hpc_train.resilience.signals import StopSignals
from hpc_train.resilience.watchdog import Watchdog
from hpc_train.telemetry.progress import Notes
from hpc_train.telemetry.reporter import Reporting

if TYPE_CHECKING:
    import keras

Restore = Callable[[World, "int | None"], "Snapshot | None"]


@dataclass
class ToldBefore:
    """What status.json keeps as a whole: by kind the newest evaluation, and the exports that failed."""

    evaluations: dict[str, dict[str, float]] = field(default_factory=dict)
    export_errors: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, status: dict[str, Any], first_step: int) -> ToldBefore:
        """What an earlier run has told up to `first_step`, where this one goes on."""
        evaluations, errors = status.get("evaluations"), status.get("export_errors")
        known = evaluations.items() if isinstance(evaluations, dict) else ()
        return cls(
            {kind: found for kind, found in known if isinstance(found, dict) and found.get("step", 0) <= first_step},
            [e for e in errors if isinstance(e, dict) and e.get("step", 0) <= first_step] if errors else [],
        )


@dataclass(frozen=True)
class Session:
    """One run of a job, seen from one rank.

    Attributes:
        world: All ranks. max_steps: where this run ends, which is before train_spec's where an earlier one has decided
            to stop early: `held`, on the chief.
        hooks: Of this rank. listeners, stopper: the chief's.
        evaluators: Of all evaluation sets; exporting: their exporters, on the chief.
        found: The step of the checkpoint to go on from; None: from the beginning. restored: that checkpoint, on the
            chief, without its arrays.
        restore: Loads the checkpoint of a step into all of the ranks that are given. Collective.
        open_data: Opens the training data at a checkpoint's place, instead of `data`. Collective.
        saver, committed, reporting: The chief's.
        profiler: Of the first rank that trains.
        delay_secs: What this rank sleeps after each step, to try out what slow ranks do.
    """

    world: World
    config: RunConfig
    train_spec: TrainSpec
    eval_specs: Sequence[EvalSpec]
    max_steps: int | None
    held: Decision | None
    model: keras.Model
    state: ModelState
    hooks: Hooks
    listeners: SavingListeners
    stopper: EarlyStopper | None
    evaluators: Sequence[Evaluator]
    exporting: Sequence[Exporting] | None
    data: OpenInput
    found: int | None
    restored: Snapshot | None
    restore: Restore
    open_data: Callable[[World, int | None], tuple[OpenInput, bool]]
    manager: CheckpointManager
    saver: BackgroundSaver | None
    committed: deque[Committed]
    lock: JobLock
    signals: StopSignals
    watchdog: Watchdog
    reporting: Reporting | None
    notes: Notes
    delay_secs: float
    told: ToldBefore = field(default_factory=ToldBefore)

    @property
    def job_dir(self) -> Path:
        """The job-dir, as an absolute path."""
        return self.config.model_dir.absolute()

    @property
    def first_step(self) -> int:
        """The global step that training goes on from."""
        return self.found or 0

    @property
    def is_over(self) -> bool:
        """Whether earlier runs have trained to the end."""
        return self.max_steps is not None and self.first_step >= self.max_steps

    def saving(self, world: World, state: Saved) -> Saving:
        """Takes and writes this run's checkpoints, `world` being the ranks that take them together."""
        return Saving(
            world,
            self.config,
            self.manager,
            self.saver,
            self.lock,
            state,
            self.found,
            self.restored,
            self.watchdog,
            self.notes.say,
            self.listeners,
            self.committed,
        )
