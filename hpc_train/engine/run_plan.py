"""What is asked for, and what follows from it for one run: decided before anything is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpc_train.checkpoint.manager import Found
from hpc_train.config.estimator import Estimator
from hpc_train.config.run_config import RunConfig
from hpc_train.config.specs import EvalSpec, TrainSpec
from hpc_train.config.table_schema import TableSchema
from hpc_train.data.hdf5.shards import ShardSet
from hpc_train.data.loading.tf_dataset import Loader, refuse_name
from hpc_train.data.sampling.sampler import DataProgress
from hpc_train.distributed.roles import Roles
from hpc_train.engine.global_batch import GlobalBatch
from hpc_train.evaluation.early_stopping import Decision


@dataclass(frozen=True)
class TrainingJob:
    """What is asked for, as each rank has it.

    Attributes:
        description: The job as job.yaml describes it. code_folder: where its code lies.
        load: Finds the functions that a job file names.
        schema: Of a built-in model of a table.
        step_delay_secs: This rank sleeps so long after each step, to try out what slow ranks do.
    """

    estimator: Estimator
    train_spec: TrainSpec
    eval_specs: tuple[EvalSpec, ...]
    description: Mapping[str, Any]
    code_folder: Path
    load: Loader = refuse_name
    step_delay_secs: float = 0.0
    schema: TableSchema | None = None

    @property
    def config(self) -> RunConfig:
        """Where and how it runs."""
        return self.estimator.config

    @property
    def job_dir(self) -> Path:
        """The job-dir, as an absolute path."""
        assert self.config.model_dir is not None, "train_and_evaluate has settled it"
        return self.config.model_dir.absolute()

    def with_batch(self, batch: GlobalBatch | None) -> TrainingJob:
        """This job, of which each rank gives to a step what `batch` says."""
        if batch is None or not batch.kept:
            return self
        source = replace(self.train_spec.input_fn, batch_size=batch.rows)
        estimator = replace(self.estimator, config=replace(self.config, accumulate_steps=batch.pieces))
        return replace(self, estimator=estimator, train_spec=replace(self.train_spec, input_fn=source))


@dataclass(frozen=True)
class RunPlan:
    """One run of a job: who does what, on which rows, from which step to which. Equal on all ranks.

    Attributes:
        run_id: Names this run in logs/.
        roles: What each rank does.
        found: The newest whole checkpoint, from which the run goes on, and the damaged ones above it.
        max_steps: Where the run ends; None: at the end of input. Before train_spec's where `decision` says so.
        decision: That an earlier run has ended training early, by which the job is over.
        shards: Of training, then of each evaluation set; None for an input that is a function.
        batch: What a rank gives to a step, where the ranks read in step.
        progress: How far the training data were read. reordered: their order is another one than the checkpoint's.
    """

    run_id: str
    roles: Roles
    found: Found
    max_steps: int | None
    decision: Decision | None
    shards: tuple[ShardSet | None, ...]
    batch: GlobalBatch | None
    progress: DataProgress
    reordered: bool

    @property
    def restored_step(self) -> int | None:
        """The step of the checkpoint to go on from; None: from the beginning."""
        return self.found.step

    @property
    def first_step(self) -> int:
        """The global step that training goes on from."""
        return self.found.step or 0

    @property
    def is_over(self) -> bool:
        """Whether earlier runs have trained to the end."""
        return self.max_steps is not None and self.first_step >= self.max_steps
