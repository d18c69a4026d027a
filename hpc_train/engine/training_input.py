"""The training data of one rank, which a rollback opens anew at an earlier place."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.data.hdf5.shards import ShardSet
from hpc_train.data.loading.batch_source import ReadResources, order_of
from hpc_train.data.loading.class_weight import weighted
from hpc_train.data.loading.tf_dataset import InputContext, OpenInput, context_for, open_training
from hpc_train.data.sampling.sampler import DataOrder, DataProgress, resumed
from hpc_train.distributed.world import World
from hpc_train.engine.run_plan import RunPlan, TrainingJob
from hpc_train.lazy import keras

Place = Callable[[DataProgress], DataProgress]
"""Where one rank begins to read, given how far the job has read; a strategy decides it."""


class TrainingInput:
    """Opens the batches that this rank trains on; one at a time. A context manager.

    Args:
        rank: This one. resources: what it may use to read. place: see Place.

    Attributes:
        current: What is open now.
        context: Which of how many input pipelines this is, and its seed.
    """

    def __init__(
        self,
        job: TrainingJob,
        plan: RunPlan,
        manager: CheckpointManager,
        rank: int,
        resources: ReadResources,
        place: Place,
    ) -> None:
        self._source, self._shards, self._load = job.train_spec.input_fn, plan.shards[0], job.load
        self._class_weight = job.train_spec.class_weight
        self._manager, self._place = manager, place
        self.resources = resources
        roles, seed = plan.roles, job.config.tf_random_seed
        self.context: InputContext = context_for(roles.part_of(rank), roles.readers, self._source, seed)
        self._alike = roles.model > 1
        self._stack = ExitStack()
        self.current: OpenInput

    def __enter__(self) -> TrainingInput:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def open(self, ranks: World, progress: DataProgress) -> OpenInput:
        """Opens the data where the job has read so far, instead of what was open. Collective over `ranks`.

        Where several ranks read the same part, a function finds all generators in the same state on them, so that a
        `shuffle` without a seed gives them one order.

        Raises:
            UserError: Too few rows, or too little memory for the shuffle buffer.
        """

        def enter() -> OpenInput:
            self._stack.close()
            if self._alike and not isinstance(self._source, HDF5Input):
                keras.utils.set_random_seed(self.context.seed % 2**32)
            place = self._place(progress)
            opened = self._stack.enter_context(
                open_training(self._source, self._shards, self.context, place, self.resources, self._load)
            )
            if self._class_weight is not None:
                opened.dataset = weighted(opened.dataset, self._class_weight, self.resources.threads)
            return opened

        self.current = ranks.each(enter)
        return self.current

    def reopen(self, ranks: World, step: int) -> OpenInput:
        """Opens the data where the checkpoint of `step` has read so far. Collective over `ranks`."""
        return self.open(ranks, saved_progress(ranks, self._manager, step, self._source, self._shards)[0])


def saved_progress(
    ranks: World, manager: CheckpointManager, step: int | None, source: Any, shards: ShardSet | None
) -> tuple[DataProgress, bool]:
    """How far the checkpoint of `step` has read the training data, and whether their order has changed. Collective.

    Args:
        step: None: from the beginning.
    """

    def find() -> list[Any]:
        if step is None:
            return [0, 0, [], None]
        progress, order = manager.progress(step)
        return [progress.step, progress.rows_read, progress.sizes, asdict(order) if order else None]

    saved_step, rows_read, sizes, saved = ranks.on_chief(find)
    progress = DataProgress(saved_step, rows_read, tuple((int(r), int(n)) for r, n in sizes))
    saved_order = DataOrder(**saved) if saved else None
    order = order_of(source, shards) if isinstance(source, HDF5Input) and shards is not None else None
    return resumed(progress, saved_order, order), saved_order not in (None, order)
