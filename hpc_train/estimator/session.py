"""Session: what one run of a job has at hand when training begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_train.checkpoint.background import BackgroundSaver
from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.cluster.world import World
from hpc_train.config.specs import EvalSpec, RunConfig, TrainSpec
from hpc_train.data.pipeline import OpenInput
from hpc_train.estimator.evaluation import Evaluator
from hpc_train.estimator.loop import Reporting
from hpc_train.estimator.run import Run
from hpc_train.estimator.saving import Read, Saved, Saving
from hpc_train.estimator.state import ModelState
from hpc_train.monitoring.progress import Notes
from hpc_train.resilience.job_lock import JobLock
from hpc_train.resilience.signals import StopSignals
from hpc_train.resilience.watchdog import Watchdog

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class Session:
    """One run of a job, seen from one rank.

    Attributes:
        found: The step of the checkpoint to go on from; None: from the beginning. restored: that checkpoint, on the
            chief, without its arrays.
        restore: Loads the checkpoint of a step into all ranks. Collective.
        open_data: Opens the training data at a checkpoint's place, instead of `data`. Collective.
        saver, reporting: The chief's.
        delay_secs: What this rank sleeps after each step, to try out what slow ranks do.
    """

    world: World
    config: RunConfig
    train_spec: TrainSpec
    eval_spec: EvalSpec
    model: keras.Model
    state: ModelState
    evaluator: Evaluator
    data: OpenInput
    found: int | None
    restored: Snapshot | None
    restore: Callable[[int | None], Snapshot | None]
    open_data: Callable[[int | None], tuple[OpenInput, bool]]
    manager: CheckpointManager
    saver: BackgroundSaver | None
    lock: JobLock
    signals: StopSignals
    watchdog: Watchdog
    reporting: Reporting | None
    notes: Notes
    delay_secs: float

    @property
    def job_dir(self) -> Path:
        """The job-dir, as an absolute path."""
        return self.config.model_dir.absolute()

    @property
    def first_step(self) -> int:
        """The global step that training goes on from."""
        return self.found or 0

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
        )

    def run(self, world: World, saving: Saving, data: Read) -> Run:
        """What happens beside the steps, `world` being the ranks that do it together."""
        return Run(
            world,
            self.config,
            self.eval_spec,
            self.model,
            self.state,
            saving,
            data,
            self.evaluator,
            self.signals,
            self.watchdog,
            self.reporting,
        )
