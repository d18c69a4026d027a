"""What a strategy is to the rest of the package. Each is a package in strategies/."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from hpc_train.config.run_config import RunConfig, RunOptions
from hpc_train.data.sampling.sampler import DataProgress
from hpc_train.distributed.roles import Roles
from hpc_train.distributed.world import Threads, World
from hpc_train.engine.run_context import Training
from hpc_train.engine.run_plan import TrainingJob
from hpc_train.engine.training_input import TrainingInput
from hpc_train.lazy import keras
from hpc_train.model.loss_terms import LossPlan
from hpc_train.model.model_state import ModelState


@dataclass(frozen=True)
class ModelParts:
    """What there is to train, before its state is known.

    Attributes:
        build_again: Makes another model like `model`. Local.
        loss: What its loss is made of.
    """

    world: World
    roles: Roles
    config: RunConfig
    model: keras.Model
    state: ModelState
    loss: LossPlan
    input: TrainingInput
    build_again: Callable[[], keras.Model]


class Strategy(Protocol):
    """One way to train on many ranks.

    Attributes:
        threads: How threads call MPI in such a job.
    """

    threads: Threads

    def roles(self, size: int, options: RunOptions) -> Roles:
        """What each of `size` ranks does; UserError where no rank would be left to train. Pure."""

    def least_ranks(self, options: RunOptions) -> int:
        """So many ranks a job needs at least. Pure."""

    def sharers(self, roles: Roles, options: RunOptions) -> int:
        """So many ranks share the batch of an update. Pure."""

    def place(self, job: TrainingJob, roles: Roles, progress: DataProgress) -> DataProgress:
        """Where a rank begins to read the training data, given how far the job has read. Pure."""

    def prepare(self, parts: ModelParts) -> AbstractContextManager[Training]:
        """Opens what this rank needs to train, once the model has its state. Collective.

        Raises:
            UserError: The model, its optimizer or this MPI cannot do it.
        """
