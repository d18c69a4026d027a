"""RunContext: all that one run has open on one rank. ChiefServices: what the chief has besides, and no other rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_train.callbacks.hook_list import Hooks, SavingListeners
from hpc_train.checkpoint.async_saver import BackgroundSaver
from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.config.run_config import RunConfig
from hpc_train.config.settings import Settings
from hpc_train.distributed.world import World
from hpc_train.engine.rank_energy import RankEnergy
from hpc_train.engine.recovery import Restorer
from hpc_train.engine.run_plan import RunPlan, TrainingJob
from hpc_train.engine.training_input import TrainingInput
from hpc_train.evaluation.early_stopping import EarlyStopper
from hpc_train.evaluation.evaluator import Evaluator
from hpc_train.export.exporters import ExporterRunner
from hpc_train.export.whole_model import WholeModel
from hpc_train.lazy import keras
from hpc_train.model.loss_terms import LossPlan
from hpc_train.model.model_state import ModelState
from hpc_train.resilience.job_lock import JobLock
from hpc_train.resilience.signals import StopSignals
from hpc_train.resilience.watchdog import Watchdog
from hpc_train.telemetry.reporter import Reporter

Result = tuple[dict[str, float], list[str]]
"""The metrics of the last evaluation with `global_step`, and the folders of the exports made of the last checkpoint."""
Training = Callable[["RunContext"], Result]
"""One run, prepared by its strategy: trains to the end, evaluates and exports. Collective."""

Committed = tuple[Path, float, int, float]
"""A checkpoint's folder, the seconds since its state was taken, its bytes, and when that was, since 1970."""


@dataclass(frozen=True)
class ChiefServices:
    """What the chief has, and nobody else: it writes.

    Attributes:
        reporter: Progress, status.json and metrics. saver: writes checkpoints in a thread, and adds what it has written
            to `committed`.
        lock: The right to write in the job-dir.
        listeners: The user's saving listeners. stopper: the rules that end training early; None: there are none.
        exporter_runners: The exporters of each evaluation set.
        restored: The checkpoint that the run goes on from, without its arrays.
        settings: What this run is asked for, as checkpoints record it.
    """

    reporter: Reporter
    saver: BackgroundSaver
    committed: deque[Committed]
    lock: JobLock
    listeners: SavingListeners
    stopper: EarlyStopper | None
    exporter_runners: Sequence[ExporterRunner]
    restored: Snapshot | None
    settings: Settings


@dataclass(frozen=True)
class RunContext:
    """One run of a job, open on one rank.

    Attributes:
        world: All ranks.
        input: The training data of this rank. hooks: this rank's. evaluators: of all evaluation sets.
        manager: Finds, loads and removes checkpoints. restorer: gives ranks the state of one.
        chief: None on all other ranks. energy: what this rank measures of its node.
        whole: What is exported, where ranks hold parts of the model.
        training: How the strategy runs it.
        staged: What this rank tells of the copies of shards that it has made; nothing where it makes none.
    """

    world: World
    job: TrainingJob
    plan: RunPlan
    model: keras.Model
    state: ModelState
    loss: LossPlan
    input: TrainingInput
    hooks: Hooks
    evaluators: Sequence[Evaluator]
    manager: CheckpointManager
    restorer: Restorer
    signals: StopSignals
    watchdog: Watchdog
    training: Training
    chief: ChiefServices | None
    energy: RankEnergy
    whole: WholeModel | None = None
    staged: Callable[[], Mapping[str, float]] = dict

    @property
    def config(self) -> RunConfig:
        """Where and how the job runs."""
        return self.job.config

    @property
    def job_dir(self) -> Path:
        """The job-dir, as an absolute path."""
        return self.job.job_dir
