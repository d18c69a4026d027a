"""hpc_train as this benchmark uses it: every call into the package is made here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np

from hpc_train import HDF5Input
from hpc_train.data.hdf5.shards import ShardSet, find_shards
from hpc_train.data.loading.batch_source import ReadResources, training_reader, training_sampler
from hpc_train.data.loading.feed import Feed
from hpc_train.data.loading.tf_dataset import InputContext, OpenInput, open_training
from hpc_train.data.sampling.sampler import Sampler

SEED = 1
Read = Callable[[int], Sequence[np.ndarray]]

__all__ = ["Feed", "Read", "reader", "rows_of", "training"]


def training(paths: Sequence[str], batch: int, order: str, threads: int) -> AbstractContextManager[OpenInput]:
    """Endless training batches of one rank: has `.dataset`."""
    source, shards = _found(paths, batch, order)
    return open_training(source, shards, InputContext(0, 1, SEED), resources=ReadResources(threads))


@contextmanager
def reader(paths: Sequence[str], batch: int, order: str, threads: int) -> Iterator[Read]:
    """The same batches without TensorFlow: `read(step)` gives images `[B, ...]` and labels `[B]`, step after step."""
    source, shards = _found(paths, batch, order)
    with training_reader(source, shards, 0, 1, resources=ReadResources(threads)) as reader:
        groups, present = reader.groups, -1
        arrays: list[np.ndarray] = []

        def read(step: int) -> list[np.ndarray]:
            nonlocal present, arrays
            number, place = divmod(step, groups.steps)
            if present != number:
                arrays, present = groups.group(number), number
            return [array[place * batch : (place + 1) * batch] for array in arrays]

        yield read


def rows_of(paths: Sequence[str], batch: int, order: str, steps: int) -> list[np.ndarray]:
    """The row numbers that each of the first steps reads."""
    sampler, _ = _sampler(paths, batch, order)
    return [sampler.rows_at(step) for step in range(steps)]


def _sampler(paths: Sequence[str], batch: int, order: str) -> tuple[Sampler, ShardSet]:
    source, shards = _found(paths, batch, order)
    return training_sampler(source, shards, 0, 1), shards


def _found(paths: Sequence[str], batch: int, order: str) -> tuple[HDF5Input, ShardSet]:
    source = HDF5Input(tuple(paths), batch_size=batch, features="image", label="label", shuffle=order, seed=SEED)
    return source, find_shards(source)
