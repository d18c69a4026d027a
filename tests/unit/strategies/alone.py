"""A strategy kept in tests: one rank trains, without any exchange."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from hpc_train.config.run_config import RunOptions
from hpc_train.data.sampling.sampler import DataProgress
from hpc_train.distributed.allreduce import GradientAllreduce
from hpc_train.distributed.collectives import OneRank
from hpc_train.distributed.roles import Roles
from hpc_train.distributed.world import Threads
from hpc_train.engine.run_context import Training
from hpc_train.engine.run_plan import TrainingJob
from hpc_train.engine.strategy import ModelParts
from hpc_train.errors import UserError
from hpc_train.strategies.synchronous.strategy import train_together


class Alone:
    """One rank."""

    threads: Threads = "multiple"

    def roles(self, size: int, options: RunOptions) -> Roles:
        if size > 1:
            raise UserError("run.strategy: alone is for 1 rank")
        return Roles(1)

    def least_ranks(self, options: RunOptions) -> int:
        return 1

    def sharers(self, roles: Roles, options: RunOptions) -> int:
        return 1

    def place(self, job: TrainingJob, roles: Roles, progress: DataProgress) -> DataProgress:
        return progress

    @contextmanager
    def prepare(self, parts: ModelParts) -> Iterator[Training]:
        yield partial(train_together, GradientAllreduce(OneRank()))


STRATEGY = Alone()
